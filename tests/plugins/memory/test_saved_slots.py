"""A stranger's memory manager that keeps prefixes in a folder, from one engine to the next."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from attrs import frozen
from oracles.models import tiny_model

from augury import hookimpl
from augury.engine.engine import Engine
from augury.errors import ModelFileError
from augury.options import option
from augury.plugins.memory.contiguous import Contiguous
from augury.testing.toys import TINY_TARGET, registry_with_toys
from augury.types import Opened


@frozen
class FolderOptions:
    folder: str = option("", help="where texts and states are kept")


class Folder(Contiguous):
    """Saves what a slot holds when its request ends, and restores the longest text that begins a prompt."""

    name = "folder"
    options_class = FolderOptions

    def __init__(self, *args):
        super().__init__(*args)
        self.errors = []

    def open(self, tokens, *, may_reuse):
        opened = super().open(tokens, may_reuse=may_reuse)
        if opened is None or not may_reuse:
            return opened
        texts = ((path, np.load(path)) for path in Path(self.options.folder).glob("*.npy"))
        known = [(path, text) for path, text in texts if len(text) < len(tokens) and np.array_equal(text, tokens[: len(text)])]
        path, text = max(known, key=lambda each: len(each[1]), default=(None, ()))
        if len(text) <= opened.n_reused:
            return opened
        try:
            self.states.restore(opened.slot, path.with_suffix(".slot").read_bytes())
        except ModelFileError as error:
            self.errors.append(error)
            return opened
        state = self._slots[opened.slot]
        state.tokens[: len(text)], state.n, state.accepted = text, len(text), ()
        return Opened(opened.slot, len(text))

    def end(self, slot):
        super().end(slot)
        state = self._slots[slot]
        n = min((position for _, position in state.accepted), default=state.n)  # so much has been taken in
        path = Path(self.options.folder) / hashlib.sha256(state.tokens[:n]).hexdigest()
        np.save(path.with_suffix(".npy"), state.tokens[:n])
        path.with_suffix(".slot").write_bytes(self.states.save(slot, n))


class Plugin:
    @hookimpl
    def augury_memory_managers(self):
        return [Folder]


HOW = {"ignore_eos": True, "temperature": 0.0, "logprobs": 1}
TOYS = "toy", "toy-recurrent", "toy-recurrent:is_hybrid=true"


def load(backend, folder, **how):
    registry = registry_with_toys()
    registry.register(Plugin(), name="folder")
    model = TINY_TARGET if backend in TOYS else tiny_model("llama-dense")
    memory = f"folder:folder={folder}" if folder else "auto"
    return Engine.load(model, backend=backend, memory=memory, registry=registry, spec_fixed=True, n_ctx=96, threads=2, **how)


def answer(engine, text, n):
    result = engine.generate(text, max_tokens=n, **HOW)
    return list(result.tokens), [piece.logprob for piece in result.pieces], result.stats.n_reused


@pytest.mark.parametrize("cache_types", [("f16", "f16"), ("q8_0", "q4_0")], ids="-".join)
@pytest.mark.parametrize("backend", ["reference", "numba-cpu", *TOYS])
def test_a_prefix_is_taken_up_by_the_next_engine(backend, cache_types, tmp_path):
    how = {"cache_type_k": cache_types[0], "cache_type_v": cache_types[1], "spec_type": "ngram-simple:n=2,m=4"}
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    with load(backend, tmp_path, **how) as engine:
        first, *_ = answer(engine, prompt, 30)
    text = [*prompt, *first, 7]
    with load(backend, None, **how | {"spec_type": "none"}) as engine:
        tokens, logprobs, _ = answer(engine, text, 12)
    with load(backend, tmp_path, slots=2, **how) as engine:
        assert engine.generate([9, 9, 9], max_tokens=4, **HOW).stats.n_reused == 0
        found = answer(engine, text, 12)
    assert found[:2] == (tokens, logprobs)
    assert found[2] >= len(prompt)


@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
def test_what_another_cache_type_has_saved_is_foreign(backend):
    types = {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}
    with load(backend, None, spec_type="none", **types) as one, load(backend, None, spec_type="none") as other:
        one.generate([1, 2, 3], max_tokens=4, **HOW)
        with pytest.raises(ModelFileError, match=r"is damaged, or not of .* f16"):
            other._loader.models[0].restore(0, one._loader.models[0].save(0, 3))


@pytest.mark.parametrize("backend", ["numba-cpu", "toy-recurrent"])
def test_a_damaged_file_changes_nothing(backend, tmp_path):
    with load(backend, tmp_path, spec_type="none") as engine:
        engine.generate([1, 2, 3, 4, 5], max_tokens=8, **HOW)
    (path,) = tmp_path.glob("*.slot")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    text = [*np.load(path.with_suffix(".npy")).tolist(), 1]
    with load(backend, None, spec_type="none") as plain, load(backend, tmp_path, spec_type="none") as engine:
        assert answer(engine, text, 8) == answer(plain, text, 8)
        assert "is damaged, or not of" in str(engine._worker._loop._context.memory.errors[0])
