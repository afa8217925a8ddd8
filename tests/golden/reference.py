"""What every tiny case is run and judged by: reference logits, greedy tokens, bounds."""

import numpy as np
import torch

GREEDY = 64
# Exact products: the project's bound, and how far below it the reference itself has to be.
F32_TOLERANCE = 2e-4
F32_NOISE = 5e-5
F32_MARGIN = 1e-3
# bf16 products: the bound is this many times the largest error of a simulation, rounded up to 0.1 % of the range.
BF16_HEADROOM = 2.0
# A search for seeds looks at this many greedy steps, with margins above this part of the range.
BF16_STEPS = 24
BF16_MARGIN = 0.011
# The end token of every tiny case: never a greedy token.
END = 2
DISTINCT = 8


@torch.no_grad()
def run(model, ids: list[int], steps: int, **options) -> tuple[np.ndarray, np.ndarray]:
    """Logits `[rows + steps - 1, vocab]` of the prompt and of `steps` greedy tokens, and those tokens."""
    out = model(torch.tensor([ids]), use_cache=True, **options)
    logits, tokens = [out.logits[0]], []
    for _ in range(steps):
        tokens.append(int(logits[-1][-1].argmax()))
        if len(tokens) < steps:
            out = model(torch.tensor([[tokens[-1]]]), cache=out.cache, use_cache=True, **options)
            logits.append(out.logits[0])
    return torch.cat(logits).numpy(), np.array(tokens, dtype=np.int64)


def margins(logits: np.ndarray) -> np.ndarray:
    """Top-1 minus top-2 of each row, relative to the range (largest minus smallest) of that row."""
    ordered = np.sort(logits, axis=-1)
    return (ordered[:, -1] - ordered[:, -2]) / (ordered[:, -1] - ordered[:, 0])


def bf16_bound(error: float, gaps: np.ndarray) -> tuple[float, int]:
    """`(bound of the range, greedy steps that count)` for products that are rounded to bf16."""
    tolerance = float(np.ceil(error * BF16_HEADROOM * 1000) / 1000)
    # A token is safe while its margin exceeds what two logits off by half the bound each could close.
    safe = gaps > tolerance
    return tolerance, len(gaps) if safe.all() else int(safe.argmin())


def chosen_rows(rows: int) -> list[int]:
    """First, last and the rows around KV block borders (multiples of 64)."""
    wanted = [0, 1, 2, 3, 6, 31, 62, 63, 64, 65, 126, 127, 128, 129, 200, 255, 256, 311, 447, 448, 511, 512, 600, 640]
    return sorted({r for r in wanted if r < rows} | {max(rows - 2, 0), rows - 1})
