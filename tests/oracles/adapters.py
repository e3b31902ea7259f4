"""Adapters (LoRA) of tiny models, and what llama.cpp computes with them.

`adapter(MODEL, 0)` adapts all matrices of products, with rank 5 and alpha 1, and `adapter(MODEL, 1)` every other one, with
rank 3 and no alpha. The data: `adapters.npz` has, of `MODEL`, the logits (11, V) float32 after each of `TOKENS` with the first
adapter at scale 1, and those with both, at `BOTH`: float32 KV cache, token by token.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gguf
import numpy as np
from oracles.models import DATA, tiny_file, weights_of, written

from augury.blocks.adapted import products_of
from augury.loader import plan_of
from augury.registry import Registry

MODELS = ("llama-dense", "gemma3-dense", "gpt2-dense", "qwen35-dense", "gpt-oss-moe")
TOKENS = np.arange(1, 12, dtype=np.int32)
BOTH = (0.5, -0.25)
_SIZES = ((5, 1.0), (3, 0.0))  # rank, alpha


def adapter(model: str, number: int) -> Path:
    """The file of an adapter."""
    return written(f"{model}.adapter-{number}", partial(_write, model, number))


def expected(model: str) -> tuple[np.ndarray, np.ndarray]:
    """llama.cpp's logits (11, V) with the first adapter, and with both."""
    with np.load(DATA / "adapters.npz") as data:
        return data[f"{model}/first"], data[f"{model}/both"]


def _write(model: str, number: int, path: Path) -> None:
    rank, alpha = _SIZES[number]
    with tiny_file(model) as file:
        plan = plan_of(file, Registry.discover())
        writer = gguf.GGUFWriter(str(path), file.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    shapes = plan.shapes()
    for name in sorted(products_of(plan))[:: number + 1]:
        n_out, n_in = shapes[name]
        for side, shape in (("lora_a", (rank, n_in)), ("lora_b", (n_out, rank))):
            writer.add_tensor(f"{name}.{side}", weights_of(f"{name}.{side}", shape, model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
