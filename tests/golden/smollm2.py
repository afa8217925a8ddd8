"""Reference logits of SmolLM2-135M-Instruct in f32, and how far a set of logits is from them.

    python smollm2.py write --model FILE.gguf         write smollm2-135m/ and smollm2-135m-kl/
    python smollm2.py ids --context I                 token ids of one context, for `plimsoll run --token-ids`
    python smollm2.py kl --model FILE.gguf --ours A.safetensors B.safetensors ...
                                                      KL(reference || ours) over logits written by
                                                      `plimsoll run --logits-out A.safetensors --logit-rows all`
    python smollm2.py noise --model FILE.gguf         the same for a simulation of bf16 products
"""

import argparse
import hashlib
import shutil
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import case as golden
import llama_gguf
from oracle import round_products

FULL = golden.ROOT / "smollm2-135m"
KL = golden.ROOT / "smollm2-135m-kl"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_ROWS = 512
FULL_ROWS = [0, 1, 100, 511]
TOP = 96
SAMPLES = 32
SEED = 20
GREEDY = 32
PROMPTS = [
    "What is the capital of France?",
    "Why does a ship float deeper in fresh water than in salt water?",
]
# A greedy token is compared where the top two logits are at least this far apart: `noise` prints what bf16 products do.
SAFE_MARGIN = 0.3
KL_BOUND = 0.0029
KL_AIM = 0.00145


def load(model_path: Path):
    """`(model, tokenizer)`: the file dequantized to f32 by `gguf`, checked against transformers' own GGUF loader."""
    assert hashlib.sha256(model_path.read_bytes()).hexdigest() == SHA256, f"{model_path} is not the file of this case"
    where = {"pretrained_model_name_or_path": model_path.parent, "gguf_file": model_path.name}
    theirs = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager").eval()
    config = theirs.config
    tensors = llama_gguf.read_tensors(GGUFReader(model_path))
    state = llama_gguf.to_hf(
        tensors, config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads
    )
    for name, value in theirs.state_dict().items():
        if name != "lm_head.weight":  # tied
            assert torch.equal(value, state[name]), f"{name}: the two loaders differ"
    assert isinstance(theirs, LlamaForCausalLM) and theirs.dtype == torch.float32
    return theirs, AutoTokenizer.from_pretrained(**where)


@torch.no_grad()
def all_logits(model, ids) -> np.ndarray:
    """`[rows, vocab]` f32."""
    return model(torch.as_tensor(np.asarray(ids, dtype=np.int64))[None], use_cache=False).logits[0].numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in f64."""
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@torch.no_grad()
def greedy(model, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """`GREEDY` tokens and the distance of the top two logits at each."""
    tokens, gaps, cache, step = [], [], None, ids
    for _ in range(GREEDY):
        out = model(torch.tensor([step]), cache=cache, use_cache=True)
        top = out.logits[0, -1].topk(2)
        tokens.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        cache, step = out.cache, tokens[-1:]
    return np.array(tokens, dtype=np.int64), np.array(gaps, dtype=np.float32)


def contexts() -> list[np.ndarray]:
    """The committed token ids, one array per context."""
    return list(load_file(KL / "reference.safetensors")["ids"])


def summarize(reference: np.ndarray, rng) -> dict[str, np.ndarray]:
    """What is kept of `[rows, vocab]` logits: the top tokens, and samples of the rest in proportion to their mass."""
    logp = log_softmax(reference)
    order = np.argsort(-logp, axis=-1, kind="stable")
    top = order[:, :TOP]
    rest = order[:, TOP:]
    rest_p = np.exp(np.take_along_axis(logp, rest, -1))
    sampled = np.stack([rng.choice(r, SAMPLES, p=p / p.sum()) for r, p in zip(rest, rest_p)])
    return {
        "top_ids": top.astype(np.uint16),
        "top_logp": np.take_along_axis(logp, top, -1).astype(np.float32),
        "rest_ids": sampled.astype(np.uint16),
        "rest_logp": np.take_along_axis(logp, sampled, -1).astype(np.float32),
        "rest_mass": rest_p.sum(-1).astype(np.float32),
    }


def full_kl(reference: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """KL(reference || ours) of each row, in nats."""
    p, q = log_softmax(reference), log_softmax(ours)
    return (np.exp(p) * (p - q)).sum(-1)


def summary_kl(s: dict[str, np.ndarray], ours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`(lower bound, estimate)` of each row's KL from the committed summary alone.

    Bound: KL between the distributions over the top tokens and "everything else", never above the full KL.
    Estimate: KL = sum over v of p_v * g(log q_v - log p_v) with g(r) = exp(r) - 1 - r, all terms non-negative because
    both distributions sum to 1; the top exactly, the rest by the mean of its samples times its mass. Unbiased, of small
    variance (J. Schulman, "Approximating KL Divergence", 2020, estimator k3).
    """
    q = log_softmax(ours)
    p_top = s["top_logp"].astype(np.float64)
    q_top = np.take_along_axis(q, s["top_ids"].astype(np.int64), -1)
    mass = s["rest_mass"].astype(np.float64)
    q_mass = np.maximum(1 - np.exp(q_top).sum(-1), 1e-12)
    bound = (np.exp(p_top) * (p_top - q_top)).sum(-1) + mass * np.log(mass / q_mass)
    g_top = np.expm1(q_top - p_top) - (q_top - p_top)
    ratio = np.take_along_axis(q, s["rest_ids"].astype(np.int64), -1) - s["rest_logp"]
    estimate = (np.exp(p_top) * g_top).sum(-1) + mass * (np.expm1(ratio) - ratio).mean(-1)
    return bound, estimate


def lost_margin(reference: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Per row: by how much the reference preferred its top token over ours; 0 where they are the same."""
    rows = np.arange(len(reference))
    return reference.max(-1) - reference[rows, ours.argmax(-1)]


def table(reference: list[np.ndarray], ours: list[np.ndarray], label: str) -> None:
    """Prints the measures of one set of logits, contexts together."""
    stored = load_file(KL / "reference.safetensors")
    n = len(ours)
    rows = {"full": [], "bound": [], "estimate": [], "same": []}
    for i in range(n):
        rows["full"].append(full_kl(reference[i], ours[i]))
        s = {k: v[i] for k, v in stored.items()}
        bound, estimate = summary_kl(s, ours[i])
        rows["bound"].append(bound)
        rows["estimate"].append(estimate)
        rows["same"].append(reference[i].argmax(-1) == ours[i].argmax(-1))
    cat = {k: np.concatenate(v) for k, v in rows.items()}
    print(f"{label}: {cat['full'].size} rows in {n} contexts")
    print(f"  mean KL(reference || ours), full vocabulary   {cat['full'].mean():.6f}  (bound {KL_BOUND}, aim {KL_AIM})")
    print(f"    standard error {cat['full'].std() / cat['full'].size**0.5:.6f}, largest row {cat['full'].max():.4f}")
    print(f"  from the summary: estimate                    {cat['estimate'].mean():.6f}")
    print(f"  from the summary: lower bound                 {cat['bound'].mean():.6f}")
    print(f"  same top token                                {cat['same'].mean() * 100:.2f} %")
    diff = np.concatenate([(o - r).ravel() for o, r in zip(ours, reference)])
    flips = np.concatenate([lost_margin(r, o) for r, o in zip(reference, ours)])
    print(f"  largest margin of a top token that lost       {flips.max():.4f}")
    print(f"  logits: root mean square of the difference    {np.sqrt((diff.astype(np.float64) ** 2).mean()):.4f}, largest {np.abs(diff).max():.4f}")


def write(model_path: Path) -> None:
    model, tokenizer = load(model_path)
    texts = (golden.ROOT / "smollm2_text.txt").read_text().split("=====\n")
    encoded = [tokenizer(t).input_ids for t in texts]
    assert all(len(e) >= CONTEXT_ROWS for e in encoded)
    ids = np.array([e[:CONTEXT_ROWS] for e in encoded], dtype=np.int64)
    logits = [all_logits(model, row) for row in ids]
    span = float(np.ptp(logits[0]))

    common = {
        "script": "smollm2.py",
        "seed": SEED,
        "versions": golden.versions(),
        "model": {"file": model_path.name, "sha256": SHA256, "bytes": model_path.stat().st_size, "licence": "Apache-2.0"},
        "reference": "transformers LlamaForCausalLM, weights dequantized to f32, eager attention, f32, one thread",
    }
    for folder in (FULL, KL):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    tensors = {"ids": ids[0], "rows": np.array(FULL_ROWS, dtype=np.int64), "logits": logits[0][FULL_ROWS]}
    chats = []
    for i, prompt in enumerate(PROMPTS):
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt_ids = tokenizer(text).input_ids
        tokens, gaps = greedy(model, prompt_ids)
        again = all_logits(model, prompt_ids + tokens[:-1].tolist())[len(prompt_ids) - 1 :]
        assert np.array_equal(again.argmax(-1), tokens), "greedy with and without a KV cache differ"
        safe = gaps >= SAFE_MARGIN
        steps = GREEDY if safe.all() else int(safe.argmin())
        tensors |= {f"prompt{i}": np.array(prompt_ids, dtype=np.int64), f"greedy{i}": tokens, f"margins{i}": gaps}
        chats.append({"user": prompt, "prompt": text, "prompt_rows": len(prompt_ids), "free_running_steps": steps, "text": tokenizer.decode(tokens)})
        print(f"prompt {i}: {steps} safe steps, margins {np.round(gaps, 2).tolist()}\n{tokenizer.decode(tokens)}")
    golden.write_tensors(FULL / "logits.safetensors", tensors)
    golden.write_json(
        FULL,
        {
            **common,
            "shapes": {name: list(value.shape) for name, value in tensors.items()},
            "logits_range": span,
            "chats": chats,
            "safe_margin": SAFE_MARGIN,
        },
    )

    rng = np.random.default_rng(SEED)
    parts = [summarize(x, rng) for x in logits]
    stacked = {"ids": ids} | {k: np.stack([p[k] for p in parts]) for k in parts[0]}
    golden.write_tensors(KL / "reference.safetensors", stacked)
    for part, x in zip(parts, logits):
        bound, estimate = summary_kl(part, x)
        assert np.abs(bound).max() < 1e-5 and np.abs(estimate).max() < 1e-9, "the reference is not at distance 0 from itself"
    golden.write_json(
        KL,
        {
            **common,
            "text": "smollm2_text.txt, written for this project",
            "contexts": len(ids),
            "rows": CONTEXT_ROWS,
            "top": TOP,
            "rest_samples": SAMPLES,
            "shapes": {name: list(value.shape) for name, value in stacked.items()},
            "checks": {"mean_kl": KL_BOUND, "mean_kl_aim": KL_AIM, "same_top_token": 0.967},
            "measured": {
                "mean_rest_mass": float(stacked["rest_mass"].mean()),
                "perplexity": float(np.exp(np.mean([-log_softmax(x[:-1])[np.arange(CONTEXT_ROWS - 1), r[1:]].mean() for x, r in zip(logits, ids)]))),
            },
        },
    )


def compare(model_path: Path, files: list[Path]) -> None:
    model, _ = load(model_path)
    known = contexts()
    reference, ours, order = [], [], []
    for file in files:
        data = load_file(file)
        match = [i for i, c in enumerate(known) if np.array_equal(c, data["ids"])]
        assert match, f"{file}: its ids are none of the contexts of {KL.name}"
        assert data["logits"].shape == (CONTEXT_ROWS, model.config.vocab_size), f"{file}: logits {data['logits'].shape}"
        order.append(match[0])
        ours.append(data["logits"])
    assert order == list(range(len(order))), f"give the files in the order of the contexts, not {order}"
    reference = [all_logits(model, known[i]) for i in order]
    table(reference, ours, "ours")


def noise(model_path: Path) -> None:
    model, _ = load(model_path)
    known = contexts()
    reference = [all_logits(model, c) for c in known]
    round_products(model, attention=False)
    table(reference, [all_logits(model, c) for c in known], "bf16 products in linear layers")
    round_products(model)
    table(reference, [all_logits(model, c) for c in known], "bf16 products in linear layers and attention")


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("write", "kl", "noise"):
        verbs.add_parser(verb).add_argument("--model", type=Path, required=True)
    verbs.choices["kl"].add_argument("--ours", type=Path, nargs="+", required=True)
    verbs.add_parser("ids").add_argument("--context", type=int, required=True)
    args = parser.parse_args()
    if args.verb == "ids":
        print(*contexts()[args.context].tolist())
    elif args.verb == "write":
        write(args.model)
    elif args.verb == "kl":
        compare(args.model, args.ours)
    else:
        noise(args.model)


if __name__ == "__main__":
    main()
