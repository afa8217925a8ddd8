#!/usr/bin/env python3
"""Writes the golden blocks beside this file, with the `gguf` package as the judge: `python write.py`.

For each block format, `<TYPE>.blocks` holds stored blocks and `<TYPE>.f32` what `gguf.quants.dequantize` makes of them,
little-endian. Blocks are random bytes; the scales of the first ones are every kind of extreme: zeros of both signs,
denormals, the largest, infinities, NaNs. For each format that the package can quantize, `<TYPE>.quantized` holds its
answer to `values.f32`: rows of 32 that are normal, heavy-tailed, constant, tiny, huge, zero, and full of ties.
"""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, quants

HERE = Path(__file__).parent
SEED = 20250607
# Where the f16 scales of a stored block are, in bytes.
SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [],
}
# As f16 bits: +0, -0, smallest and largest denormal, smallest normal, 1, -1, largest, both infinities, quiet and signalling NaN.
EXTREMES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFD01]
QUANTIZED = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]


def blocks(ty: Type, random: np.random.Generator) -> np.ndarray:
    elements, size = GGML_QUANT_SIZES[ty]
    count = 64 if elements == 32 else 20
    out = random.integers(0, 256, (count, size), dtype=np.uint8)
    for row, bits in enumerate(EXTREMES):
        for i, at in enumerate(SCALES[ty]):
            # Two scales of a block are never the same extreme.
            bits = EXTREMES[(row + 5 * i) % len(EXTREMES)]
            out[row, at : at + 2] = np.array([bits], dtype="<u2").view(np.uint8)
    # Scales of the size that models have.
    for row in range(len(EXTREMES), count - 2):
        for at in SCALES[ty]:
            out[row, at : at + 2] = np.array([random.normal() / 64], dtype="<f2").view(np.uint8)
    if ty == Type.MXFP4:
        out[:8, 0] = [0, 1, 2, 3, 127, 128, 254, 255]
    return out


def values(random: np.random.Generator) -> np.ndarray:
    normal = random.normal(size=(24, 32))
    heavy = random.standard_t(2, size=(16, 32)) * 0.02
    ties = random.integers(-127, 128, (8, 32)) / 2.0
    scaled = random.normal(size=(8, 32)) * 10.0 ** np.arange(-7, 5, 1.5)[:, None]
    constant = np.full((4, 32), 1.0) * np.array([[0.0], [1.0], [-0.37], [1000.0]])
    single = np.zeros((4, 32))
    single[np.arange(4), [0, 5, 16, 31]] = [1.0, -1.0, 0.1, -300.0]
    return np.concatenate([normal, heavy, ties, scaled, constant, single]).astype("<f4")


def main() -> None:
    random = np.random.default_rng(SEED)
    with np.errstate(all="ignore"):
        for ty in SCALES:
            stored = blocks(ty, random)
            (HERE / f"{ty.name}.blocks").write_bytes(stored.tobytes())
            (HERE / f"{ty.name}.f32").write_bytes(quants.dequantize(stored, ty).astype("<f4").tobytes())
        rows = values(random)
        (HERE / "values.f32").write_bytes(rows.tobytes())
        for ty in QUANTIZED:
            (HERE / f"{ty.name}.quantized").write_bytes(quants.quantize(rows, ty).tobytes())
    case = {"seed": SEED, "gguf": gguf_version(), "numpy": np.__version__, "byte_order": "little"}
    (HERE / "case.json").write_text(json.dumps(case, indent=2) + "\n")


def gguf_version() -> str:
    from importlib.metadata import version

    return version(gguf.__name__)


if __name__ == "__main__":
    main()
