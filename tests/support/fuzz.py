"""Damaged files of every kind that augury reads beside models, and what must become of each.

`KINDS[name](folder)` prepares a file and returns a function that damages it as chance will have it, has it read, and raises
AssertionError unless it was refused in the way foreseen, or did no harm. It says which: "refused" or "harmless".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from oracles.models import tiny_file
from support.damage import mutate, mutate_header

from augury import AuguryError, Engine
from augury.backends.numba_cpu.kernels import jit, simd
from augury.backends.numba_cpu.packed_file import PackedFile
from augury.backends.numba_cpu.packing import PackedLayout
from augury.drafters.ngram.lookup_file import NgramCorpus, NgramPast, read_lookup
from augury.files.models import resolve
from augury.interfaces import Progress
from augury.testing.toys import TINY_DRAFT, TINY_TARGET, registry_with_toys

LOOKUPS = Path(__file__).parents[1] / "data" / "lookup"
N_LOOKUP_VOCAB = 49152


def lookup_file(folder):
    """A file of `ngram-cache`, of texts or of generations: refused by name, or its tokens are of the vocabulary."""
    wholes = [path.read_bytes() for path in sorted(LOOKUPS.glob("*.bin"))]
    path = folder / "lookup.bin"

    def once(rng):
        path.write_bytes(mutate(rng.choice(wholes), rng))
        said, table = _attempt(lambda: read_lookup(path, N_LOOKUP_VOCAB))
        if said is not None:
            assert said.startswith(f"{path}: ")
            return "refused"
        corpus, past = NgramCorpus(table), NgramPast(path, N_LOOKUP_VOCAB).counts
        for start, size in zip(table.starts.tolist(), table.sizes.tolist(), strict=True):
            ngram = table.values[start : start + size].tobytes()
            for found in (past.get(ngram), corpus.get(ngram) if size == 2 else None):
                assert found is None or (0 <= found.leader < N_LOOKUP_VOCAB and found.n_seen > 0)
        return "harmless"

    return once


def packed_file(folder):
    """Packed weights: packed again unless nothing that is used was hit, and right in any case."""
    file = tiny_file("llama-dense-q4_0")
    tensors = {name: tensor for name, tensor in file.tensors.items() if len(tensor.shape) == 2}
    kept = PackedFile(file, tensors, PackedLayout.of(tensors))
    kept.path = folder / "model.packed"
    right = np.random.default_rng(1).integers(0, 256, PackedLayout.of(tensors).n_bytes, dtype=np.uint8)
    packings = []

    def pack(memory):
        packings.append(1)
        memory[:] = right

    kept.matrices(pack, 1, Progress())
    whole = kept.path.read_bytes()

    def once(rng):
        packings.clear()
        kept.path.write_bytes(mutate(whole, rng))
        found = kept.matrices(pack, 1, Progress())
        assert all(np.array_equal(found[span], right[span]) for span in PackedLayout.of(tensors).spans.values())
        return "refused" if packings else "harmless"

    return once


def compiled_kernel(folder):
    """A compiled kernel: never loaded."""
    from numba.core import types
    from numba.core.registry import cpu_target

    class Cache(jit._KernelCache):
        _path = folder / "twice.kernel"

    def twice(x):
        simd.put_i64(x, 2 * simd.get_i64(x))

    kernel = jit.kernel(twice)
    kernel._cache = cache = Cache(twice)
    jit.address(kernel)
    whole = cache._path.read_bytes()
    assert cache.loaded((types.int64,), cpu_target.target_context) is not None

    def once(rng):
        cache._path.write_bytes(mutate(whole, rng))
        assert cache.loaded((types.int64,), cpu_target.target_context) is None
        return "refused"

    return once


def draft_model(folder):
    """A draft model with a damaged header or another vocabulary: refused, or the target's tokens are the same."""
    registry = registry_with_toys()
    whole = resolve(TINY_DRAFT, registry, Progress()).read_bytes()
    n_header = len(whole) - sum(tensor.n_bytes for tensor in _opened(whole, folder).tensors.values())
    path = folder / "draft.gguf"
    how = {"registry": registry, "backend": "toy", "n_ctx": 64}
    ask = {"prompt": [5, 6, 7, 8] * 3, "max_tokens": 20, "seed": 1}
    with Engine.load(TINY_TARGET, spec_type="none", **how) as engine:
        right = engine.generate(**ask).tokens

    def once(rng):
        header = whole[:n_header]
        damaged = _with_other_words(header, rng) if rng.random() < 0.5 else mutate_header(header, rng, len(whole))
        path.write_bytes(damaged + whole[n_header:])
        said, engine = _attempt(
            lambda: Engine.load(TINY_TARGET, spec_type="draft-model", draft_model=path, spec_fixed=True, **how)
        )
        if said is not None:
            assert said.isprintable()
            return "refused"
        with engine:
            assert engine.generate(**ask).tokens == right
        return "harmless"

    return once


def _attempt(what):
    """What was said where it was refused, and what it gives."""
    try:
        return None, what()
    except AuguryError as error:
        return str(error), None


def _with_other_words(header, rng):
    """The header with other letters in the words of its vocabulary, which stays readable where none occurs twice."""
    changed, start = bytearray(header), header.index(b"tokenizer.ggml.tokens") + 40
    letters = [at for at in range(start, header.index(b"tokenizer.ggml.token_type")) if chr(header[at]).isalnum()]
    for at in rng.sample(letters, rng.randint(1, 8)):
        changed[at] = rng.choice([*b"aehinort", *range(0x21, 0x7F)])
    if rng.random() < 0.5:  # two single letters change places
        first, second = rng.sample([at for at in letters if header[at - 8 : at] == b"\1" + bytes(7)], 2)
        changed = bytearray(header)
        changed[first], changed[second] = header[second], header[first]
    return bytes(changed)


def _opened(data, folder):
    from augury.files.gguf import ModelFile

    (folder / "whole.gguf").write_bytes(data)
    return ModelFile.open(folder / "whole.gguf")


KINDS = {each.__name__: each for each in (lookup_file, packed_file, compiled_kernel, draft_model)}
