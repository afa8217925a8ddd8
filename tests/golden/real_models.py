"""Reference logits of trained models in f32, and how far a set of logits is from them.

    python real_models.py write --name NAME --model FILE.gguf   write NAME-kl/ and what else there is of NAME
    python real_models.py contexts --name NAME                  one line per context: index, tokens, rows compared
    python real_models.py ids --name NAME --context I           its token ids, for `plimsoll run --token-ids`
    python real_models.py kl --name NAME --model FILE.gguf --ours A.safetensors B.safetensors ...
                                                                KL(reference || ours) over logits as `plimsoll run --logits-out` writes
                                                                them, one file per context: all rows, or the last ones
    python real_models.py noise --name NAME --model FILE.gguf   the same for a simulation of bf16 products
"""

import argparse
import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig, LlamaForCausalLM

import case as golden
import llama_gguf
import model_gguf
from oracle import round_products

SEED = 20
GREEDY = 32
FULL_ROWS = [0, 1, 100, 511]
PROMPTS = [
    "What is the capital of France?",
    "Why does a ship float deeper in fresh water than in salt water?",
]
# A greedy token is compared where the top two logits are at least this far apart: `noise` prints what bf16 products do.
SAFE_MARGIN = 0.3
CONTEXT_ROWS = 512
LONG_CONTEXT = 8192
# Rows whose logits exist at one time: 64 rows of 262,144 tokens are 64 MiB.
PIECE = 64
# Rows of a pass over a long context.
PASS = 512


@dataclass
class Real:
    """A model, and what is kept of its reference."""

    sha256: str
    licence: str
    load: Callable
    top: int  # likeliest tokens kept of a row
    samples: int  # and tokens drawn of the others
    bound: float  # of the mean KL over the rows of the short contexts
    aim: float
    same_top_token: float
    chats: bool = False
    long: bool = False


@dataclass
class Context:
    """A text's token ids; the last `rows` rows are compared."""

    case: str
    index: int
    ids: np.ndarray
    rows: int


def load_llama(path: Path):
    """`(model, tokenizer)`: the file dequantized to f32 by `gguf`, checked against transformers' own GGUF loader."""
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    theirs = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager").eval()
    config = theirs.config
    tensors = llama_gguf.read_tensors(GGUFReader(path))
    state = llama_gguf.to_hf(tensors, config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads)
    for name, value in theirs.state_dict().items():
        if name != "lm_head.weight":  # tied
            assert torch.equal(value, state[name]), f"{name}: the two loaders differ"
    assert isinstance(theirs, LlamaForCausalLM) and theirs.dtype == torch.float32
    return theirs, AutoTokenizer.from_pretrained(**where)


def load_gemma3(path: Path):
    """The same for Gemma 3, whose config is made from the file's keys; the tokenizer only where it is asked for."""
    reader = GGUFReader(path)
    keys = {k: f.contents() for k, f in reader.fields.items() if k.startswith(("gemma3.", "general."))}
    tensors = llama_gguf.read_tensors(reader)
    get = {k.removeprefix("gemma3."): v for k, v in keys.items()}
    config = Gemma3TextConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=get["embedding_length"],
        intermediate_size=get["feed_forward_length"],
        num_hidden_layers=get["block_count"],
        num_attention_heads=get["attention.head_count"],
        num_key_value_heads=get["attention.head_count_kv"],
        head_dim=get["attention.key_length"],
        query_pre_attn_scalar=get["attention.key_length"],
        rms_norm_eps=float(np.float32(get["attention.layer_norm_rms_epsilon"])),
        sliding_window=get["attention.sliding_window"],
        max_position_embeddings=get["context_length"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": get["rope.freq_base"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": get.get("rope.freq_base_swa", 10000.0)},
        },
        dtype="float32",
    )
    config._attn_implementation = "eager"
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in Gemma3ForCausalLM(config).state_dict().items()}
    # Where the twin of a state dict full of names says which GGUF tensor is whose.
    names = {}
    for name in shapes:
        probe = np.zeros(1, dtype=np.float32)
        for ours in model_gguf.tensors(config, {name: probe}):
            names[ours] = name
    assert names.keys() == tensors.keys(), names.keys() ^ tensors.keys()
    state = {}
    for ours, name in names.items():
        value = tensors.pop(ours)
        state[name] = torch.from_numpy(value - np.float32(1) if name.endswith("norm.weight") else value)
    model = Gemma3ForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing in ([], ["lm_head.weight"]), (missing, unexpected)
    model.tie_weights()
    return model, None


MODELS = {
    "smollm2-135m": Real(
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        load=load_llama,
        top=96,
        samples=32,
        bound=0.0029,
        aim=0.00145,
        same_top_token=0.967,
        chats=True,
    ),
    "gemma3-270m": Real(
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        load=load_gemma3,
        top=64,
        samples=24,
        bound=0.0046,
        aim=0.0023,
        same_top_token=0.96,
        long=True,
    ),
}


def load(name: str, path: Path):
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == MODELS[name].sha256, f"{path} is not the file of {name}"
    return MODELS[name].load(path)


def cases(name: str) -> list[str]:
    return [f"{name}-kl"] + ([f"{name}-kl-long"] if MODELS[name].long else [])


@torch.no_grad()
def all_logits(model, ids) -> np.ndarray:
    """`[rows, vocab]` f32."""
    return model(torch.as_tensor(np.asarray(ids, dtype=np.int64))[None], use_cache=False).logits[0].numpy()


@torch.no_grad()
def hidden_states(model, ids, rows: int) -> torch.Tensor:
    """What the head sees of the last `rows` rows; a long context goes through in passes."""
    ids = torch.as_tensor(np.asarray(ids, dtype=np.int64))[None]
    assert rows <= PASS
    out = model.model(ids[:, :PASS], use_cache=ids.shape[1] > PASS)
    for start in range(PASS, ids.shape[1], PASS):
        out = model.model(ids[:, start : start + PASS], cache=out.cache, use_cache=True)
    return out.last_hidden_state[0, -rows:]


@torch.no_grad()
def pieces(model, context: Context) -> Iterator[tuple[int, np.ndarray]]:
    """`(first row, logits [n, vocab])` of the rows that are compared, a few at a time."""
    hidden = hidden_states(model, context.ids, context.rows)
    for start in range(0, context.rows, PIECE):
        yield start, model.lm_head(hidden[start : start + PIECE]).numpy()


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


def contexts(name: str) -> list[Context]:
    """The committed contexts."""
    out = []
    for case in cases(name):
        stored = load_file(golden.ROOT / case / "reference.safetensors")
        out += [Context(case, i, ids, stored["top_ids"].shape[1]) for i, ids in enumerate(stored["ids"])]
    return out


def summarize(real: Real, reference: np.ndarray, rng) -> dict[str, np.ndarray]:
    """What is kept of `[rows, vocab]` logits: the top tokens, and samples of the rest in proportion to their mass."""
    logp = log_softmax(reference)
    kind = np.uint16 if logp.shape[1] <= 1 << 16 else np.uint32
    order = np.argsort(-logp, axis=-1, kind="stable")
    top = order[:, : real.top]
    rest = order[:, real.top :]
    rest_p = np.exp(np.take_along_axis(logp, rest, -1))
    sampled = np.stack([rng.choice(r, real.samples, p=p / p.sum()) for r, p in zip(rest, rest_p)])
    return {
        "top_ids": top.astype(kind),
        "top_logp": np.take_along_axis(logp, top, -1).astype(np.float32),
        "rest_ids": sampled.astype(kind),
        "rest_logp": np.take_along_axis(logp, sampled, -1).astype(np.float32),
        "rest_mass": rest_p.sum(-1).astype(np.float32),
    }


def full_kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(reference || ours) of each row, in nats, of log-probabilities."""
    return (np.exp(p) * (p - q)).sum(-1)


def summary_kl(s: dict[str, np.ndarray], q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`(lower bound, estimate)` of each row's KL from the committed summary alone; `q`: our log-probabilities.

    Bound: KL between the distributions over the top tokens and "everything else", never above the full KL.
    Estimate: KL = sum over v of p_v * g(log q_v - log p_v) with g(r) = exp(r) - 1 - r, all terms non-negative because
    both distributions sum to 1; the top exactly, the rest by the mean of its samples times its mass. Unbiased, of small
    variance (J. Schulman, "Approximating KL Divergence", 2020, estimator k3).
    """
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


class Measures:
    """Sums of one set of logits, piece by piece."""

    def __init__(self, stored: dict[str, np.ndarray], context: int):
        self.stored = {k: v[context] for k, v in stored.items() if k != "ids"}
        self.full, self.bound, self.estimate, self.same, self.lost = [], [], [], [], []
        self.squares, self.count, self.largest = 0.0, 0, 0.0

    def add(self, start: int, reference: np.ndarray, ours: np.ndarray) -> None:
        q = log_softmax(ours)
        self.full.append(full_kl(log_softmax(reference), q))
        part = {k: v[start : start + len(reference)] for k, v in self.stored.items()}
        bound, estimate = summary_kl(part, q)
        self.bound.append(bound)
        self.estimate.append(estimate)
        self.same.append(reference.argmax(-1) == ours.argmax(-1))
        self.lost.append(lost_margin(reference, ours))
        diff = (ours - reference).astype(np.float64)
        self.squares += float((diff**2).sum())
        self.count += diff.size
        self.largest = max(self.largest, float(np.abs(diff).max()))


def table(real: Real, parts: list[Measures], label: str) -> None:
    """Prints the measures of one set of logits, contexts together."""
    full, bound, estimate, same, lost = (
        np.concatenate([x for part in parts for x in getattr(part, k)]) for k in ("full", "bound", "estimate", "same", "lost")
    )
    squares, count = sum(p.squares for p in parts), sum(p.count for p in parts)
    print(f"{label}: {full.size} rows in {len(parts)} contexts")
    print(f"  mean KL(reference || ours), full vocabulary   {full.mean():.6f}  (bound {real.bound}, aim {real.aim})")
    print(f"    standard error {full.std() / full.size**0.5:.6f}, largest row {full.max():.4f}")
    print(f"  from the summary: estimate                    {estimate.mean():.6f}")
    print(f"  from the summary: lower bound                 {bound.mean():.6f}")
    print(f"  same top token                                {same.mean() * 100:.2f} %  (at least {real.same_top_token * 100:.1f})")
    print(f"  largest margin of a top token that lost       {lost.max():.4f}")
    print(f"  logits: root mean square of the difference    {(squares / count) ** 0.5:.4f}, largest {max(p.largest for p in parts):.4f}")


def write_chats(name: str, model, tokenizer, ids: np.ndarray, common: dict) -> None:
    """NAME/: some rows in full, and greedy answers to chat prompts."""
    folder = golden.ROOT / name
    logits = all_logits(model, ids)
    tensors = {"ids": ids, "rows": np.array(FULL_ROWS, dtype=np.int64), "logits": logits[FULL_ROWS]}
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
        answer = tokenizer.decode(tokens)
        chats.append({"user": prompt, "prompt": text, "prompt_rows": len(prompt_ids), "free_running_steps": steps, "text": answer})
        print(f"prompt {i}: {steps} safe steps, margins {np.round(gaps, 2).tolist()}\n{answer}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    golden.write_tensors(folder / "logits.safetensors", tensors)
    shapes = {key: list(value.shape) for key, value in tensors.items()}
    fields = {"shapes": shapes, "logits_range": float(np.ptp(logits)), "chats": chats, "safe_margin": SAFE_MARGIN}
    golden.write_json(folder, {**common, **fields})


def write_kl(real: Real, case: str, model, ids: np.ndarray, rows: int, text: str, common: dict) -> None:
    """A case of compared rows: `ids` is `[contexts, tokens]`, of each the last `rows` rows are kept."""
    rng = np.random.default_rng(SEED)
    parts, losses = [], []
    for index, row_ids in enumerate(ids):
        kept = []
        for start, logits in pieces(model, Context(case, index, row_ids, rows)):
            part = summarize(real, logits, rng)
            logp = log_softmax(logits)
            bound, estimate = summary_kl(part, logp)
            assert np.abs(bound).max() < 1e-5 and np.abs(estimate).max() < 1e-9, "the reference is not at distance 0 from itself"
            kept.append(part)
            following = row_ids[len(row_ids) - rows + start + 1 :][: len(logits)]
            losses.append(-logp[np.arange(len(following)), following])
        parts.append({k: np.concatenate([p[k] for p in kept]) for k in kept[0]})
    stacked = {"ids": ids} | {k: np.stack([p[k] for p in parts]) for k in parts[0]}
    folder = golden.ROOT / case
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    golden.write_tensors(folder / "reference.safetensors", stacked)
    golden.write_json(
        folder,
        {
            **common,
            "text": f"{text}, written for this project",
            "contexts": len(ids),
            "tokens": ids.shape[1],
            "rows": rows,
            "top": real.top,
            "rest_samples": real.samples,
            "shapes": {key: list(value.shape) for key, value in stacked.items()},
            "checks": {"mean_kl": real.bound, "mean_kl_aim": real.aim, "same_top_token": real.same_top_token},
            "measured": {
                "mean_rest_mass": float(stacked["rest_mass"].mean()),
                "perplexity": float(np.exp(np.concatenate(losses).mean())),
            },
        },
    )


def write(name: str, path: Path) -> None:
    real = MODELS[name]
    model, tokenizer = load(name, path)
    if tokenizer is None:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    texts = (golden.ROOT / "kl_text.txt").read_text().split("=====\n")
    encoded = [tokenizer(t).input_ids for t in texts]
    assert all(len(e) >= CONTEXT_ROWS for e in encoded)
    ids = np.array([e[:CONTEXT_ROWS] for e in encoded], dtype=np.int64)
    common = {
        "script": "real_models.py",
        "seed": SEED,
        "versions": golden.versions(),
        "model": {"file": path.name, "sha256": real.sha256, "bytes": path.stat().st_size, "licence": real.licence},
        "reference": f"transformers {type(model).__name__}, weights dequantized to f32, eager attention, f32",
    }
    if real.chats:
        write_chats(name, model, tokenizer, ids[0], common)
    write_kl(real, f"{name}-kl", model, ids, CONTEXT_ROWS, "kl_text.txt", common)
    if real.long:
        long_ids = tokenizer((golden.ROOT / "kl_long_text.txt").read_text()).input_ids
        assert len(long_ids) >= LONG_CONTEXT, f"{len(long_ids)} tokens"
        long_ids = np.array([long_ids[:LONG_CONTEXT]], dtype=np.int64)
        write_kl(real, f"{name}-kl-long", model, long_ids, CONTEXT_ROWS, "kl_long_text.txt", common)


def compare(name: str, path: Path, files: list[Path]) -> None:
    """Holds one file per context to the reference; the bound is for the short contexts together."""
    model, _ = load(name, path)
    known = contexts(name)
    assert len(files) == len(known), f"{len(files)} files for {len(known)} contexts"
    by_case: dict[str, list[Measures]] = {}
    for context, file in zip(known, files):
        stored = load_file(golden.ROOT / context.case / "reference.safetensors")
        measures = Measures(stored, context.index)
        with safe_open(file, "np") as ours:
            assert np.array_equal(ours.get_tensor("ids"), context.ids), f"{file}: not the ids of context {context.index} of {context.case}"
            logits = ours.get_slice("logits")
            rows, vocab = logits.get_shape()
            assert rows >= context.rows and vocab == model.config.vocab_size, f"{file}: logits {rows} x {vocab}"
            first = rows - context.rows
            for start, reference in pieces(model, context):
                measures.add(start, reference, logits[first + start : first + start + len(reference)])
        by_case.setdefault(context.case, []).append(measures)
    missed = []
    for case, parts in by_case.items():
        table(MODELS[name], parts, case)
        mean = np.concatenate([x for part in parts for x in part.full]).mean()
        if mean > MODELS[name].bound:
            missed.append(f"{case}: {mean:.6f} over {MODELS[name].bound}")
    assert not missed, missed


def noise(name: str, path: Path) -> None:
    exact, _ = load(name, path)
    rounded, _ = load(name, path)
    for attention, label in ((False, "linear layers"), (True, "linear layers and attention")):
        # The simulated attention knows no window.
        if attention and any(kind == "sliding_attention" for kind in getattr(exact.config, "layer_types", None) or []):
            continue
        round_products(rounded, attention=attention)
        parts = []
        for context in contexts(name):
            stored = load_file(golden.ROOT / context.case / "reference.safetensors")
            measures = Measures(stored, context.index)
            for (start, reference), (_, ours) in zip(pieces(exact, context), pieces(rounded, context)):
                measures.add(start, reference, ours)
            parts.append(measures)
        table(MODELS[name], parts, f"bf16 products in {label}")


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("write", "kl", "noise", "ids", "contexts"):
        verbs.add_parser(verb).add_argument("--name", choices=MODELS, required=True)
    for verb in ("write", "kl", "noise"):
        verbs.choices[verb].add_argument("--model", type=Path, required=True)
    verbs.choices["kl"].add_argument("--ours", type=Path, nargs="+", required=True)
    verbs.choices["ids"].add_argument("--context", type=int, required=True)
    args = parser.parse_args()
    if args.verb == "contexts":
        for index, context in enumerate(contexts(args.name)):
            print(index, len(context.ids), context.rows)
    elif args.verb == "ids":
        print(*contexts(args.name)[args.context].ids.tolist())
    elif args.verb == "write":
        write(args.name, args.model)
    elif args.verb == "kl":
        compare(args.name, args.model, args.ours)
    else:
        noise(args.name, args.model)


if __name__ == "__main__":
    main()
