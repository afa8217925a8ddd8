"""Two independent readings of a llama: f64 from a GGUF file alone, and torch with bf16-rounded products."""

import math

import gguf
import numpy as np
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import llama_gguf


def rope_from_keys(keys: dict, tensors: dict[str, np.ndarray], dim: int, arch: str = "llama") -> tuple[np.ndarray, float]:
    """`(inverse frequencies [dim / 2], factor on cos and sin)` in f64, from GGUF keys as llama.cpp reads them."""
    theta = float(keys[f"{arch}.rope.freq_base"])
    inv = theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    if "rope_freqs.weight" in tensors:
        inv = inv / tensors["rope_freqs.weight"].astype(np.float64)
    kind = keys.get(f"{arch}.rope.scaling.type", "none")
    factor = float(keys.get(f"{arch}.rope.scaling.factor", 1.0))
    if kind == "none":
        return inv, 1.0
    if kind == "linear":
        return inv / factor, 1.0
    assert kind == "yarn", kind
    original = int(keys[f"{arch}.rope.scaling.original_context_length"])
    fast = float(keys.get(f"{arch}.rope.scaling.yarn_beta_fast", 32.0))
    slow = float(keys.get(f"{arch}.rope.scaling.yarn_beta_slow", 1.0))

    def correction(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(correction(fast)), 0)
    high = min(math.ceil(correction(slow)), dim - 1)
    # 1 keeps the frequency (extrapolation), 0 divides it by the factor (interpolation). arXiv:2309.00071, section 3.2.
    keep = 1 - np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    log_multiplier = float(keys.get(f"{arch}.rope.scaling.yarn_log_multiplier", 0.0))

    def mscale(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0

    scale = mscale(1.0) / mscale(log_multiplier) if log_multiplier else mscale(1.0)
    return inv / factor * (1 - keep) + inv * keep, scale


class GgufLlama:
    """f64 forward pass, RoPE on adjacent pairs, from nothing but the bytes of one GGUF file."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        # Token lists are skipped: they are slow to read and play no part.
        self.keys = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("tokenizer.ggml.")}
        stored = llama_gguf.read_tensors(reader)
        self.types = {t.name: t.tensor_type.name for t in reader.tensors}
        self.heads = self.keys["llama.attention.head_count"]
        self.kv_heads = self.keys["llama.attention.head_count_kv"]
        default_dim = self.keys["llama.embedding_length"] // self.heads
        self.head_dim = self.keys.get("llama.attention.key_length", default_dim)
        self.inv_freq, self.scale = rope_from_keys(self.keys, stored, self.head_dim)
        self.w = {name: value.astype(np.float64) for name, value in stored.items()}

    def _linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def _norm(self, x, name):
        eps = self.keys["llama.attention.layer_norm_rms_epsilon"]
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.w[name + ".weight"]

    def _rope(self, x):
        angle = np.arange(x.shape[0])[:, None] * self.inv_freq
        cos, sin = (np.cos(angle) * self.scale)[:, None], (np.sin(angle) * self.scale)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)

    def logits(self, ids) -> np.ndarray:
        """`[rows, vocab]` for a whole sequence."""
        x = self.w["token_embd.weight"][np.asarray(ids)]
        n, group = len(ids), self.heads // self.kv_heads
        mask = np.where(np.tril(np.ones((n, n), dtype=bool)), 0.0, -np.inf)
        for layer in range(self.keys["llama.block_count"]):
            p = f"blk.{layer}."
            y = self._norm(x, p + "attn_norm")
            q = self._rope(self._linear(y, p + "attn_q").reshape(n, self.heads, -1))
            k = self._rope(self._linear(y, p + "attn_k").reshape(n, self.kv_heads, -1)).repeat(group, 1)
            v = self._linear(y, p + "attn_v").reshape(n, self.kv_heads, -1).repeat(group, 1)
            s = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(self.head_dim) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            o = np.einsum("hij,jhd->ihd", s / s.sum(-1, keepdims=True), v).reshape(n, -1)
            x = x + self._linear(o, p + "attn_output")
            y = self._norm(x, p + "ffn_norm")
            gate = self._linear(y, p + "ffn_gate")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * self._linear(y, p + "ffn_up"), p + "ffn_down")
        x = self._norm(x, "output_norm")
        head = self.w.get("output.weight", self.w["token_embd.weight"])
        return x @ head.T


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bf16 (nearest even), kept as f32."""
    return x.to(torch.bfloat16).to(torch.float32)


def _bf16_attention(module, query, key, value, attention_mask, scaling, **_):
    group = query.shape[1] // key.shape[1]
    k, v = (bf16(t).repeat_interleave(group, 1) for t in (key, value))
    scores = bf16(query) @ k.transpose(2, 3) * scaling
    rows, keys = scores.shape[-2:]
    visible = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    scores = scores.masked_fill(~visible, -torch.inf)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = bf16(p) @ v / p.sum(-1, keepdim=True)
    return out.transpose(1, 2).contiguous(), None


def _rounded_experts(module):
    """Forward of a module that holds its experts as `gate_up_proj` and `down_proj`, products rounded."""
    gate_up, down = bf16(module.gate_up_proj.data), bf16(module.down_proj.data)

    def forward(x, chosen, weights):
        out = torch.zeros_like(x)
        for slot in range(chosen.shape[1]):
            gate, up = torch.einsum("nih,nh->ni", gate_up[chosen[:, slot]], bf16(x)).chunk(2, dim=-1)
            inner = bf16(module.act_fn(gate) * up)
            out += weights[:, slot, None] * torch.einsum("nhi,ni->nh", down[chosen[:, slot]], inner)
        return out

    return forward


def round_products(model, attention: bool = True) -> None:
    """Makes a torch model multiply bf16-rounded operands with f32 sums: what 16-bit and block formats may cost.

    With `attention`, also q, k, v and the unnormalized probabilities are rounded. Routers stay exact: their weights are f32 in every file.
    """
    for module in model.modules():
        if hasattr(module, "gate_up_proj") and isinstance(module.gate_up_proj, torch.nn.Parameter):
            module.forward = _rounded_experts(module)
        if isinstance(module, torch.nn.Linear):
            rounded = bf16(module.weight.data)  # a copy: a tied embedding keeps its own values
            bias = module.bias
            module.forward = lambda x, w=rounded, b=bias: torch.nn.functional.linear(bf16(x), w, b)
    if attention:
        ALL_ATTENTION_FUNCTIONS.register("bf16_products", _bf16_attention)
        model.config._attn_implementation = "bf16_products"
