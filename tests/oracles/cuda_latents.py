"""Latent attention of a token on a device, by every kernel of a cache type, and by float64: for the simulator and for GPUs."""

from __future__ import annotations

import numpy as np
from oracles.models import nmse

from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.attention import ChoiceArgs
from augury.backends.numba_cuda.kernels.cells import CacheArgs
from augury.backends.numba_cuda.kernels.fragments import ATTEND_THREADS, HEADS
from augury.backends.numba_cuda.kernels.heads import TurnArgs
from augury.backends.numba_cuda.kernels.latent import merge_latents
from augury.backends.numba_cuda.kernels.latent_attention import ATTEND_LATENT, MOST_MERGED, LatentArgs
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.reference.cache import TYPES


def error_of_latents(device, kind, n_heads, n_latent, n_turned, position):
    """The error of a token that sees a window of chosen positions, the last three in other cells, up to MOST_MERGED splits.

    What merges what splits gave, and how many heads a block has, is to make no difference.
    """
    rng, dim, window, branch, n_ctx = np.random.default_rng(6), n_latent + n_turned, position - 10, position - 2, position + 20
    head_dim, width, n_splits = n_turned + 16, -(-n_latent // 32) * 32, position // 256 + 1
    assert n_splits <= MOST_MERGED
    path, told = [position + 5, position + 1, position + 10], np.zeros(inputs.SIZE, np.int32)
    told[inputs.N_TOKENS], told[inputs.POSITIONS], told[inputs.BRANCHES], told[inputs.PATHS] = 1, position, branch, inputs.TABLE
    told[inputs.TABLE : inputs.TABLE + 3] = path
    encode, decode = TYPES[kind]
    coded = encode(rng.standard_normal((n_ctx, dim)))
    planes, rows = [np.ascontiguousarray(each) for each in reversed(coded)], decode(*coded)
    absorbed, heads = rng.standard_normal((n_heads, n_latent)), rng.standard_normal((n_heads, head_dim))
    turns, chosen = rng.standard_normal((n_ctx, n_turned // 2, 2)), rng.integers(0, 2, n_ctx).astype(np.int32)
    sinks, shape = np.linspace(-2, 2, n_heads), (n_heads, width)
    floats = {"absorbed": absorbed, "heads": heads, "turns": turns, "factors": np.full(n_ctx, 0.5)}
    arrays = {"inputs": told, **{name: np.float32(array) for name, array in floats.items()}}
    arrays |= {"words": planes[0], "halves": planes[-1], "chosen": chosen}
    arrays |= {
        "parts": np.full(n_heads * n_splits * (n_latent + 2), np.nan, np.float32),
        "counters": np.zeros(n_heads, np.uint32),
    }
    arrays |= {"sinks": np.float32(sinks), "out": np.zeros(shape, np.float32), "bytes": np.zeros(shape, np.int8)}
    arrays |= {
        "scales": np.zeros(shape, np.float32),
        "sums": np.zeros(shape, np.float32),
        "halves_of_out": np.zeros(shape, np.int32),
    }
    at = {name: device.allocate(array.nbytes, name) for name, array in arrays.items()}
    for name, array in arrays.items():
        device.write(at[name], array)

    def told_of(name, dtype):
        array = np.empty(shape, dtype)
        device.read(at[name], array)
        return array

    kernels, found = {n: each for (of, n), each in ATTEND_LATENT.items() if of == kind}, []
    for n, kernel in kernels.items():
        places = {name: at[name] for name in ("absorbed", "heads", "factors", "parts", "sinks", "counters")}
        sizes = {"stride": n_heads * head_dim, "head_dim": head_dim, "n_latent": n_latent, "dim": dim, "length": n_ctx}
        common = {"n_heads": n_heads, "n_splits": n_splits, "window": window, "n": 1, "has_sinks": 1}
        to = TargetArgs(at["out"], at["scales"], at["sums"], at["bytes"], at["halves_of_out"], width if n == 1 else 0, 1, 1)
        given = {"params": LatentArgs(**places, **sizes, **common, has_factors=1, scale=2 / dim), "to": to}
        given |= {"turn": TurnArgs(at["turns"], n_turned // 2), "cache": CacheArgs(at["words"], at["halves"])}
        grid, choice = (n_splits, -(-n_heads // (HEADS * n))), ChoiceArgs(at["chosen"], 1, n_ctx)
        device.launch(Launch.of(kernel, grid, ATTEND_THREADS, at["inputs"], choice=choice, **given))
        found += [] if n > 1 else [told_of("out", np.float32), told_of("bytes", np.int8)]
        given = {"parts": at["parts"], "sinks": at["sinks"], "size": n_latent, "n_merged": 1, "to": to._replace(width=width)}
        device.launch(Launch.of(merge_latents, (width // 32, n_heads), 32, at["inputs"], **common, **given))
        assert np.array_equal(told_of("out", np.float32), found[0]), (kind, n)
        assert np.array_equal(told_of("bytes", np.int8), found[1]), (kind, n)
    cells = np.array([*range(branch), *path])[position + 1 - window :]
    cells = cells[chosen[position + 1 - window : position + 1] != 0]
    low, high = heads[:, -n_turned : -n_turned // 2], heads[:, -n_turned // 2 :]
    cosines, sines = turns[position].T
    queries = np.concatenate([absorbed, low * cosines - high * sines, high * cosines + low * sines], axis=1)
    weights = np.exp(queries @ rows[cells].T / dim)
    total = weights.sum(axis=1, keepdims=True) + np.exp(sinks)[:, None]
    return nmse(found[0][:, :n_latent], weights @ rows[cells, :n_latent] / total)
