import errno
import itertools
import logging
import os
import subprocess
import sys
from contextlib import ExitStack

import numba
import numpy as np
import pytest
from numba import carray
from numba.core.bytecode import FunctionIdentity
from support.damage import disk_is_full

from augury.backends.numba_cpu.kernels import jit, simd
from augury.backends.numba_cpu.kernels.rows import as_pointer
from augury.backends.numba_cpu.kernels.struct import pointer_maker, struct
from augury.files.atomic_file import AtomicFile

# Prepares three kernels in a fresh process, with the cache folder that the test chose, once its standard input has a line or
# ends, and says what it told, how many kernels it compiled itself, and what was computed.
SCRIPT = """
import logging, sys
sys.path[:0] = sys.argv[1:]
logging.basicConfig()
import numpy as np
from augury.backends.numba_cpu.kernels import activation, jit, simd
def multiplier(factor):
    def times(x, n):
        for i in range(n):
            simd.put_i64(x + 8 * i, factor * simd.get_i64(x + 8 * i))
    times.__qualname__ += str(factor)
    return jit.kernel(times)
kernels, calls = [multiplier(factor) for factor in (2, 3, 4)], []
print("ready", flush=True)
sys.stdin.readline()
jit.prepare(kernels, lambda *call: calls.append(call))
values = np.arange(4)
kernels[0](values.ctypes.data, 4)
print(calls[-1:], sum(kernel.stats.cache_misses.total() for kernel in kernels), values.tolist())
"""
COMPILED = "[('compile', 3, 3)] 3 [0, 2, 4, 6]"
FROM_CACHE = "[] 0 [0, 2, 4, 6]"


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(cache):
        environment, pipe = {**os.environ, "XDG_CACHE_HOME": str(cache)}, subprocess.PIPE
        command = [sys.executable, script, *sys.path]
        return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)

    return run


def answer(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out.splitlines()[-1], err


@pytest.mark.sample(0)
def test_of_processes_that_start_at_once_one_compiles_each_kernel(start, tmp_path):
    processes = [start(tmp_path / "cache") for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()

    answers = [answer(process) for process in processes]

    assert [err for _, err in answers] == [""] * 3
    assert sum(int(out.split("] ")[1][0]) for out, _ in answers) == 3
    assert answer(start(tmp_path / "cache")) == (FROM_CACHE, "")


def test_another_process_takes_kernels_from_the_cache_and_mends_what_is_damaged_with_one_line(start, tmp_path):
    assert answer(start(tmp_path / "cache")) == (COMPILED, "")
    path, *_ = (tmp_path / "cache").rglob("*.kernel")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    out, err = answer(start(tmp_path / "cache"))

    assert out == FROM_CACHE.replace("0", "1", 1)  # nothing was announced, for the file was there
    assert err.count("damaged, so they are compiled again") == 1
    assert answer(start(tmp_path / "cache")) == (FROM_CACHE, "")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of compiled kernels, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for cached in (jit.cache_folder, jit._warn):
        cached.cache_clear()
    yield jit.cache_folder()
    for cached in (jit.cache_folder, jit._warn):
        cached.cache_clear()


def multiplier(factor):
    def times(x):
        simd.put_i64(x, factor * simd.get_i64(x))

    return jit.kernel(times)


def applied(kernel):
    values = np.array([21])
    kernel(values.ctypes.data)
    return int(values[0])


def is_loaded(kernel):
    jit.address(kernel)
    return bool(kernel.stats.cache_hits)


@struct
class Place:
    x: int


place_at = pointer_maker(Place)


def test_a_kernel_that_others_call_with_numbers_and_pointers_has_one_signature(cache, caplog):
    def put(x, n):
        simd.put_i64(x, n)

    called = jit.kernel(put)

    def put_both(at):
        place = place_at(at)
        called(place.x, 3)
        called(place, 4)

    jit.address(called)
    value, place = np.zeros(1, np.int64), np.zeros(1, np.int64)
    place[0] = value.ctypes.data
    jit.kernel(put_both)(place.ctypes.data)
    assert (value[0], place[0]) == (3, 4)
    assert len(called.overloads) == 1
    assert not caplog.records


def test_a_file_under_another_kernels_name_is_not_loaded(cache):
    def other(x):
        simd.put_i64(x, 7)

    assert applied(multiplier(2)) == 42
    jit.address(jit.kernel(other))
    first, second = cache.iterdir()
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert not is_loaded(kernel := multiplier(2))
    assert applied(kernel) == 42


def scaling(factor, monkeypatch):
    """Compile or load a kernel that calls a function of a factory, as packages' blocks do, and apply it."""

    @numba.njit
    def scale(x, y):  # so long that it stays a function of its own
        total = np.float32(0)
        for i in range(len(x)):
            total += x[i]
        for i in range(len(x)):
            y[i] = total + factor * x[i]
            if y[i] > 100:
                y[i] = y[i] ** 0.5

    def scale_at(x, y):
        scale(carray(as_pointer(x), 3, np.float32), carray(as_pointer(y), 3, np.float32))

    monkeypatch.setattr(FunctionIdentity, "_unique_ids", itertools.count(1 << 40))  # every process counts from the same number
    x, y = np.float32([1, 2, 3]), np.zeros(3, np.float32)
    jit.kernel(scale_at, f"scale_by_{factor}")(x.ctypes.data, y.ctypes.data)
    return y.tolist()


@pytest.mark.usefixtures("cache")
def test_what_a_kernel_calls_is_not_mistaken_for_what_another_process_has_named_alike(monkeypatch):
    scaling(0, monkeypatch)  # with what they all call
    for factor in (1, 2):
        if not (child := os.fork()):
            scaling(factor, monkeypatch)
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
    assert [scaling(factor, monkeypatch) for factor in (1, 2, 3)] == [[7, 8, 9], [8, 10, 12], [9, 12, 15]]


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "Too many open files")])
def test_trouble_that_says_nothing_about_a_file_leaves_it_there(cache, monkeypatch, error):
    assert applied(multiplier(2)) == 42
    (path,) = cache.iterdir()
    good = path.read_bytes()

    def fail(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(*((jit.Path, "read_bytes") if isinstance(error, OSError) else (jit.CompileResult, "_rebuild")), fail)
        if isinstance(error, OSError):
            assert applied(multiplier(2)) == 42
        else:
            with pytest.raises(MemoryError):
                applied(multiplier(2))
    assert path.read_bytes()[-100:] == good[-100:]
    assert is_loaded(multiplier(2))


@pytest.mark.parametrize("trouble", ["a file in the way", "a full disk"])
def test_kernels_that_cannot_be_kept_are_one_warning(tmp_path, monkeypatch, caplog, trouble, request):
    if trouble == "a file in the way":
        (tmp_path / "augury").write_text("")
    request.getfixturevalue("cache")
    if trouble == "a full disk":
        monkeypatch.setattr(AtomicFile, "publish", disk_is_full)
    for factor in range(3):
        assert applied(multiplier(factor)) == 21 * factor
    assert [record.message.count("cannot be kept") for record in caplog.records] == [1]
    assert not list(tmp_path.rglob("*.part"))


def test_what_another_process_is_compiling_comes_last(cache, monkeypatch):
    monkeypatch.setattr(jit, "_PATIENCE_S", 0.0)

    def other(x):
        simd.put_i64(x, 7)

    kernels, told = [multiplier(2), jit.kernel(other)], []

    with ExitStack() as elsewhere:
        elsewhere.enter_context(AtomicFile(kernels[0]._cache._path))

        def follow(_, done, __):
            told.append([len(kernel.overloads) for kernel in kernels])
            if done == 1:
                elsewhere.close()

        jit.prepare(kernels, follow)
    assert told == [[0, 0], [0, 1], [1, 1]]
    assert is_loaded(multiplier(2))


def test_a_process_that_was_stopped_while_it_compiled_is_not_waited_for_for_ever(cache, caplog, monkeypatch):
    monkeypatch.setattr(jit, "_PATIENCE_S", 0.0)
    with AtomicFile(multiplier(2)._cache._path):
        assert applied(multiplier(2)) == 42
    assert not list(cache.iterdir())
    assert not caplog.records


def test_kernels_of_versions_long_unused_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = tmp_path / "augury" / "kernels"
    for age in range(20):
        (root / f"old{age}").mkdir(parents=True)
        os.utime(root / f"old{age}", (1000 - age, 1000 - age))
    jit.cache_folder.cache_clear()
    try:
        folder = jit.cache_folder()
    finally:
        jit.cache_folder.cache_clear()

    left = {path.name for path in root.iterdir()}
    assert folder.name in left
    assert "old0" in left
    assert len(left) == 12


def test_the_key_changes_with_any_file_of_the_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = []
    for text in ("a = 1", "a = 2"):
        (tmp_path / "kernels").mkdir(exist_ok=True)
        (tmp_path / "kernels" / "generator.py").write_text(text)
        monkeypatch.setattr(jit, "__file__", str(tmp_path / "kernels" / "jit.py"))
        jit.sources_key.cache_clear()
        jit.cache_folder.cache_clear()
        keys.append(jit.cache_folder().name)
    jit.sources_key.cache_clear()
    jit.cache_folder.cache_clear()

    assert keys[0] != keys[1]


def test_kernels_never_raise():
    @jit.kernel
    def divides(out, divisor):
        simd.put_i64(out, 1 // divisor)

    logging.getLogger("numba").setLevel(logging.WARNING)
    import numpy as np

    out = np.full(1, 5)
    divides(out.ctypes.data, 0)

    assert out[0] == 0
