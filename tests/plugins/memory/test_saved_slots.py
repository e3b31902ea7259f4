"""A stranger's memory manager that keeps prefixes in a folder, from one engine to the next."""

import hashlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from attrs import frozen
from oracles.models import tiny_model
from support.more_toys import registry_with_toys

from augury import hookimpl
from augury.engine.engine import Engine
from augury.errors import ModelFileError
from augury.options import option
from augury.plugins.memory.checkpoints import CheckpointOptions, Checkpoints
from augury.plugins.memory.contiguous import Contiguous
from augury.testing.toys import TINY_TARGET


@frozen
class FolderOptions:
    folder: str = option("", help="where texts and states are kept")


class Saving:
    """Saves what a slot holds when its request ends, and restores the longest text that begins a prompt."""

    options_class = FolderOptions
    errors: ClassVar = []

    def open(self, tokens, *, may_reuse, slot=None):
        opened = super().open(tokens, may_reuse=may_reuse, slot=slot)
        if opened is None or not may_reuse:
            return opened
        texts = ((path, np.load(path)) for path in Path(self.options.folder).glob("*.npy"))
        known = [(path, text) for path, text in texts if len(text) < len(tokens) and np.array_equal(text, tokens[: len(text)])]
        path, text = max(known, key=lambda each: len(each[1]), default=(None, ()))
        if len(text) <= opened.n_reused:
            return opened
        super().end(opened.slot)
        try:
            self.restore(opened.slot, path.with_suffix(".slot").read_bytes())
        except ModelFileError as error:
            self.errors.append(error)
        return super().open(tokens, may_reuse=True)

    def end(self, slot):
        super().end(slot)
        n = self._n_in_place(slot)
        path = Path(self.options.folder) / hashlib.sha256(self._slots[slot].tokens[:n]).hexdigest()
        np.save(path.with_suffix(".npy"), self._slots[slot].tokens[:n])
        path.with_suffix(".slot").write_bytes(self.save(slot))


@frozen
class FolderCheckpointOptions(CheckpointOptions):
    folder: str = option("", help="where texts and states are kept")


class Folder(Saving, Contiguous):
    name = "folder"


class CheckpointFolder(Saving, Checkpoints):
    name = "checkpoint-folder"
    options_class = FolderCheckpointOptions


class Plugin:
    @hookimpl
    def augury_memory_managers(self):
        return [Folder, CheckpointFolder]


HOW = {"ignore_eos": True, "temperature": 0.0, "logprobs": 1}
TOYS = "toy", "toy-recurrent", "toy-recurrent:is_hybrid=true"


def load(backend, folder, **how):
    registry = registry_with_toys()
    registry.register(Plugin(), name="folder")
    model = TINY_TARGET if backend in TOYS else tiny_model("llama-dense")
    kind = "checkpoint-folder" if "recurrent" in backend else "folder"
    memory = f"{kind}:folder={folder}" if folder else "auto"
    return Engine.load(model, backend=backend, memory=memory, registry=registry, spec_fixed=True, n_ctx=96, threads=2, **how)


def answer(engine, text, n):
    result = engine.generate(text, max_tokens=n, **HOW)
    return list(result.tokens), [piece.logprob for piece in result.pieces], result.stats.n_reused


@pytest.mark.sample(4)
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
    types = {"cache_type_k": "f32", "cache_type_v": "f32"}
    with load(backend, None, spec_type="none", **types) as one, load(backend, None, spec_type="none") as other:
        one.generate([1, 2, 3], max_tokens=4, **HOW)
        with pytest.raises(
            ModelFileError, match=r"or of another .* this one \(llama, .*, keys f16, values f16\); load the model as"
        ):
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
        assert "is damaged" in str(Saving.errors.pop())
