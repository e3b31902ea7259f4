"""PyTorch's files give the tensors that safetensors would, and whatever else their pickles name is refused."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from oracles.published_heads import as_bfloat16, write
from support.head_rig import REGISTRY

from augury.errors import ModelFileError, UnsupportedError
from augury.files.models import open_model
from augury.interfaces import Progress
from augury.plugins.published_heads.folder import Folder

STORAGES = {"f": "FloatStorage", "u": "BFloat16Storage", "i": "LongStorage", "b": "BoolStorage"}


class Named:
    """Stands for a name in a pickle, without the module."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    """Stands for a call of a name."""

    def __init__(self, named, *args):
        self.named, self.args = named, args

    def __reduce__(self):
        return self.named, self.args


class Storage:
    def __init__(self, *pid):
        self.pid = pid


class Pickler(pickle._Pickler):  # the one in Python, as it can write names that do not exist here
    def persistent_id(self, each):
        return each.pid if isinstance(each, Storage) else None

    def save(self, each, save_persistent_id=True):  # noqa: FBT002 - as its parent's
        if isinstance(each, Named):
            self.write(pickle.GLOBAL + f"{each.module}\n{each.name}\n".encode())
            return
        super().save(each, save_persistent_id)

    def save_reduce(self, func, args, *more, **others):
        if isinstance(func, Named):
            self.save(func)
            self.save(args)
            self.write(pickle.REDUCE)
            return
        super().save_reduce(func, args, *more, **others)


def saved(path, tensors, *, compressed=zipfile.ZIP_STORED, first=0, strides=None, further=()):
    """A file as `torch.save` writes it of an OrderedDict of tensors, each in a storage of its own."""
    state, made = OrderedDict(), io.BytesIO()
    with zipfile.ZipFile(path, "w", compressed) as archive:
        for key, (name, each) in enumerate(tensors.items()):
            kind = Named("torch", STORAGES[each.dtype.kind])
            storage = Storage("storage", kind, str(key), "cpu", each.size)
            steps = strides or tuple(step // each.itemsize for step in each.strides)
            args = (storage, first, each.shape, steps, False, OrderedDict())
            state[name] = Call(Named("torch._utils", "_rebuild_tensor_v2"), *args)
            archive.writestr(f"archive/data/{key}", each.tobytes())
        for i, each in enumerate(further):
            state[f"further.{i}"] = each
        Pickler(made, 2).dump(state)
        archive.writestr("archive/data.pkl", made.getvalue())


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(1)
    tensors = {
        "midlayer.fc.weight": np.float32(draw.normal(size=(4, 6))),
        "norm.weight": as_bfloat16(draw.normal(size=(2, 5))),
        "d2t": np.arange(7),
        "t2d": np.arange(9) > 3,
    }
    path = write(tmp_path / "head", {"architectures": ["LlamaForCausalLM"]}, tensors)
    return path, tensors


def test_tensors_are_those_of_safetensors_which_are_read_where_a_folder_has_both(folder):
    path, tensors = folder
    saved(path / "pytorch_model.bin", {name: np.zeros(3, np.float32) for name in tensors})
    right = Folder(path)
    (path / "model-00001-of-00001.safetensors").unlink()
    saved(path / "pytorch_model.bin", tensors)
    found = Folder(path)
    assert found.paths == (path / "pytorch_model.bin",)
    assert sorted(found.names) == ["d2t", "midlayer.fc.weight", "norm.weight"]  # of t2d nothing is wanted
    for name in sorted(found.names):
        one, other = found.take(name), right.take(name)
        assert (one.shape, one.type) == (other.shape, other.type)
        assert np.array_equal(one.data, other.data)


def test_nothing_that_a_pickle_names_is_executed(folder, tmp_path):
    path, tensors = folder
    (path / "model-00001-of-00001.safetensors").unlink()
    mark = tmp_path / "executed"

    def refused(match, kinds=ModelFileError, **how):
        saved(path / "pytorch_model.bin", tensors, **how)
        with pytest.raises(kinds, match=match):
            Folder(path)

    refused(f"names {os.name}.system, which is not", further=[Call(Named(os.name, "system"), f"touch {mark}")])
    refused("names builtins.eval, which is not", further=[Call(Named("builtins", "eval"), f"open({str(mark)!r}, 'w')")])
    refused("names torch._utils._rebuild_parameter", further=[Named("torch._utils", "_rebuild_parameter")])
    refused("names torch.load, which is not", further=[Named("torch", "load")])
    refused("expected tensors by name", further=[3])
    refused("compressed or cut off", compressed=zipfile.ZIP_DEFLATED)
    refused("not contiguous, or not within its bytes", strides=(1, 4))
    refused("not contiguous, or not within its bytes", first=1)
    refused("not contiguous, or not within its bytes", first=-1)
    assert not mark.exists()
    for data in (b"", b"\x80\x02}q\x00.", b"PK\x03\x04" + bytes(40)):
        (path / "pytorch_model.bin").write_bytes(data)
        with pytest.raises(ModelFileError, match=r"no usable file of tensors|is empty"):
            Folder(path)


def test_a_head_in_a_file_of_pytorch_s_is_opened_as_one(folder):
    path, tensors = folder
    (path / "model-00001-of-00001.safetensors").unlink()
    saved(path / "pytorch_model.bin", tensors)
    with pytest.raises(UnsupportedError, match="no head of a known kind"):
        open_model(path, REGISTRY, Progress())
