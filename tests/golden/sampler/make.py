"""Writes case.json beside this file: what the processors of transformers leave of logits, in its order.

    pip install torch==2.15.0 transformers==5.24.0
    python tests/golden/sampler/make.py

Logit `id` is `(id * multiplier % 1021) / 64 - 9`: exact in f32, and no two are equal below 1,021 tokens. `ids` and
`probabilities` are the tokens left and their softmax. `prompt` are the tokens that the repetition penalty counts.
"""

import itertools
import json
import pathlib

import torch
import transformers
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

VOCAB = [40, 500]


def processors(model, config, prompt):
    model.generation_config = GenerationConfig()
    return model._get_logits_processor(generation_config=config, input_ids_seq_length=len(prompt), device="cpu")


def main():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=64))
    filters = [
        {}, {"top_k": 7}, {"top_k": 1}, {"top_p": 0.8}, {"top_p": 0.05}, {"min_p": 0.1}, {"min_p": 1.0}, {"min_p": 1e-4},
        {"typical_p": 0.9}, {"typical_p": 0.2}, {"typical_p": 0.01}, {"top_k": 20, "top_p": 0.7}, {"top_p": 0.95, "min_p": 0.02},
        {"top_k": 30, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.6}, {"top_k": 12, "typical_p": 0.5}, {"min_p": 0.05, "typical_p": 0.8},
    ]
    changes = [
        {"prompt": [], "bias": {}},
        {"prompt": [1, 1, 5, 9, 33], "bias": {}, "repetition_penalty": 1.3},
        {"prompt": [2, 7, 39, 8], "bias": {3: -2.5, 11: 6.25}, "repetition_penalty": 0.8},
    ]
    cases = []
    for (number, chosen), change in itertools.product(enumerate(filters), changes):
        for temperature in (1.0, 0.6, 2.5)[: 2 + number % 2]:
            vocab, multiplier = VOCAB[len(cases) % 2], (389, 617, 97)[len(cases) % 3]
            logits = (torch.arange(vocab) * multiplier % 1021).to(torch.float32) / 64.0 - 9.0
            settings = dict(chosen, temperature=temperature, do_sample=True)
            settings.setdefault("top_k", 0)
            if "repetition_penalty" in change:
                settings["repetition_penalty"] = change["repetition_penalty"]
            if change["bias"]:
                settings["sequence_bias"] = [[[token], bias] for token, bias in change["bias"].items()]
            config = GenerationConfig(**settings)
            ids = torch.tensor([change["prompt"]], dtype=torch.long)
            # In f32, as transformers computes; the softmax in f64.
            scores = processors(model, config, change["prompt"])(ids, logits[None])[0]
            left = torch.nonzero(scores > float("-inf")).flatten().tolist()
            probabilities = torch.softmax(scores.to(torch.float64), -1)[left].tolist()
            record = {"vocab_size": vocab, "multiplier": multiplier, "temperature": temperature} | chosen | change
            record |= {"ids": left, "probabilities": [float(f"{p:.7g}") for p in probabilities]}
            cases.append(record)
    text = json.dumps({"transformers": transformers.__version__, "cases": cases}, separators=(",", ":"))
    path = pathlib.Path(__file__).with_name("case.json")
    path.write_text(text.replace("},{", "},\n{") + "\n", encoding="utf-8")


main()
