"""GGUF twins of tiny llamas: the keys, tensor names and Q/K row order of llama.cpp's converter.

Source of the conventions: llama.cpp, `conversion/llama.py` and `conversion/base.py`.
"""

import math

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q

ALIGNMENT = 64  # not the default 32: a reader has to honour `general.alignment`


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorders each head's output rows from rotate-half order (Hugging Face) to pair order (GGUF)."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Inverse of `permute`."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def names(layers: int) -> dict[str, str]:
    """Hugging Face tensor name -> GGUF tensor name, biases included."""
    out = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for layer in range(layers):
        for hf, ours in parts.items():
            for kind in ("weight", "bias"):
                out[f"model.layers.{layer}.{hf}.{kind}"] = f"blk.{layer}.{ours}.{kind}"
    return out


def llama3_factors(theta: float, dim: int, rope: dict) -> np.ndarray:
    """`rope_freqs.weight`: what each frequency is divided by (Llama 3.1 scaling)."""
    original = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    out = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (i / dim)
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def _byte_tokens() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, printable ASCII first."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in kept]
    return [chr(b) for b in kept] + [chr(256 + i) for i in range(len(moved))]


def add_tokenizer(w: gguf.GGUFWriter, vocab: int) -> None:
    """The least a reader can load: three special tokens, one merge, bytes as far as they go, fillers."""
    tokens = ["<unk>", "<s>", "</s>", "th", *_byte_tokens()]
    tokens += [f"<extra_{i}>" for i in range(vocab - len(tokens))]
    special = gguf.TokenType.CONTROL
    types = [special] * 3 + [gguf.TokenType.NORMAL] * (vocab - 3)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens[:vocab])
    w.add_token_types(types)
    w.add_token_merges(["t h"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(False)


def _add_rope(w: gguf.GGUFWriter, config, rope: dict) -> None:
    w.add_rope_dimension_count(config.head_dim)
    w.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(rope["rope_theta"], config.head_dim, rope))
    elif kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "mscale_all_dim" in rope:
            # llama.cpp has no key for `mscale` and takes it as 1 for this architecture.
            assert rope["mscale"] == 1.0
            w.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    else:
        assert kind == "default", kind


def write(path, config, rope: dict, tensors: dict[str, tuple[np.ndarray, Q]], file_type: int) -> None:
    """Writes a GGUF v3 file. `tensors`: GGUF name -> (raw data as stored, type); block formats as u8 rows."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_custom_alignment(ALIGNMENT)
    w.add_name("tiny random llama")
    w.add_file_type(file_type)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_vocab_size(config.vocab_size)
    _add_rope(w, config, rope)
    add_tokenizer(w, config.vocab_size)
    for name, (data, kind) in tensors.items():
        if kind in (Q.F32, Q.F16):
            w.add_tensor(name, data)
        else:
            w.add_tensor(name, data.view(np.uint8), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read_tensors(reader: gguf.GGUFReader) -> dict[str, np.ndarray]:
    """All tensors dequantized to f32, shapes row-major (`[out_features, in_features]`), Q/K still in pair order."""
    out = {}
    for t in reader.tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        out[t.name] = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
    return out


def to_hf(tensors: dict[str, np.ndarray], layers: int, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    """GGUF tensors as a Hugging Face state dict, Q/K back in rotate-half order."""
    out = {}
    for hf, ours in names(layers).items():
        if ours not in tensors:
            continue
        value = tensors[ours]
        if ".attn_q." in ours:
            value = unpermute(value, heads)
        elif ".attn_k." in ours:
            value = unpermute(value, kv_heads)
        out[hf] = torch.from_numpy(np.ascontiguousarray(value))
    return out


# Random blocks of the K formats: `gguf` reads them but cannot quantize to them, and a random model needs no source.


def random_q4_k(rng: np.random.Generator, rows: int, cols: int, std: float) -> np.ndarray:
    """`[rows, cols / 256 * 144]` bytes of Q4_K whose values have about this standard deviation and zero mean."""
    blocks = rows * cols // 256
    scales = rng.integers(24, 64, (blocks, 8))
    # value = d * scale * q - dmin * min, q uniform in 0..16: std of q is 4.61, its mean 7.5; mean scale 43.5.
    d = (std / (43.5 * 4.61) * rng.uniform(0.7, 1.3, blocks)).astype(np.float16)
    dmin = (d.astype(np.float32) * 7.5).astype(np.float16)
    mins = np.clip(scales + rng.integers(-2, 3, (blocks, 8)), 0, 63)
    packed = np.zeros((blocks, 12), dtype=np.uint8)
    packed[:, 0:4] = (scales[:, :4] & 63) | ((scales[:, 4:] >> 4) << 6)
    packed[:, 4:8] = (mins[:, :4] & 63) | ((mins[:, 4:] >> 4) << 6)
    packed[:, 8:12] = (scales[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4)
    quants = rng.integers(0, 256, (blocks, 128)).astype(np.uint8)
    halves = np.stack([d, dmin], axis=1).view(np.uint8)
    return np.concatenate([halves, packed, quants], axis=1).reshape(rows, -1)


def random_q6_k(rng: np.random.Generator, rows: int, cols: int, std: float) -> np.ndarray:
    """`[rows, cols / 256 * 210]` bytes of Q6_K with about this standard deviation; scales of both signs."""
    blocks = rows * cols // 256
    quants = rng.integers(0, 256, (blocks, 192)).astype(np.uint8)
    scales = (rng.integers(30, 120, (blocks, 16)) * rng.choice([-1, 1], (blocks, 16))).astype(np.int8)
    # value = d * scale * (q - 32), q uniform in 0..64: std 18.5; root mean square of the scale about 79.
    d = (std / (79 * 18.5) * rng.uniform(0.7, 1.3, (blocks, 1))).astype(np.float16)
    return np.concatenate([quants, scales.view(np.uint8), d.view(np.uint8)], axis=1).reshape(rows, -1)
