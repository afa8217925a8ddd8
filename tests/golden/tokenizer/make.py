"""Writes vocab.json and case.json beside this file from a SmolLM2 GGUF, with Hugging Face's tokenizers library.

    pip install tokenizers==0.23.3 gguf==0.19.0
    python tests/golden/tokenizer/make.py SmolLM2-135M-Instruct.Q4_1.gguf

vocab.json: `tokens` in id order, `special` (their ids), and for each merge in order the characters of its left half
(`splits`); merge i makes token `first_merged` + i. case.json: texts with the ids of each pre-tokenizer, with special
tokens read in the text (`parsed`) and not (`plain`), the second only where it differs.
"""

import json
import pathlib
import sys

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def isolate(*patterns):
    splits = [Split(Regex(p), "isolated") for p in patterns]
    return Sequence(splits + [ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS = {
    # llama.cpp's four default expressions; the other three are the models' own tokenizer.json.
    "default": isolate(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": ByteLevel(add_prefix_space=False, use_regex=True),
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]),
    "llama-bpe": isolate(LLAMA3),
}

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "a", " a", "a ", "  a", "a  b", " a  b   c    d     ",
    "Hello, world!", "The quick brown fox jumps over the lazy dog.", "HELLO world hElLo", "I'm you're we'll he'd it's I've don't",
    "I'M YOU'RE WE'LL HE'D IT'S I'VE DON'T", "'s 't 're 've 'm 'll 'd 'S 'T", "''s '' 'x ' s", "it\u2019s we\u2019re", "'\u017f '\u017fa x'\u017f",
    "rock'n'roll o'clock 'tis 'twas", "0", "12", "123", "1234", "12345", "123456", "1234567", " 1 12 123 1234 12345", "3.14159 1,234,567.89 -42 +7 1e-10",
    "2024-01-31T23:59:59Z", "0x1F 0b1010 1_000", "a1b22c333d4444", "\u00bd \u00b2\u00b3 \u2167 \u2460 \u0663\u0664\u0665 \u0967\u0968\u0969\u096a \u3007 \u5341\u4e8c", "1\u00b2345 12\u0663456",
    "\r\nline one\r\nline two\r\n\r\n  indented\r\n", "a\n\nb\n\n\nc \n d\n\te", "trailing   ", "   leading", "tab\tseparated\t\tvalues\t", "\t\tindent", " \t \n \t ",
    "a\u00a0b\u00a0\u00a0c \u2003d\u3000e\u2028f\u2029g\u0085h\u000bi\u000cj", "\u200b\u200c\u200d\u2060\ufeff bom\ufeff", "x\u00adsoft",
    "def f(x):\n    return x ** 2 + 1\n\nif __name__ == '__main__':\n\tprint(f\"{f(3)!r}\")\n",
    "fn main() { let v: Vec<u32> = (0..10).map(|x| x * x).collect(); println!(\"{v:?}\"); }", "for(int i=0;i<n;++i){a[i]+=b[i]<<2;}//!? ->*",
    "<div class=\"a b\">&nbsp;&#x27;</div><!-- c -->", "SELECT * FROM t WHERE a != 'b''c' AND d >= 1.5;", "{\"k\": [1, 2.0, null, true], \"\\u00e9\": \"\\n\"}",
    "https://example.org/a/b?c=d&e=%20f#g user@example.com", "C:\\Users\\x\\file.txt ~/.config/*", "$100 \u20ac50 \u00a310 a=b+c<d>e^f~g|h`i`", "!!!???...---___***", "a.b,c;d:e!f?g(h)i[j]k{l}m",
    "\u2014 \u2013 \u2026 \u201cquoted\u201d \u00abguillemets\u00bb \u00bfqu\u00e9? \u00a1s\u00ed!", "naïve café Größe Straße Ærø Łódź İstanbul ıI ǅ ﬁ",
    "e\u0301 a\u0308\u0323 n\u0303o \u0301lone \u0301\u0302\u0303", "Z\u0351\u036b\u0343a\u0329\u0348l\u0334g\u0322o\u0328", "Привет, мир! Ёлка щука їжак Ћирилица", "Γειά σου Κόσμε ἀρχή Ὀδυσσεύς", "Բարեւ աշխարհ", "გამარჯობა ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ",
    "שָׁלוֹם עוֹלָם abc שלום", "مرحبا بالعالم ١٢٣ لَا إِلٰهَ", "\u202bRTL \u202aLTR\u202c\u202c \u200f\u200e", "सभी मनुष्यों को गौरव और अधिकारों के", "বাংলা ਗੁਰਮੁਖੀ ગુજરાતી ଓଡ଼ିଆ தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල",
    "สวัสดีชาวโลก ພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ བོད་ཡིག", "አማርኛ ሰላም ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ ᚠᚢᚦ ᠮᠣᠩᠭᠣᠯ ⴰⵎⴰⵣⵉⵖ ߒߞߏ", "你好，世界！今天天气很好。", "繁體中文 簡体字 㐀㐁 𠀀𠀁𪜀", "こんにちは、世界。カタカナ ﾊﾝｶｸ ｆｕｌｌ１２３", "안녕하세요 세계 한글 ㄱㄴㄷ",
    "Tiếng Việt: Tôi có thể ăn thủy tinh", "👍 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ ❤️ ☕ 🫠🪿🩷", "a👩🏿‍🚀b 👩🏿‍🚀", "😀😀😀 😀", "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛 𝐀𝐁 𐐷 𓀀𓂀 𒀀 🜀 𝄞 🀄 𞤀𞤢", "\U000e0001\U000e0041 \U000f0000\U000fffff \U0010fffe\U0010ffff",
    "\U0003ffff \U00040000 x\U00040000y", "\ue000\uf8ff private \uffff\ufffe\ufffd", "\u0378\u0379 unassigned \U0001fbff", "\x00", "a\x00b", "".join(map(chr, range(1, 32))), "a\x04b\x06 \x1dthe\x7f\x80\x9f", "th\x04e \x13quick",
    "a" * 40, "a" * 47 + "b" * 3, "ab" * 60, "z" * 257, " " * 100, " " * 100 + "x", "\n" * 70, "=" * 80, "-" * 33 + "\n" + "#" * 65, "!" * 49 + "\r\n\r\n", "é" * 60, "的" * 50, "👍" * 20, "0" * 100,
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 4, "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft", "ACGTTGCAACGTAGCTAGCTAGGATCGATCGGCTAGCTAGCATCGATGCATGCTAGC" * 3,
    "aGVsbG8gd29ybGQhIHRoaXMgaXMgYmFzZTY0IGVuY29kZWQgdGV4dCB3aXRoIG5vIHNwYWNlcw==", "camelCaseIdentifier snake_case_name SCREAMING_SNAKE kebab-case", "ĠĊĉ Ġthe âĢĻ",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|>", "x<|endoftext|><|endoftext|> y", "<|im_start|", "<|im_end|>>", "<<|im_end|>", " <|im_end|> ", "<repo_name>a<reponame>b<file_sep>c<filename>", "<|IM_START|> < |im_start|>",
    "<jupyter_code>1+1\n<jupyter_output>2<empty_output>",
    "Mixed: Größe 42€, 你好 мир\t👩‍👩‍👧 \"it's\" a_b(c)[0]=1.5e3;\r\n  — naïve… 12:30 &c.\n\n\n",
    "1. First\n2. Second\n   - nested *bold* _it_ `code`\n\n> quote\n\n| a | b |\n|---|---|\n", "\\frac{a}{b} \\sum_{i=0}^{n} x_i^2 \\leq \\infty $e^{i\\pi}+1=0$",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua.", "the The THE  the\tthe\nthe", "x\u2028 y \u2029\n z", " \u00a0 \u3000 a", ". . . a . b ,", " !a !1 ! \n!\n",
]


def read_gguf(path):
    fields = gguf.GGUFReader(path).fields
    return [fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges")]


def main():
    folder = pathlib.Path(__file__).parent
    tokens, types, merges = read_gguf(sys.argv[1])
    merges = [tuple(m.split(" ")) for m in merges]
    special = [i for i, t in enumerate(types) if t in (2, 3, 4)]
    ids = {t: i for i, t in enumerate(tokens)}
    first_merged = len(tokens) - len(merges)
    assert all(ids[a + b] == first_merged + i for i, (a, b) in enumerate(merges))
    vocabulary = {"special": special, "first_merged": first_merged, "splits": [len(a) for a, _ in merges], "tokens": tokens}

    cases = [{"text": text} for text in TEXTS]
    for name, pre in PRE_TOKENIZERS.items():
        model = BPE(vocab=ids, merges=merges, ignore_merges=name == "llama-bpe")
        hf = Tokenizer(model)
        hf.pre_tokenizer = pre
        hf.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
        for case in cases:
            hf.encode_special_tokens = False
            parsed = hf.encode(case["text"], add_special_tokens=False).ids
            hf.encode_special_tokens = True
            plain = hf.encode(case["text"], add_special_tokens=False).ids
            case[name] = {"parsed": parsed} | ({} if plain == parsed else {"plain": plain})

    record = {"tokenizers": tokenizers.__version__, "gguf": "SmolLM2-135M-Instruct", "cases": cases}
    for name, value in ("vocab.json", vocabulary), ("case.json", record):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        (folder / name).write_text(text.replace("},{", "},\n{") + "\n", encoding="utf-8")


main()
