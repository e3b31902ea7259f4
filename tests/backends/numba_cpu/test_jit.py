import logging
import os
import subprocess
import sys

import pytest
from numba.core import config

from augury.backends.numba_cpu.kernels import jit, simd

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
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip(), err


def test_a_second_process_takes_kernels_from_the_cache(start, tmp_path):
    assert answer(start(tmp_path / "cache"))[0] == COMPILED
    assert answer(start(tmp_path / "cache"))[0] == FROM_CACHE


def test_processes_that_start_at_once_do_not_disturb_each_other(start, tmp_path):
    processes = [start(tmp_path / "cache") for _ in range(3)]

    assert {answer(process)[0] for process in processes} <= {COMPILED, FROM_CACHE}
    assert answer(start(tmp_path / "cache"))[0] == FROM_CACHE


def test_a_damaged_cache_is_compiled_again(start, tmp_path):
    answer(start(tmp_path / "cache"))
    for path in (tmp_path / "cache").rglob("*.nb[ci]"):
        path.write_bytes(b"\x80garbage")

    out, err = answer(start(tmp_path / "cache"))

    assert out == COMPILED
    assert "compiled again" in err


def test_a_folder_that_cannot_be_written_costs_a_warning_only(start, tmp_path):
    (tmp_path / "file").write_text("in the way")

    out, err = answer(start(tmp_path / "file"))

    assert out == COMPILED
    assert "cannot be kept" in err


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
