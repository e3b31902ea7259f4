"""Packed weights that are kept: found again, made anew when anything changed, and never needed."""

import errno
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from oracles.models import altered, tiny_model
from oracles.passes import run_of

from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions, backend, packed_file, weights
from augury.backends.numba_cpu.lowering import Lowering
from augury.backends.numba_cpu.packed_file import PackedFile
from augury.engine.engine import Engine
from augury.errors import CapacityError, ModelFileError
from augury.files.atomic_file import AtomicFile
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.plugins.architectures.llama import Llama
from augury.types import ModelOptions

NAME = "llama-dense-q4_0"
TOKENS = list(range(3, 20))


class Told(Progress):
    """Remembers what was done."""

    def __init__(self):
        self.tasks = []

    def __call__(self, task, done, total):
        self.tasks.append((task, done, total))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of packed files, in which models of any size are kept."""
    monkeypatch.setattr(packed_file, "packed_folder", lambda: tmp_path / "packed")
    monkeypatch.setattr(weights, "WORTH_BYTES", 1)
    return tmp_path / "packed"


@pytest.fixture
def packings(monkeypatch):
    """The names of the tensors that were packed."""
    names, pack_tensor = [], weights.pack_tensor

    def noting(tensor, *rest):
        names.append(tensor.name)
        return pack_tensor(tensor, *rest)

    monkeypatch.setattr(weights, "pack_tensor", noting)
    return names


@pytest.fixture
def path(tmp_path):
    return Path(shutil.copy(tiny_model(NAME), tmp_path / "model.gguf"))


def logits_of(path, **options):
    with ModelFile.open(path) as file:
        model = NumbaCpu(NumbaCpuOptions(**options)).load(
            file, Llama.plans(file)["main"], ModelOptions(n_ctx=64, threads=2), Progress()
        )
    try:
        return model.forward(run_of(TOKENS)).rows().copy()
    finally:
        model.close()


def files_in(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_second_start_packs_nothing_and_computes_the_same_bits(folder, packings, path):
    plain = logits_of(path, keep_weights=False)
    n_matrices = len(packings)
    assert not files_in(folder)
    first, second = logits_of(path), logits_of(path)
    assert len(packings) == 2 * n_matrices > 0
    assert np.array_equal(first, plain)
    assert np.array_equal(second, plain)
    assert [file.suffix for file in files_in(folder)] == [".packed"]


def test_progress_is_told_of_what_is_found_as_of_what_is_packed(folder, path):
    for _ in range(2):
        told = Told()
        with ModelFile.open(path) as file:
            NumbaCpu(NumbaCpuOptions()).load(file, Llama.plans(file)["main"], ModelOptions(n_ctx=64), told).close()
        loaded = [(done, total) for task, done, total in told.tasks if task == "load"]
        assert loaded == sorted(loaded)
        assert loaded[-1][0] == loaded[-1][1] > 0


def test_a_model_of_which_a_byte_was_changed_is_packed_anew(folder, path):
    before, status, content = logits_of(path), path.stat(), bytearray(path.read_bytes())
    with ModelFile.open(path) as file:
        place = content.index(file.tensor("blk.0.ffn_down.weight").data.tobytes())
    content[place + 1] ^= 0x04  # of a scale
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # whoever does this cannot set back the time of doing so
    after = logits_of(path)
    assert not np.array_equal(after, before)
    assert np.array_equal(after, logits_of(path, keep_weights=False))
    assert len(files_in(folder)) == 2


@pytest.mark.parametrize("where", ["the kernels", "what calls them"])
def test_an_edit_of_the_sources_that_pack_makes_another_file(folder, packings, path, tmp_path, monkeypatch, where):
    logits_of(path)
    n_matrices = len(packings)
    if where == "the kernels":
        monkeypatch.setattr(packed_file, "sources_key", lambda: b"edited")
    else:
        edited = tmp_path / "packing.py"
        edited.write_bytes(Path(packed_file.packing.__file__).read_bytes() + b"# edited")
        monkeypatch.setattr(packed_file.packing, "__file__", str(edited))
    logits_of(path)
    assert len(packings) == 2 * n_matrices
    assert len(files_in(folder)) == 2


@pytest.mark.parametrize("place", [0, -1], ids=["a weight", "a checksum"])
def test_a_damaged_file_is_told_of_and_replaced(folder, packings, path, place, caplog):
    right = logits_of(path)
    n_matrices = len(packings)
    (kept,) = files_in(folder)
    content = bytearray(kept.read_bytes())
    content[place] ^= 1
    kept.write_bytes(content)
    assert np.array_equal(logits_of(path), right)
    assert len(packings) == 2 * n_matrices
    assert "checksums are wrong" in caplog.text
    assert np.array_equal(logits_of(path), right)
    assert len(packings) == 2 * n_matrices


def test_a_file_that_was_cut_off_is_told_of_and_replaced(folder, path, caplog):
    right = logits_of(path)
    (kept,) = files_in(folder)
    n_bytes = kept.stat().st_size
    os.truncate(kept, n_bytes - 1)
    assert np.array_equal(logits_of(path), right)
    assert f"{n_bytes - 1} bytes, expected {n_bytes}" in caplog.text
    assert kept.stat().st_size == n_bytes


def test_without_room_on_the_disk_weights_are_packed_into_memory(folder, path, monkeypatch, caplog):
    right = logits_of(path, keep_weights=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    assert np.array_equal(logits_of(path), right)
    assert f"the disk has no room in {folder}: 1 MiB are needed, 0 MiB are free" in caplog.text
    assert not files_in(folder)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [(os, "posix_fallocate", "No space left on device"), (packed_file, "_mapped", "No such device")],
    ids=["full after all", "cannot map files to write"],
)
def test_a_disk_that_fails_leaves_nothing_behind(folder, path, monkeypatch, module, name, message):
    def fail(*_):
        raise OSError(message)

    right = logits_of(path, keep_weights=False)
    monkeypatch.setattr(module, name, fail)
    assert np.array_equal(logits_of(path), right)
    assert not files_in(folder)


def test_a_folder_that_cannot_be_made_is_no_obstacle(folder, path):
    right = logits_of(path, keep_weights=False)
    folder.write_text("a file stands in the way")
    assert np.array_equal(logits_of(path), right)


def test_a_load_that_fails_leaves_nothing_behind(folder, path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "prepare", fail)
    with pytest.raises(KeyboardInterrupt):
        logits_of(path)
    assert not files_in(folder)


@pytest.fixture
def little_memory(path, monkeypatch):
    """A machine that has memory for what slots keep, but not for the weights as well."""
    with ModelFile.open(path) as file:
        lowering = Lowering(Llama.plans(file)["main"], ModelOptions(n_ctx=64))
    monkeypatch.setattr(backend, "n_bytes_of_machine", lambda: lowering.state_bytes + 1000)


@pytest.mark.parametrize("keep_weights", [True, False])
def test_weights_larger_than_memory_are_mapped_and_that_is_said(folder, packings, path, request, caplog, keep_weights):
    right = logits_of(path, keep_weights=False)
    n_matrices = len(packings)
    request.getfixturevalue("little_memory")
    for _ in range(2):
        assert np.array_equal(logits_of(path, keep_weights=keep_weights), right)
        assert "weights do not fit into memory and are read from disk as they are needed" in caplog.text
        caplog.clear()
    assert len(packings) == 2 * n_matrices
    assert len(files_in(folder)) == 1


@pytest.mark.usefixtures("folder", "little_memory")
def test_weights_larger_than_memory_are_on_the_disk_before_they_have_a_name_and_not_read_at_the_next_start(path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()) or fsync(number))
    logits_of(path)
    assert [name.suffix for name in synced if ".packed" in name.name] == [".part"]
    monkeypatch.setattr(PackedFile, "_checksums", None)
    logits_of(path)


@pytest.mark.usefixtures("little_memory")
def test_weights_larger_than_memory_and_disk_are_refused(folder, packings, path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(CapacityError, match=f"of weights do not fit into memory.* cannot be kept in {folder}: .*; make room"):
        logits_of(path)
    assert not packings
    assert not files_in(folder)


@pytest.mark.usefixtures("little_memory", "folder")
def test_weights_larger_than_memory_of_no_file_are_refused(path):
    with ModelFile.open(path) as file:
        options = ModelOptions(n_ctx=64)
        with pytest.raises(CapacityError, match=r"weights do not fit into .* of memory; take a smaller model"):
            NumbaCpu(NumbaCpuOptions()).load(altered(file), Llama.plans(file)["main"], options, Progress())


def test_small_models_are_not_kept(folder, path, monkeypatch):
    monkeypatch.setattr(weights, "WORTH_BYTES", path.stat().st_size + 1)
    logits_of(path)
    assert not files_in(folder)


def test_the_four_files_used_last_stay(folder, packings, path, tmp_path):
    models = [shutil.copy(path, tmp_path / f"{number}.gguf") for number in range(5)]
    for model in [*models[:4], models[0], models[4]]:  # the first is used again before the fifth comes
        logits_of(model)
        time.sleep(0.01)  # the times of files are told apart
    assert len(files_in(folder)) == 4
    n_matrices = len(packings) // 5
    logits_of(models[0])
    assert len(packings) == 5 * n_matrices
    logits_of(models[1])
    assert len(packings) == 6 * n_matrices


def test_of_starts_at_the_same_time_one_packs_and_the_others_use_it(folder, packings, path):
    right = logits_of(path, keep_weights=False)
    n_matrices = len(packings)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(logits_of, [path] * 8))
    assert all(np.array_equal(logits, right) for logits in found)
    assert len(files_in(folder)) == 1
    assert len(packings) == 2 * n_matrices


def test_a_start_that_waits_for_another_to_pack_shares_its_compiling_first(folder, path, monkeypatch):
    right, steps = logits_of(path), []
    (packed,) = files_in(folder)
    packed.unlink()
    with ExitStack() as elsewhere:
        elsewhere.enter_context(AtomicFile(packed))
        monkeypatch.setattr(weights, "prepare", lambda *_: steps.append("compile"))
        monkeypatch.setattr(AtomicFile, "_wait", lambda _: steps.append("wait") or elsewhere.close())
        assert np.array_equal(logits_of(path), right)
    assert steps[:2] == ["compile", "wait"]


def test_parts_of_other_starts_push_out_nothing(folder, packings, path):
    logits_of(path)
    n_matrices = len(packings)
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(AtomicFile(folder / f"{number}.packed"))
        logits_of(Path(shutil.copy(path, path.with_name("other.gguf"))))
        assert len([file for file in files_in(folder) if file.suffix == ".part"]) == 4
    assert len(files_in(folder)) == 2
    logits_of(path)
    assert len(packings) == 2 * n_matrices


def test_trouble_that_says_nothing_about_a_file_leaves_it_there(folder, packings, path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    logits_of(path)
    n_matrices, before = len(packings), [file.stat() for file in files_in(folder)]
    with monkeypatch.context() as patched:
        patched.setattr(PackedFile, "_checked", fail)
        with pytest.raises(OSError, match="Too many open files"):
            logits_of(path)
    assert [file.stat() for file in files_in(folder)] == before
    logits_of(path)
    assert len(packings) == n_matrices


def test_a_folder_that_may_only_be_read_serves(folder, packings, path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("read-only")

    logits_of(path)
    n_matrices = len(packings)
    monkeypatch.setattr(packed_file.os, "utime", refuse)
    logits_of(path)
    assert len(packings) == n_matrices


def test_a_model_whose_file_is_replaced_while_it_is_used_goes_on(folder, path):
    right = logits_of(path)
    with ModelFile.open(path) as file:
        model = NumbaCpu(NumbaCpuOptions()).load(file, Llama.plans(file)["main"], ModelOptions(n_ctx=64, threads=2), Progress())
    for kept in files_in(folder):
        kept.unlink()
    assert np.array_equal(model.forward(run_of(TOKENS)).rows(), right)
    model.close()


# The file while a model reads from it


def cut(file):
    os.truncate(file, file.stat().st_size // 2)


def write_over(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)


def touch(file):
    os.utime(file, (1, 1))


def replace(file):
    shutil.copy(file, file.with_name("copy"))
    cut(file.with_name("copy"))
    file.with_name("copy").replace(file)


@pytest.mark.parametrize("is_packed", [False, True], ids=["packing", "mapping"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, "it has .* bytes, expected"),
        (write_over, "checksums are wrong"),
        (touch, None),
        (replace, None),
        (Path.unlink, None),
    ],
)
def test_a_mapped_file_that_was_changed_is_refused_and_one_that_was_replaced_is_not(folder, path, is_packed, change, message):
    if is_packed:
        logits_of(path)
    with ModelFile.open(path) as file:
        model = NumbaCpu(NumbaCpuOptions()).load(file, Llama.plans(file)["main"], ModelOptions(n_ctx=64, threads=2), Progress())
    model.check()
    (packed,) = files_in(folder)
    change(packed)
    for _ in range(2):
        if message:
            with pytest.raises(ModelFileError, match=f"{packed}: was changed.*{message}"):
                model.check()
        else:
            model.check()
    model.close()
    assert np.array_equal(logits_of(path), logits_of(path, keep_weights=False))  # a later start makes it anew


def test_another_start_does_not_make_the_mapped_file_look_changed(folder, path):
    logits_of(path)
    before = files_in(folder)[0].stat()
    logits_of(path)
    after = files_in(folder)[0].stat()
    assert after.st_mtime_ns == before.st_mtime_ns
    assert after.st_atime_ns > before.st_atime_ns  # by which the files used last are kept


def test_an_engine_that_nobody_holds_gives_back_its_file_and_threads(folder, path):
    def mapped():
        maps = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        return {each for each in maps if str(folder.parent) in each}

    engine = Engine.load(path, backend="numba-cpu", spec_type="none", n_ctx=64, threads=2)
    engine.evaluate([1, 2, 3])
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("augury-")}
    assert mapped() == {str(files_in(folder)[0])}  # and not the model file
    assert sorted(thread.name for thread in threads) == ["augury-cpu-1", "augury-engine"]
    del engine
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert mapped() == set()
