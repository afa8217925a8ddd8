"""Writes vocab.json and case.json beside this file from a SmolLM2 GGUF, with Hugging Face's tokenizers library.

    pip install tokenizers==0.23.3 gguf==0.19.0 sentencepiece==0.2.3
    python tests/golden/tokenizer/make.py SmolLM2-135M-Instruct.Q4_1.gguf

vocab.json: `tokens` in id order, `special` (their ids), and for each merge in order the characters of its left half
(`splits`); merge i makes token `first_merged` + i. case.json: texts with the ids of each pre-tokenizer, with special
tokens read in the text (`parsed`) and not (`plain`), the second only where it differs, and for each pre-tokenizer its part of a
`tokenizer.json` (`parts`).

sentencepiece.json: a SentencePiece BPE model trained here on the texts and smollm2_text.txt: `pieces` are text, score and
GGUF token type; `merges` what Hugging Face's converters make of them; `prefixed` and `bare` the ids that sentencepiece gives with
and without a space in front; `json_prefixed` and `json_bare` what tokenizers gives, only where that differs.
"""

import io

import json
import pathlib
import sys

import gguf
import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?"
O200K = f"{WORD}{UPPER}*{LOWER}+{SUFFIX}|{WORD}{UPPER}+{LOWER}*{SUFFIX}|\\p{{N}}{{1,3}}|{REST}"
TEKKEN = f"{WORD}{UPPER}*{LOWER}+|{WORD}{UPPER}+{LOWER}*|\\p{{N}}|{REST}"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)


def isolate(*patterns):
    splits = [Split(Regex(p), "isolated") for p in patterns]
    return Sequence(splits + [ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS = {
    # llama.cpp's four default expressions; the others are the models' own tokenizer.json.
    "default": isolate(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": ByteLevel(add_prefix_space=False, use_regex=True),
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]),
    "llama-bpe": isolate(LLAMA3),
    "qwen2": isolate(QWEN2),
    "qwen35": isolate(QWEN35),
    "gpt-4o": isolate(O200K),
    "tekken": isolate(TEKKEN),
    "deepseek-v3": isolate(*DEEPSEEK3),
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


# As in Gemma: runs of spaces and line breaks, and tags.
USER_DEFINED = ["\u2581\u2581", "\u2581\u2581\u2581", "\n", "\n\n", "<b>", "</b>"]


def train(folder):
    """A model with the order of tokens of Gemma's: special ones, then bytes, then those that the user defined, then merged ones."""
    text = (folder.parent / "smollm2_text.txt").read_text(encoding="utf-8")
    sentences = [line for line in text.split("\n") if line] + [t for t in TEXTS if "\n" not in t and t.strip() and "\0" not in t] * 2
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=out, model_type="bpe", vocab_size=2400, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, character_coverage=0.98,
        user_defined_symbols=USER_DEFINED, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2,
    )  # fmt: skip
    return out.getvalue()


def fields(message):
    """The (tag, value) pairs of a protobuf message: bytes of length-delimited and fixed fields, numbers of varints."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag, varint()
        else:
            size = {1: 8, 5: 4}.get(tag & 7) or varint()
            yield tag, message[at : at + size]
            at += size


def encoded(tag, value):
    def varint(number):
        low, number = number & 127, number >> 7
        return bytes([low]) if number == 0 else bytes([low | 128]) + varint(number)

    if tag & 7 == 0:
        return varint(tag) + varint(value)
    return varint(tag) + (varint(len(value)) if tag & 7 == 2 else b"") + value


def with_prefix(proto, prefix):
    """The model with normalizer_spec (3) . add_dummy_prefix (3) set."""
    out = b""
    for tag, value in fields(proto):
        if tag == 3 << 3 | 2:
            kept = b"".join(encoded(t, v) for t, v in fields(value) if t != 3 << 3)
            value = kept + encoded(3 << 3, int(prefix))
        out += encoded(tag, value)
    return out


def sentencepiece_cases(folder):
    proto = train(folder)
    models = {
        key: sentencepiece.SentencePieceProcessor(model_proto=with_prefix(proto, key == "prefixed"))
        for key in ("prefixed", "bare")
    }
    model = models["bare"]
    pieces = []
    for i in range(model.get_piece_size()):
        kind = 2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1
        piece = model.id_to_piece(i)
        pieces.append([piece, round(model.get_score(i), 4), 4 if piece in USER_DEFINED else kind])
    ids = {piece: i for i, (piece, _, kind) in enumerate(pieces)}
    ordinary = {piece: i for i, (piece, _, kind) in enumerate(pieces) if kind in (1, 4)}
    merges = []
    for piece, i in ordinary.items():
        splits = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        splits = [(a, b) for a, b in splits if a in ordinary and b in ordinary]
        merges += [(pieces[i][1], a, b) for a, b in sorted(splits, key=lambda ab: (ids[ab[0]], ids[ab[1]]))]
    merges = [(a, b) for _, a, b in sorted(merges, key=lambda merge: -merge[0])]
    tokenizers_of = {}
    for key in models:
        hf = Tokenizer(BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        steps = [normalizers.Replace(" ", "\u2581")]
        hf.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581")] + steps if key == "prefixed" else steps)
        hf.add_tokens([AddedToken(p, normalized=False) for p, _, kind in pieces if kind == 4])
        tokenizers_of[key] = hf
    cases = []
    for text in TEXTS + ["x<b>y</b> z", "<b> a</b>\n\n\nb", "a    b     c"]:
        case = {"text": text}
        for key, one in models.items():
            want = one.encode(text)
            got = tokenizers_of[key].encode(text, add_special_tokens=False).ids
            case[key] = want
            if got != want:
                case["json_" + key] = got
        cases.append(case)
    return {"pieces": pieces, "merges": merges, "cases": cases}


def main():
    folder = pathlib.Path(__file__).parent
    tokens, types, merges = read_gguf(sys.argv[1])
    merges = [tuple(m.split(" ")) for m in merges]
    special = [i for i, t in enumerate(types) if t in (2, 3, 4)]
    ids = {t: i for i, t in enumerate(tokens)}
    first_merged = len(tokens) - len(merges)
    assert all(ids[a + b] == first_merged + i for i, (a, b) in enumerate(merges))
    vocabulary = {"special": special, "first_merged": first_merged, "splits": [len(a) for a, _ in merges], "tokens": tokens}

    parts = {}
    cases = [{"text": text} for text in TEXTS]
    for name, pre in PRE_TOKENIZERS.items():
        model = BPE(vocab=ids, merges=merges, ignore_merges=name in ("llama-bpe", "tekken"))
        hf = Tokenizer(model)
        hf.pre_tokenizer = pre
        if name in ("qwen2", "qwen35"):
            hf.normalizer = normalizers.NFC()
        hf.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
        for case in cases:
            hf.encode_special_tokens = False
            parsed = hf.encode(case["text"], add_special_tokens=False).ids
            hf.encode_special_tokens = True
            plain = hf.encode(case["text"], add_special_tokens=False).ids
            case[name] = {"parsed": parsed} | ({} if plain == parsed else {"plain": plain})
        whole = json.loads(hf.to_str())
        parts[name] = {key: whole[key] for key in ("normalizer", "pre_tokenizer")}
        parts[name]["ignore_merges"] = whole["model"]["ignore_merges"]

    record = {"tokenizers": tokenizers.__version__, "gguf": "SmolLM2-135M-Instruct", "parts": parts, "cases": cases}
    spm = {"sentencepiece": sentencepiece.__version__, "tokenizers": tokenizers.__version__} | sentencepiece_cases(folder)
    for name, value in ("vocab.json", vocabulary), ("case.json", record), ("sentencepiece.json", spm):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        (folder / name).write_text(text.replace("},{", "},\n{") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
