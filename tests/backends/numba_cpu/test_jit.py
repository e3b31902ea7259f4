import errno
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from damage import disk_is_full
from numba.core import config

from augury.backends.numba_cpu.kernels import jit, simd
from augury.files.atomic_file import AtomicFile

# Compiles one kernel in a fresh process, with the cache folder that the test chose, and says what was compiled and computed.
SCRIPT = """
import logging, sys
sys.path[:0] = sys.argv[1:]
logging.basicConfig()
import numpy as np
from augury.backends.numba_cpu.kernels import activation, jit, simd
def compiled(scale):
    def twice(x, n):
        for i in range(n):
            simd.put_i64(x + 8 * i, scale * simd.get_i64(x + 8 * i))
    return jit.kernel(twice)
kernel, calls = compiled(2), []
jit.prepare([kernel], lambda *call: calls.append(call))
values = np.arange(4)
kernel(values.ctypes.data, 4)
print(calls, values.tolist())
"""
COMPILED = "[('compile', 0, 1), ('compile', 1, 1)] [0, 2, 4, 6]"
FROM_CACHE = "[] [0, 2, 4, 6]"


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(cache):
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        return subprocess.Popen(
            [sys.executable, script, *sys.path], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    return run


def answer(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out.strip(), err


def test_a_second_process_takes_kernels_from_the_cache(start, tmp_path):
    assert answer(start(tmp_path / "cache"))[0] == COMPILED
    assert answer(start(tmp_path / "cache"))[0] == FROM_CACHE


def test_processes_that_start_at_once_do_not_disturb_each_other(start, tmp_path):
    processes = [start(tmp_path / "cache") for _ in range(3)]

    assert {answer(process)[0] for process in processes} <= {COMPILED, FROM_CACHE}
    assert answer(start(tmp_path / "cache"))[0] == FROM_CACHE


def test_a_damaged_cache_is_compiled_again_and_mended_with_one_line(start, tmp_path):
    answer(start(tmp_path / "cache"))
    (path,) = (tmp_path / "cache").rglob("*.kernel")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    out, err = answer(start(tmp_path / "cache"))

    assert out == FROM_CACHE  # nothing was announced, for the file was there
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


def test_a_file_that_another_process_is_writing_is_left_to_it(cache, caplog):
    (name,) = {multiplier(2)._cache._path.name}
    with AtomicFile(cache / name):
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
        (tmp_path / "generator.py").write_text(text)
        monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
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


def test_numbas_own_level_of_optimisation_stays():
    def nothing(x):
        pass

    level = config.OPT
    jit.address(jit.kernel(nothing))

    assert config.OPT is level
