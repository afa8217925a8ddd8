"""GGUF twins of tiny models of every architecture but llama: the keys, tensor names and row orders of llama.cpp's converter.

Source of the conventions: llama.cpp, `conversion/{base,qwen,gemma,olmo,phi}.py`. Where a model says something that llama.cpp has
no key for, `extended=True` adds a key of our own; such a file only serves the f64 pass and is not kept.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

from llama_gguf import ALIGNMENT, add_tokenizer

ARCH = {
    # The real twin of a llama is `llama_gguf`'s. Without biases this one computes the same, and needs no permuted rows.
    "llama": "qwen2",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "olmo2": "olmo2",
    "phi3": "phi3",
}
# Norms stored as w, used as 1 + w: the converter adds the 1. The gated norm of the delta-net is not one of them.
ZERO_CENTRED = ("gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

COMMON = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.qkv_proj.weight": "attn_qkv.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.gate_up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
# These have a norm after attention; the name `ffn_norm` is another tensor's, or nobody's.
AFTER_ATTENTION = {"post_attention_layernorm.weight": "post_attention_norm.weight"}
SANDWICH = AFTER_ATTENTION | {
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
PER_ARCH = {"gemma3_text": SANDWICH, "olmo2": SANDWICH} | dict.fromkeys(HYBRID, AFTER_ATTENTION)


def _ungroup(rows: np.ndarray, key_heads: int, parts: list[int]) -> list[np.ndarray]:
    """Splits rows that come as `parts` per key head into one array for each part, heads in order."""
    grouped = rows.reshape(key_heads, sum(parts), -1)
    ends = np.cumsum(parts)
    return [grouped[:, end - n : end].reshape(key_heads * n, -1) for n, end in zip(parts, ends)]


def _tiled(values: np.ndarray, key_heads: int, per_key: int, axis: int = 0) -> np.ndarray:
    """Reorders value heads along `axis` from grouped by key head (Hugging Face) to tiled (GGUF of Qwen3.5)."""
    shape = values.shape
    head = shape[axis] // (key_heads * per_key)
    split = values.reshape(*shape[:axis], key_heads, per_key, head, *shape[axis + 1 :])
    return np.ascontiguousarray(split.swapaxes(axis, axis + 1)).reshape(shape)


def _linear_attention(name: str, value: np.ndarray, config) -> dict[str, np.ndarray]:
    """One tensor of a gated delta-net: its name below `linear_attn.` and value as stored by Hugging Face."""
    kind = config.model_type
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    per_key = value_heads // key_heads
    keys = 2 * key_heads * config.linear_key_head_dim
    if name == "in_proj_qkvz.weight":
        dk, dv = config.linear_key_head_dim, config.linear_value_head_dim
        q, k, v, z = _ungroup(value, key_heads, [dk, dk, per_key * dv, per_key * dv])
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    if name == "A_log":
        name, value = "ssm_a", -np.exp(value)
    elif name == "conv1d.weight":
        name, value = "ssm_conv1d.weight", value[:, 0]
    else:
        name = COMMON[f"linear_attn.{name}"]
    if kind != "qwen3_next" and per_key > 1:
        if name in ("attn_qkv.weight", "ssm_conv1d.weight"):
            value = np.concatenate([value[:keys], _tiled(value[keys:], key_heads, per_key)])
        elif name == "ssm_out.weight":
            value = _tiled(value, key_heads, per_key, axis=1)
        elif name != "ssm_norm.weight":
            value = _tiled(value, key_heads, per_key)
    return {name: value}


def tensors(config, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A state dict, names as in memory, as GGUF tensors in f32."""
    kind = config.model_type
    names = COMMON | PER_ARCH.get(kind, {})
    if kind == "olmo2":
        del names["input_layernorm.weight"]
    out = {}
    for name, value in state.items():
        if kind in ZERO_CENTRED and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            value = value + np.float32(1)
        if name == "lm_head.weight":
            if not config.tie_word_embeddings:
                out["output.weight"] = value
            continue
        name = name.removeprefix("model.")
        if name == "embed_tokens.weight":
            out["token_embd.weight"] = value
        elif name == "norm.weight":
            out["output_norm.weight"] = value
        else:
            _, layer, part = name.split(".", 2)
            if part == "mlp.experts.gate_up_proj":
                half = value.shape[1] // 2
                new = {"ffn_gate_exps.weight": value[:, :half], "ffn_up_exps.weight": value[:, half:]}
            elif part == "mlp.shared_expert_gate.weight":
                new = {"ffn_gate_inp_shexp.weight": value[0]}
            elif part.startswith("linear_attn."):
                new = _linear_attention(part.removeprefix("linear_attn."), value, config)
            else:
                new = {names[part]: value}
            out |= {f"blk.{layer}.{n}": v for n, v in new.items()}
    return {name: np.ascontiguousarray(value) for name, value in out.items()}


def _add_rope(w: gguf.GGUFWriter, config, arch: str) -> None:
    rope = config.rope_parameters
    full = rope.get("full_attention", rope)
    w.add_rope_freq_base(full["rope_theta"])
    if "sliding_attention" in rope:
        w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    kind = full["rope_type"]
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(full["factor"])
    elif kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(full["factor"])
        w.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    else:
        assert kind == "default", kind
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if config.model_type in HYBRID or arch == "phi3":
        w.add_rope_dimension_count(int(head_dim * full.get("partial_rotary_factor", 1.0)))
    if arch == "phi3":
        w.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if arch.startswith("qwen35"):
        w.add_rope_dimension_sections([*full.get("mrope_section", [11, 11, 10]), 0])


def _add_experts(w: gguf.GGUFWriter, config) -> None:
    w.add_expert_count(config.num_experts)
    w.add_expert_used_count(config.num_experts_per_tok)
    w.add_expert_feed_forward_length(config.moe_intermediate_size)
    if hasattr(config, "shared_expert_intermediate_size"):
        w.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _add_delta_net(w: gguf.GGUFWriter, config) -> None:
    w.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    w.add_ssm_state_size(config.linear_key_head_dim)
    w.add_ssm_group_count(config.linear_num_key_heads)
    w.add_ssm_time_step_rank(config.linear_num_value_heads)
    w.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    full = [i + 1 for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
    assert all(end % full[0] == 0 for end in full) and len(full) == len(config.layer_types) // full[0], config.layer_types
    w.add_full_attention_interval(full[0])


def _add_gemma3(w: gguf.GGUFWriter, config) -> None:
    w.add_sliding_window(config.sliding_window)
    period = config.layer_types.index("full_attention") + 1
    if period != 6:
        w.add_sliding_window_pattern(period)
    if config.final_logit_softcapping:
        w.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.attn_logit_softcapping:
        w.add_attn_logit_softcapping(config.attn_logit_softcapping)


def _extend(w: gguf.GGUFWriter, config, arch: str) -> None:
    if arch == "gemma3":
        w.add_attention_scale(config.query_pre_attn_scalar**-0.5)
    if hasattr(config, "norm_topk_prob"):
        w.add_expert_weights_norm(config.norm_topk_prob)


def _expressible(config, state: dict[str, np.ndarray]) -> bool:
    """Whether llama.cpp's keys say all that the config says."""
    if config.model_type == "llama":
        return False
    if config.model_type == "gemma3_text":
        return config.query_pre_attn_scalar == config.head_dim
    if config.model_type in ("qwen3_moe", "qwen3_next"):
        sparse = sum(name.endswith("mlp.gate.weight") for name in state)
        if not config.norm_topk_prob or sparse != config.num_hidden_layers:
            return False
    if config.model_type in HYBRID:
        return config.linear_key_head_dim == config.linear_value_head_dim
    return True


def write(path, config, state: dict[str, np.ndarray], kind: Q = Q.F32, extended: bool = False) -> None:
    """Writes a GGUF v3 file; matrices as `kind`, what llama.cpp keeps in f32 as f32.

    With a block format, `state` must hold values that it represents exactly: `through` gives them.
    """
    assert extended or _expressible(config, state), f"{config.model_type}: no GGUF form"
    arch = ARCH[config.model_type]
    w = gguf.GGUFWriter(path, arch)
    w.add_custom_alignment(ALIGNMENT)
    w.add_name(f"tiny random {arch}")
    w.add_file_type({Q.F32: 0, Q.F16: 1, Q.BF16: 32, Q.Q8_0: 7}[kind])
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    if hasattr(config, "intermediate_size"):
        w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    if getattr(config, "head_dim", None):
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_rope(w, config, arch)
    if hasattr(config, "num_experts"):
        _add_experts(w, config)
    if config.model_type in HYBRID:
        _add_delta_net(w, config)
    if arch == "gemma3":
        _add_gemma3(w, config)
    if arch == "phi3":
        w.add_sliding_window(config.sliding_window or 0)
    if extended:
        _extend(w, config, arch)
    add_tokenizer(w, config.vocab_size)
    for name, value in tensors(config, state).items():
        stored = kind if packs(name, value) else Q.F32
        if stored in (Q.F32, Q.F16):
            w.add_tensor(name, value.astype(np.float32 if stored == Q.F32 else np.float16))
        else:
            w.add_tensor(name, gguf.quantize(value, stored).view(np.uint8), raw_dtype=stored)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def packs(name: str, value: np.ndarray) -> bool:
    """Whether a tensor takes the file's type: not vectors, norms, routers, convolutions."""
    apart = ("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")
    return value.ndim > 1 and not name.endswith(apart)


def through(value: np.ndarray, kind: Q) -> np.ndarray:
    """`value` as a reader of `kind` sees it."""
    return gguf.dequantize(gguf.quantize(value, kind), kind).astype(np.float32)
