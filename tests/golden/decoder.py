"""An f64 forward pass of every architecture but llama, from nothing but the bytes of one GGUF file.

It is the second opinion on a case: its names, row orders, keys and defaults are those that llama.cpp reads
(`src/models/{qwen2,qwen3,qwen3moe,qwen3next,qwen35,qwen35moe,gemma3,olmo2,phi3}.cpp`), not those of the library that wrote the reference.
"""

import math

import gguf
import numpy as np

import llama_gguf
from oracle import rope_from_keys

SANDWICH = ("gemma3", "olmo2")
HYBRID = ("qwen3next", "qwen35", "qwen35moe")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def l2_normalized(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def rotate(x: np.ndarray, inv: np.ndarray, factor: float) -> np.ndarray:
    """RoPE on the first `2 * len(inv)` of each head's elements, pairs half that apart. `x`: `[rows, heads, head_dim]`."""
    half = len(inv)
    angle = np.arange(x.shape[0])[:, None] * inv
    cos, sin = (np.cos(angle) * factor)[:, None], (np.sin(angle) * factor)[:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


class GgufDecoder:
    """`logits(ids)` in f64."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        keys = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("tokenizer.ggml.")}
        self.keys = keys
        self.arch = keys["general.architecture"]
        stored = llama_gguf.read_tensors(reader)
        self.types = {t.name: t.tensor_type.name for t in reader.tensors}
        self.w = {name: value.astype(np.float64) for name, value in stored.items()}
        self.heads, self.kv_heads = self.key("attention.head_count"), self.key("attention.head_count_kv")
        self.hidden = self.key("embedding_length")
        self.head_dim = self.key("attention.key_length", self.hidden // self.heads)
        self.layers = self.key("block_count")
        dim = self.key("rope.dimension_count", self.head_dim)
        self.rope = rope_from_keys(keys, stored, dim, self.arch)
        self.smallest_router_gap = math.inf
        self.rope_sliding = None
        if self.arch == "gemma3":
            theta = self.key("rope.freq_base_swa", 10000.0)
            self.rope_sliding = theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim), 1.0

    def key(self, name: str, *default):
        full = f"{self.arch}.{name}"
        return self.keys.get(full, *default) if default else self.keys[full]

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, x, name):
        eps = self.key("attention.layer_norm_rms_epsilon")
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.w[name + ".weight"]

    def slides(self, layer: int) -> bool:
        if self.arch != "gemma3":
            return False
        period = self.key("attention.sliding_window_pattern", 6)
        return layer % period < period - 1

    def attention(self, x, layer: int):
        p, n, d = f"blk.{layer}.", len(x), self.head_dim
        gate = None
        if p + "attn_qkv.weight" in self.w:
            q, k, v = np.split(self.linear(x, p + "attn_qkv"), [self.heads * d, (self.heads + self.kv_heads) * d], axis=-1)
        else:
            q, k, v = (self.linear(x, p + f"attn_{part}") for part in "qkv")
        if self.arch == "olmo2":
            q, k = self.norm(q, p + "attn_q_norm"), self.norm(k, p + "attn_k_norm")
        if self.arch in HYBRID:
            q, gate = np.split(q.reshape(n, self.heads, 2 * d), 2, axis=-1)
        q, k, v = q.reshape(n, -1, d), k.reshape(n, -1, d), v.reshape(n, -1, d)
        if self.arch != "olmo2" and p + "attn_q_norm.weight" in self.w:
            q, k = self.norm(q, p + "attn_q_norm"), self.norm(k, p + "attn_k_norm")
        rope = self.rope_sliding if self.slides(layer) else self.rope
        q, k = rotate(q, *rope), rotate(k, *rope)
        scale = self.key("attention.scale", d**-0.5)
        group = self.heads // self.kv_heads
        s = np.einsum("ihd,jhd->hij", q, k.repeat(group, 1)) * scale
        if cap := self.key("attn_logit_softcapping", None):
            s = np.tanh(s / cap) * cap
        i, j = np.arange(n)[:, None], np.arange(n)
        visible = j <= i
        if self.slides(layer):
            visible &= i - j < self.key("attention.sliding_window")
        s = np.where(visible, s, -np.inf)
        s = np.exp(s - s.max(-1, keepdims=True))
        out = np.einsum("hij,jhd->ihd", s / s.sum(-1, keepdims=True), v.repeat(group, 1))
        if gate is not None:
            out = out * sigmoid(gate)
        return self.linear(out.reshape(n, -1), p + "attn_output")

    def delta_net(self, x, layer: int):
        """Gated delta rule (arXiv:2412.06464), token by token."""
        p, n = f"blk.{layer}.", len(x)
        key_heads, value_heads = self.key("ssm.group_count"), self.key("ssm.time_step_rank")
        dk, dv = self.key("ssm.state_size"), self.key("ssm.inner_size") // value_heads
        per_key = value_heads // key_heads
        mixed = self.linear(x, p + "attn_qkv")
        z = self.linear(x, p + "attn_gate").reshape(n, value_heads, dv)
        if p + "ssm_ba.weight" in self.w:
            b, a = np.split(self.linear(x, p + "ssm_ba").reshape(n, key_heads, 2 * per_key), 2, axis=-1)
            b, a = b.reshape(n, -1), a.reshape(n, -1)
        else:
            b, a = self.linear(x, p + "ssm_beta"), self.linear(x, p + "ssm_alpha")
        taps = self.w[p + "ssm_conv1d.weight"]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed])
        mixed = silu(sum(padded[j : j + n] * taps[:, j] for j in range(taps.shape[1])))
        q, k, v = np.split(mixed, [key_heads * dk, 2 * key_heads * dk], axis=-1)
        q = l2_normalized(q.reshape(n, key_heads, dk)) * dk**-0.5
        k = l2_normalized(k.reshape(n, key_heads, dk))
        v = v.reshape(n, value_heads, dv)
        heads = np.arange(value_heads)
        of_key = heads // per_key if self.arch == "qwen3next" else heads % key_heads
        q, k = q[:, of_key], k[:, of_key]
        decay = np.exp(self.w[p + "ssm_a"] * np.logaddexp(0, a + self.w[p + "ssm_dt.bias"]))
        beta = sigmoid(b)
        state, out = np.zeros((value_heads, dk, dv)), np.empty((n, value_heads, dv))
        for t in range(n):
            state *= decay[t, :, None, None]
            delta = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t, :, None]
            state += k[t, :, :, None] * delta[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        out = self.norm(out, p + "ssm_norm") * silu(z)
        return self.linear(out.reshape(n, -1), p + "ssm_out")

    def experts(self, x, p: str):
        logits = self.linear(x, p + "ffn_gate_inp")
        used = self.key("expert_used_count")
        order = np.argsort(-logits, axis=-1, kind="stable")
        sorted_logits = np.take_along_axis(logits, order, -1)
        if used < logits.shape[1]:
            gap = float((sorted_logits[:, used - 1] - sorted_logits[:, used]).min())
            self.smallest_router_gap = min(self.smallest_router_gap, gap)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        chosen = order[:, :used]
        weights = np.take_along_axis(weights, chosen, -1)
        if self.key("expert_weights_norm", True):
            weights /= weights.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for slot in range(used):
            gate, up, down = (self.w[f"{p}ffn_{part}_exps.weight"][chosen[:, slot]] for part in ("gate", "up", "down"))
            inner = silu(np.einsum("nih,nh->ni", gate, x)) * np.einsum("nih,nh->ni", up, x)
            out += weights[:, slot, None] * np.einsum("nhi,ni->nh", down, inner)
        if p + "ffn_gate_inp_shexp.weight" in self.w:
            shared = silu(self.linear(x, p + "ffn_gate_shexp")) * self.linear(x, p + "ffn_up_shexp")
            gate = sigmoid(x @ self.w[p + "ffn_gate_inp_shexp.weight"])[:, None]
            out += gate * self.linear(shared, p + "ffn_down_shexp")
        return out

    def feed_forward(self, x, p: str):
        if p + "ffn_gate_inp.weight" in self.w:
            return self.experts(x, p)
        up = self.linear(x, p + "ffn_up")
        if p + "ffn_gate.weight" in self.w:
            gate = self.linear(x, p + "ffn_gate")
        else:
            gate, up = np.split(up, 2, axis=-1)
        act = gelu_tanh if self.arch == "gemma3" else silu
        return self.linear(act(gate) * up, p + "ffn_down")

    def logits(self, ids) -> np.ndarray:
        """`[rows, vocab]` for a whole sequence."""
        x = self.w["token_embd.weight"][np.asarray(ids)]
        if self.arch == "gemma3":
            x = x * math.sqrt(self.hidden)
        before_ffn = "post_attention_norm" if self.arch in HYBRID else "ffn_norm"
        for layer in range(self.layers):
            p = f"blk.{layer}."
            y = x if self.arch == "olmo2" else self.norm(x, p + "attn_norm")
            y = self.delta_net(y, layer) if p + "ssm_a" in self.w else self.attention(y, layer)
            if self.arch in SANDWICH:
                y = self.norm(y, p + "post_attention_norm")
            x = x + y
            y = x if self.arch == "olmo2" else self.norm(x, p + before_ffn)
            y = self.feed_forward(y, p)
            if self.arch in SANDWICH:
                y = self.norm(y, p + "post_ffw_norm")
            x = x + y
        x = self.norm(x, "output_norm")
        logits = x @ self.w.get("output.weight", self.w["token_embd.weight"]).T
        if cap := self.key("final_logit_softcapping", None):
            logits = np.tanh(logits / cap) * cap
        return logits
