"""What every golden case has: pinned versions, a size limit, a JSON file and safetensors files."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).parent
MAX_CASE_BYTES = 1 << 20
PACKAGES = ("transformers", "torch", "gguf", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Versions that wrote the data; refuses to write with others than requirements.txt pins."""
    found = {p: version(p).split("+")[0] for p in PACKAGES}
    pinned = dict(line.split("==") for line in (ROOT / "requirements.txt").read_text().split())
    assert all(pinned[p] == found[p] for p in PACKAGES), f"requirements.txt pins {pinned}, installed are {found}"
    return {"python": platform.python_version(), **found}


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes one safetensors file and reads it back."""
    tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    save_file(tensors, path)
    back = load_file(path)
    assert back.keys() == tensors.keys()
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype and np.array_equal(back[name], value), name


def write_json(folder: Path, fields: dict) -> None:
    """Writes `case.json` and holds the folder to its size limit."""
    text = json.dumps({"case": folder.name, **fields}, indent=2) + "\n"
    (folder / "case.json").write_text(text)
    size = sum(f.stat().st_size for f in folder.iterdir())
    assert size <= MAX_CASE_BYTES, f"{folder.name}: {size} bytes, the limit is {MAX_CASE_BYTES}"
    print(f"{folder.name}: {size:,} bytes")
