"""Tiny random models of every architecture and config dialect: weights, GGUF twins and reference logits from `transformers` in f32.

    python tiny_models.py                    write every case beside this file
    python tiny_models.py tiny-gemma3 ...    write these cases only
    python tiny_models.py --find-seeds ...   print the first seed of each case whose greedy tokens are decisive
"""

import argparse
import json
import math
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from safetensors.torch import load_file, save_file

import case as golden
import llama_gguf
import model_gguf
from decoder import GgufDecoder
from oracle import round_products
from reference import (
    BF16_STEPS,
    DISTINCT,
    END,
    F32_MARGIN,
    F32_NOISE,
    F32_TOLERANCE,
    GREEDY,
    bf16_bound,
    chosen_rows,
    margins,
    run,
)

# Two scores that decide which expert a row goes to are at least this far apart: f32 noise cannot swap them.
ROUTER_GAP = 2e-4
MAX_POSITIONS = 512

# Architecture, as the tests name it -> (config, model, model that holds it nested beside a vision tower).
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", None),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", None),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", None),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", ("Gemma3Config", "Gemma3ForConditionalGeneration")),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", None),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", None),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", ("Qwen3_5Config", "Qwen3_5ForConditionalGeneration")),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", ("Qwen3_5MoeConfig", "Qwen3_5MoeForConditionalGeneration")),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", None),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", None),
}
# The smallest vision towers that the nested configs take. No test reads them: a text model has to pass them by.
SIGLIP = dict(hidden_size=4, intermediate_size=6, num_hidden_layers=1, num_attention_heads=1, image_size=4, patch_size=2)
QWEN_VISION = dict(depth=1, hidden_size=8, intermediate_size=6, num_heads=2, patch_size=2, temporal_patch_size=1, num_position_embeddings=4)


@dataclass
class Case:
    """One folder. Weights, prompt and everything random follow from `seed` and the name."""

    name: str
    arch: str
    seed: int
    rows: int
    config: dict
    dialect: str = "new"  # `rope_parameters`, `layer_types`; "old" has what files had before transformers 5
    experts: str = "each"  # one tensor per expert and projection, as saved; "fused": as held in memory
    nested: bool = False
    shards: int = 1
    weights: Q = Q.F32
    files: str = "both"  # or "folder" (no GGUF form exists or is kept), or "gguf"
    options: dict = field(default_factory=dict)  # arguments of the reference's forward pass

    @property
    def exact(self) -> bool:
        return self.weights == Q.F32

    @property
    def torch_dtype(self) -> torch.dtype:
        return {Q.F16: torch.float16, Q.BF16: torch.bfloat16}.get(self.weights, torch.float32)


def shape(hidden, inter, layers, heads, kv_heads, vocab, **more) -> dict:
    """The fields that every config has."""
    fields = dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads)
    fields |= dict(num_key_value_heads=kv_heads, vocab_size=vocab)
    return fields | ({} if inter is None else {"intermediate_size": inter}) | more


def experts(count, used, inter, **more) -> dict:
    return dict(num_experts=count, num_experts_per_tok=used, moe_intermediate_size=inter, **more)


def delta(key_heads, value_heads, key_dim, value_dim, taps, interval, layers) -> dict:
    kinds = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)]
    return dict(
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=key_dim,
        linear_value_head_dim=value_dim,
        linear_conv_kernel_dim=taps,
        layer_types=kinds,
    )


def windows(pattern, layers, window, **more) -> dict:
    kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]
    return dict(layer_types=kinds, sliding_window=window, **more)


def two_ropes(full_theta, sliding_theta, **scaling) -> dict:
    full = {"rope_type": "default", "rope_theta": full_theta} | scaling
    return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": sliding_theta}}


def rope(theta=10000.0, kind="default", **more) -> dict:
    return {"rope_type": kind, "rope_theta": theta, **more}


LINEAR8 = dict(rope_type="linear", factor=8.0)
YARN = rope(1e6, "yarn", factor=4.0, original_max_position_embeddings=64)

CASES = [
    Case("tiny-qwen3", "qwen3", 3, 313, shape(36, 52, 2, 3, 1, 131, head_dim=20, tie_word_embeddings=True, rope_parameters=rope())),
    Case("tiny-qwen3-old", "qwen3", 1, 200, shape(42, 50, 2, 4, 2, 149, head_dim=14, rope_parameters=YARN), dialect="old"),
    Case("tiny-qwen3-sharded", "qwen3", 4, 130, shape(40, 36, 2, 5, 5, 113, head_dim=12, rope_parameters=rope(5e5)), shards=3, files="folder"),
    Case("tiny-qwen3-bf16", "qwen3", 67, 65, shape(54, 81, 2, 3, 3, 157, head_dim=18, rope_parameters=rope()), weights=Q.BF16),
    Case("tiny-gemma3", "gemma3", 2, 313, shape(24, 40, 7, 3, 1, 131, head_dim=14, query_pre_attn_scalar=14) | windows(6, 7, 37, rope_parameters=two_ropes(1e6, 1e4, **LINEAR8))),
    Case("tiny-gemma3-old", "gemma3", 8, 200, shape(30, 44, 4, 2, 2, 149, head_dim=22, query_pre_attn_scalar=22) | windows(3, 4, 64, rope_parameters=two_ropes(2e5, 3e4, **LINEAR8)), dialect="old"),
    Case("tiny-gemma3-softcap", "gemma3", 209, 313, shape(32, 44, 3, 4, 2, 113, head_dim=10, query_pre_attn_scalar=10) | windows(2, 3, 100, attn_logit_softcapping=5.0, final_logit_softcapping=6.0), options={"softcap": 5.0}),
    Case("tiny-gemma3-nested", "gemma3", 7, 130, shape(24, 36, 7, 3, 1, 127, head_dim=10, query_pre_attn_scalar=17) | windows(6, 7, 50, rope_parameters=two_ropes(1e6, 1e4, **LINEAR8)), dialect="old", nested=True, files="folder"),
    Case("tiny-qwen2", "qwen2", 3, 313, shape(42, 58, 2, 3, 1, 139, tie_word_embeddings=True, rope_parameters=rope())),
    Case("tiny-qwen2-old", "qwen2", 3, 130, shape(40, 54, 2, 4, 2, 131, rope_parameters=rope(1e6)), dialect="old"),
    Case("tiny-qwen2-f16", "qwen2", 4, 64, shape(54, 70, 2, 3, 1, 151, rope_parameters=rope()), weights=Q.F16),
    Case("tiny-qwen3_moe", "qwen3_moe", 2, 313, shape(30, 40, 2, 3, 1, 121, head_dim=18, norm_topk_prob=True, rope_parameters=rope()) | experts(10, 3, 22)),
    Case("tiny-qwen3_moe-fused", "qwen3_moe", 2, 7, shape(22, 30, 2, 2, 1, 109, head_dim=12, norm_topk_prob=True, tie_word_embeddings=True, rope_parameters=rope()) | experts(24, 5, 10), experts="fused"),
    Case("tiny-qwen3_moe-old", "qwen3_moe", 3, 130, shape(30, 38, 4, 3, 3, 127, norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[3], rope_parameters=rope(1e6)) | experts(7, 3, 18), dialect="old", files="folder"),
    Case("tiny-qwen3_moe-q8_0", "qwen3_moe", 18, 65, shape(64, 64, 1, 3, 1, 160, head_dim=32, norm_topk_prob=True, rope_parameters=rope()) | experts(6, 2, 32), weights=Q.Q8_0, files="gguf"),
    Case("tiny-qwen3_next", "qwen3_next", 3, 313, shape(30, 36, 4, 3, 1, 131, head_dim=24, rope_parameters=rope(partial_rotary_factor=0.25)) | delta(2, 4, 10, 10, 4, 4, 4) | experts(8, 3, 10, shared_expert_intermediate_size=14)),
    Case("tiny-qwen3_next-old", "qwen3_next", 1, 200, shape(36, 44, 4, 2, 2, 127, head_dim=20, tie_word_embeddings=True, rope_parameters=rope(1e7, partial_rotary_factor=0.5)) | delta(2, 6, 6, 9, 3, 2, 4) | experts(0, 0, 8), dialect="old", files="folder"),
    Case("tiny-qwen3_next-fused", "qwen3_next", 4, 70, shape(30, 34, 3, 3, 1, 113, head_dim=16, norm_topk_prob=False, mlp_only_layers=[1], rope_parameters=rope(partial_rotary_factor=0.25)) | delta(3, 3, 12, 8, 4, 3, 3) | experts(9, 4, 8, shared_expert_intermediate_size=6), experts="fused", files="folder"),
    Case("tiny-qwen3_5", "qwen3_5", 1, 313, shape(36, 48, 4, 3, 1, 131, head_dim=24, tie_word_embeddings=True, rope_parameters=rope(partial_rotary_factor=0.25, mrope_section=[1, 1, 1], mrope_interleaved=True)) | delta(2, 6, 8, 8, 4, 4, 4)),
    Case("tiny-qwen3_5-nested", "qwen3_5", 8, 70, shape(30, 36, 2, 2, 1, 127, head_dim=16, rope_parameters=rope(1e7, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)) | delta(2, 4, 10, 6, 4, 2, 2), nested=True, files="folder"),
    Case("tiny-qwen3_5_moe", "qwen3_5_moe", 1, 130, shape(30, None, 4, 3, 1, 121, head_dim=16, rope_parameters=rope(partial_rotary_factor=0.25)) | delta(2, 4, 8, 8, 4, 4, 4) | experts(7, 3, 10, shared_expert_intermediate_size=12)),
    Case("tiny-qwen3_5_moe-fused", "qwen3_5_moe", 3, 5, shape(26, None, 2, 2, 1, 109, head_dim=12, tie_word_embeddings=True, rope_parameters=rope(partial_rotary_factor=0.5)) | delta(1, 3, 6, 10, 2, 2, 2) | experts(20, 4, 8, shared_expert_intermediate_size=10), experts="fused", files="folder"),
    Case("tiny-llama", "llama", 4, 130, shape(42, 50, 2, 3, 1, 131, rope_parameters=rope(5e5)), files="folder"),
    Case("tiny-llama-old", "llama", 8, 200, shape(40, 54, 2, 5, 5, 127, tie_word_embeddings=True, rope_parameters=rope(kind="linear", factor=4.0)), dialect="old", files="folder"),
    Case("tiny-olmo2", "olmo2", 7, 130, shape(42, 50, 2, 3, 1, 127, rope_parameters=rope(5e5), pad_token_id=None)),
    Case("tiny-phi3", "phi3", 2, 130, shape(60, 44, 2, 3, 1, 113, rope_parameters=rope(partial_rotary_factor=0.5), pad_token_id=None)),
]


def make_config(c: Case):
    fields = dict(max_position_embeddings=MAX_POSITIONS, bos_token_id=1, eos_token_id=END, dtype="float32")
    if c.arch == "phi3":
        fields["original_max_position_embeddings"] = MAX_POSITIONS
    fields = json.loads(json.dumps(fields | c.config))
    name, _, nested = CLASSES[c.arch]
    config = getattr(transformers, name)(**fields)
    if c.nested:
        vision = SIGLIP if c.arch == "gemma3" else QWEN_VISION | {"out_hidden_size": c.config["hidden_size"]}
        more = {"mm_tokens_per_image": 1} if c.arch == "gemma3" else {}
        tied = {"tie_word_embeddings": config.tie_word_embeddings}
        config = getattr(transformers, nested[0])(text_config=config.to_dict(), vision_config=vision, **more, **tied)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


def text_config(config):
    return getattr(config, "text_config", config)


def text_name(name: str) -> str:
    """Name of a text model's tensor without what nests it."""
    return name.replace("model.language_model.", "model.")


def draw(name: str, dims: tuple[int, ...], rng, c: Case, zero_centred: bool) -> np.ndarray:
    """A tensor's random values. Spreads are far above a trained model's, so that attention is peaked and the logits decisive."""
    gain = 1.3 if c.exact else 0.9
    normal = rng.standard_normal(dims)
    if name.endswith("_norm.weight") and "self_attn" in name:
        low, high = (1.0, 2.0) if c.exact else (0.5, 1.1)
        values = rng.uniform(low, high, dims) - zero_centred
    elif name.endswith("norm.weight"):
        gated = name.endswith("linear_attn.norm.weight")
        values = rng.uniform(0.6, 1.6, dims) - (zero_centred and not gated)
    elif name.endswith("embed_tokens.weight") or name == "lm_head.weight":
        # Gemma scales its embedding up and ties the head to it: a smaller one keeps the last token from naming the next.
        values = normal * (0.12 if c.arch == "gemma3" else 0.3)
    elif name.endswith(".A_log"):
        # Memories from a few rows to thousands.
        values = rng.uniform(math.log(0.02), math.log(4.0), dims)
    elif name.endswith(".dt_bias"):
        values = normal - 2
    elif name.endswith("conv1d.weight"):
        values = normal * 0.6
    elif name.endswith(".bias"):
        values = normal * 0.4
    elif name.endswith("mlp.gate.weight"):
        values = normal * 2.0 * dims[-1] ** -0.5
    else:
        values = normal * gain * dims[-1] ** -0.5
    return values.astype(np.float32)


def stored_type(c: Case, name: str, dims: tuple[int, ...]) -> Q:
    """Type of a tensor on disk: 16-bit folders hold nothing but 16 bits, block formats no vectors and no router."""
    if c.weights in (Q.F16, Q.BF16):
        return c.weights
    block = c.weights != Q.F32 and len(dims) > 1 and not name.endswith("mlp.gate.weight")
    return c.weights if block else Q.F32


def build(c: Case):
    """Everything that a case's seed determines: model with weights that its files represent exactly, and prompt ids."""
    config = make_config(c)
    _, plain, nested = CLASSES[c.arch]
    model = getattr(transformers, nested[1] if c.nested else plain)(config).eval()
    rng = np.random.default_rng([c.seed, zlib.crc32(c.name.encode())])
    zero_centred = text_config(config).model_type in model_gguf.ZERO_CENTRED
    state = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and text_config(config).tie_word_embeddings:
            continue
        values = draw(name, tuple(value.shape), rng, c, zero_centred)
        kind = stored_type(c, name, values.shape)
        state[name] = torch.from_numpy(values if kind == Q.F32 else model_gguf.through(values, kind))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing in ([], ["lm_head.weight"]), (missing, unexpected)
    model.tie_weights()
    ids = rng.integers(3, text_config(config).vocab_size, c.rows).tolist()
    return config, model, state, ids


def watch_routers(model) -> Callable[[], float]:
    """Returns what tells the smallest distance between the last score that was chosen and the first that was not."""
    gaps = [math.inf]

    def look(module, _, out):
        top = out[0].topk(module.top_k + 1, dim=-1).values
        gaps.append(float((top[..., -2] - top[..., -1]).min()))

    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter") and module.top_k < module.num_experts:
            module.register_forward_hook(look)
    return lambda: min(gaps)


@torch.no_grad()
def rounding_error(c: Case, ids: list[int], greedy: np.ndarray, logits: np.ndarray) -> float:
    """Largest change of a logit where products are rounded to bf16, relative to the range of the prompt's logits."""
    rounded = build(c)[1]
    round_products(rounded)
    full = torch.tensor([ids + greedy.tolist()[:-1]])
    return float((rounded(full, use_cache=False).logits[0] - torch.from_numpy(logits)).abs().max()) / float(np.ptp(logits[: c.rows]))


def decisive(c: Case) -> tuple[bool, str]:
    """Whether the results of this seed are safe to compare: clear margins and routes, no end token, not one token over and over."""
    _, model, _, ids = build(c)
    router_gap = watch_routers(model)
    logits, tokens = run(model, ids, GREEDY, **c.options)
    gaps = margins(logits[len(ids) - 1 :])
    steps, floor = GREEDY, 1.5 * F32_MARGIN
    if not c.exact:
        tolerance, steps = bf16_bound(rounding_error(c, ids, tokens, logits), gaps)
        if steps < BF16_STEPS:
            return False, f"{steps} steps at tolerance {tolerance}"
        floor = tolerance
    gap = gaps[:steps].min()
    distinct = len(set(tokens[:steps].tolist()))
    # Where products are rounded, a row may well go to another expert; what that costs is in the bound.
    routes = router_gap() > ROUTER_GAP or not c.exact
    good = gap > floor and END not in tokens and distinct >= DISTINCT and routes
    return bool(good), f"gap {gap:.5f}, {distinct} distinct, router gap {router_gap():.1e}"


def old_dialect(fields: dict, c: Case) -> dict:
    """`config.json` as files had it before transformers 5."""
    fields = dict(fields)
    scaling = dict(fields.pop("rope_parameters"))
    kinds = fields.pop("layer_types", None)
    fields["torch_dtype"] = fields.pop("dtype", "float32")
    fields.pop("transformers_version", None)
    fields.pop("_sliding_window_pattern", None)
    if "full_attention" in scaling:
        full, sliding = scaling["full_attention"], scaling["sliding_attention"]
        fields["rope_local_base_freq"] = sliding["rope_theta"]
        fields["sliding_window_pattern"] = kinds.index("full_attention") + 1
        scaling = dict(full)
    elif kinds and "linear_attention" in kinds:
        fields["full_attention_interval"] = kinds.index("full_attention") + 1
    fields["rope_theta"] = scaling.pop("rope_theta")
    if "partial_rotary_factor" in scaling:
        fields["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    kind = scaling.pop("rope_type")
    # `type` is how the field was called at first; both names are found in files.
    key = "type" if c.arch in ("qwen3", "llama") else "rope_type"
    fields["rope_scaling"] = {key: kind, **scaling} if kind != "default" else None
    if "num_local_experts" in fields:
        fields["num_experts"] = fields.pop("num_local_experts")
    if c.arch == "llama":
        fields["pretraining_tp"] = 1
    return dict(sorted(fields.items()))


def rewrite_config(c: Case, folder: Path) -> None:
    """Turns the `config.json` that transformers wrote into the case's dialect."""
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    if c.dialect == "old":
        if c.nested:
            text = old_dialect(fields["text_config"], c)
            # Released files leave out what is a default; those that a reader has to know are what this case is for.
            default = getattr(transformers, CLASSES[c.arch][0])().to_dict()
            text = {k: v for k, v in text.items() if k == "model_type" or k not in default or default[k] != v}
            drop = ("torch_dtype", "rope_theta", "rope_local_base_freq", "sliding_window_pattern")
            fields["text_config"] = {k: v for k, v in text.items() if k not in drop}
            fields["torch_dtype"] = fields.pop("dtype")
            del fields["transformers_version"]
        else:
            fields = old_dialect(fields, c)
    path.write_text(json.dumps(fields, indent=2) + "\n")


def fuse_experts(folder: Path) -> None:
    """Rewrites `model.safetensors` with the experts of a layer in two tensors, as transformers 5 holds them."""
    path = folder / "model.safetensors"
    out, parts = {}, {}
    for name, value in load_file(path).items():
        if found := re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name):
            parts.setdefault(found[1], {})[int(found[2]), found[3]] = value
        else:
            out[name] = value
    assert parts, "no experts to fuse"
    for prefix, each in parts.items():
        count = 1 + max(e for e, _ in each)
        stacked = {part: torch.stack([each[e, part] for e in range(count)]) for part in ("gate", "up", "down")}
        out[f"{prefix}.gate_up_proj"] = torch.cat([stacked["gate"], stacked["up"]], dim=1).contiguous()
        out[f"{prefix}.down_proj"] = stacked["down"].contiguous()
    save_file(out, path, metadata={"format": "pt"})


def save(c: Case, model, folder: Path) -> None:
    """The folder form: what `save_pretrained` writes, in the case's dialect and form of experts."""
    if c.torch_dtype != torch.float32:
        model = build(c)[1].to(c.torch_dtype)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=math.ceil(size / c.shards) + 1000 if c.shards > 1 else "5GB")
    rewrite_config(c, folder)
    if c.experts == "fused":
        fuse_experts(folder)
    index = folder / "model.safetensors.index.json"
    assert index.is_file() == (c.shards > 1)


def check_gguf(c: Case, path: Path, config, state: dict[str, np.ndarray]) -> dict[str, str]:
    """The file holds exactly the case's values; returns the types of its tensors."""
    reader = gguf.GGUFReader(path)
    back, want = llama_gguf.read_tensors(reader), model_gguf.tensors(config, state)
    assert back.keys() == want.keys(), back.keys() ^ want.keys()
    for name, value in want.items():
        assert np.array_equal(back[name], value), f"{c.name}: {name} changed in the file"
    return {t.name: t.tensor_type.name for t in reader.tensors}


def inverse_frequencies(config, model) -> dict[str, np.ndarray]:
    decoder = getattr(model.model, "language_model", model.model)
    module = decoder.rotary_emb
    if not hasattr(module, "inv_freq"):
        return {
            "inv_freq": module.full_attention_inv_freq.numpy(),
            "inv_freq_sliding": module.sliding_attention_inv_freq.numpy(),
        }
    return {"inv_freq": module.inv_freq.numpy()}


def write_case(c: Case) -> None:
    folder = golden.ROOT / c.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config, model, state, ids = build(c)
    text = text_config(config)
    frequencies = {k: v.copy() for k, v in inverse_frequencies(config, model).items()}
    router_gap = watch_routers(model)
    logits, greedy = run(model, ids, GREEDY, **c.options)
    span = float(np.ptp(logits[: c.rows]))

    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) if c.files == "gguf" else folder
        save(c, model, home)
        again = type(model).from_pretrained(home, attn_implementation="eager", dtype=torch.float32).eval()
        again.config._experts_implementation = text_config(again.config)._experts_implementation = "eager"
        # Not bit for bit: torch picks its kernels by the alignment of the weights, too.
        same = float(np.abs(run(again, ids, 1, **c.options)[0] - logits[: c.rows]).max()) / span
        assert same < 1e-6, f"{c.name}: the folder does not give the model back ({same:.1e})"

    # An f64 pass that knows only a GGUF file agrees. Where llama.cpp has no form for the model, the file is not kept.
    plain = {text_name(k): v.numpy() for k, v in state.items() if "vision" not in k and "visual" not in k and "multi_modal" not in k}
    with tempfile.TemporaryDirectory() as scratch:
        path = (Path(scratch) if c.files == "folder" else folder) / "model.gguf"
        model_gguf.write(path, text, plain, c.weights, extended=c.files == "folder")
        types = check_gguf(c, path, text, plain)
        twin = GgufDecoder(path)
    exact = twin.logits(ids + greedy.tolist()[:-1])
    noise = float(np.abs(exact - logits).max()) / span
    assert noise < F32_NOISE, f"{c.name}: f32 against f64 differs by {noise:.2e} of the range"
    assert np.array_equal(exact[c.rows - 1 :].argmax(-1), greedy), "f64 picks other greedy tokens"
    np.testing.assert_allclose(frequencies["inv_freq"], twin.rope[0], rtol=2e-6)

    gaps = margins(logits[c.rows - 1 :])
    distinct = len(set(greedy.tolist()))
    error = None
    if c.exact:
        tolerance, steps = F32_TOLERANCE, GREEDY
        assert gaps.min() > F32_MARGIN, f"{c.name}: margin {gaps.min():.2e}: take another seed"
        assert router_gap() > ROUTER_GAP, f"{c.name}: router gap {router_gap():.2e}: take another seed"
    else:
        error = rounding_error(c, ids, greedy, logits)
        tolerance, steps = bf16_bound(error, gaps)
        assert steps >= 16, f"{c.name}: only {steps} decisive greedy steps at tolerance {tolerance}: take another seed"
    assert END not in greedy and distinct >= DISTINCT

    rows = chosen_rows(c.rows)
    tensors = {
        "ids": np.array(ids, dtype=np.int64),
        "rows": np.array(rows, dtype=np.int64),
        "logits": logits[rows],
        "greedy": greedy,
        "greedy_margins": gaps.astype(np.float32),
        **frequencies,
    }
    golden.write_tensors(folder / "logits.safetensors", tensors)
    golden.write_json(
        folder,
        {
            "script": "tiny_models.py",
            "seed": c.seed,
            "versions": golden.versions(),
            "architecture": c.arch,
            "dialect": c.dialect if c.files != "gguf" else None,
            "experts": c.experts if twin.smallest_router_gap < math.inf and c.files != "gguf" else None,
            "nested": c.nested,
            "tied": text.tie_word_embeddings,
            "reference": {"class": type(model).__name__, "config": c.config, "options": c.options},
            "files": sorted(f.name for f in folder.iterdir() if f.name != "case.json"),
            "gguf_tensor_types": None if c.files == "folder" else types,
            "prompt_rows": c.rows,
            "shapes": {name: list(value.shape) for name, value in tensors.items()},
            "checks": {
                "products": "f32" if c.exact else "bf16",
                "logits_range": span,
                "max_diff_of_range": tolerance,
                "max_diff_of_range_f32": F32_TOLERANCE,
                "greedy_steps": steps,
            },
            "measured": {
                "f32_against_f64_of_range": noise,
                "bf16_products_against_f32_of_range": error,
                "smallest_greedy_margin_of_range": float(gaps.min()),
                "smallest_router_gap": router_gap() if router_gap() < math.inf else None,
                "distinct_greedy_tokens": distinct,
            },
        },
    )


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--find-seeds", action="store_true")
    args = parser.parse_args()
    unknown = set(args.cases) - {c.name for c in CASES}
    assert not unknown, f"no such case: {sorted(unknown)}"
    for c in [c for c in CASES if not args.cases or c.name in args.cases]:
        if not args.find_seeds:
            write_case(c)
            continue
        while not (verdict := decisive(c))[0]:
            c.seed += 1
            assert c.seed < 500, f"{c.name}: {verdict}"
        print(f"{c.name}: seed {c.seed} ({verdict[1]})", flush=True)


if __name__ == "__main__":
    main()
