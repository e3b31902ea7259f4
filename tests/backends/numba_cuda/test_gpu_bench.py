"""What `make bench-gpu` makes of what it measures: the other engine's lines, tables, turns and a budget of time."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gpu import __main__ as command, llama, models, probes, speed, tables, turns
from support import llama_bench

LEAST = models.Shape("135M", 64, 64, 2, 2, 1, 32, 512)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that takes llama-bench's place, named by LLAMA_BENCH."""
    path = tmp_path / "llama-bench"
    path.write_text(f"#!/usr/bin/env python3\nimport sys\nsys.path.insert(0, {str(Path(llama_bench.__file__).parent)!r})\n")
    with path.open("a") as file:
        file.write("import llama_bench\nprint('a GPU was found')\nprint(llama_bench.runs(sys.argv), end='')\n")
    path.chmod(0o755)
    monkeypatch.setenv("LLAMA_BENCH", str(path))
    return path


def test_lines_of_llama_bench_are_read_without_the_first_repetition(program):
    assert llama.tool() == program
    told = llama.speeds(Path("model.gguf"), prompts=(2, 64, 512), n_decoded=128, depth=512)
    assert told == {
        "pass of 2": 1000.0,
        "pass of 64": 1000.0,
        "prompt of 512": 1000.0,
        "decoding": 1000.0,
        "build": "b11434, CUDA",
    }


def test_a_program_that_fails_is_told(program):
    program.write_text("#!/bin/sh\necho no kernel image >&2\nexit 1\n")
    with pytest.raises(RuntimeError, match="status 1: no kernel image"):
        llama.speeds(Path("model.gguf"), prompts=(2,))


def test_sources_are_built_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(llama, "FOLDER", tmp_path / "built")
    sources, tools = tmp_path / "sources/llama.cpp-1", tmp_path / "tools"
    sources.mkdir(parents=True)
    (sources / "CMakeLists.txt").touch()
    tools.mkdir()
    program = tmp_path / "built/build/bin/llama-bench"
    (tools / "cmake").write_text(f'#!/bin/sh\necho "$@"\nmkdir -p {program.parent}\ntouch {program}\n')
    (tools / "cmake").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CMAKE_ARGS", "-DCUDA_cublas_LIBRARY='/a folder'")
    monkeypatch.setenv("LLAMA_BENCH", str(sources.parent))
    assert llama.tool() is None
    assert llama.end_of(llama.begin_to_build(), 60) == "llama-bench is built"
    configured, made = (tmp_path / "built/log").read_text().splitlines()
    assert configured.startswith(f"-S {sources} ")
    assert configured.endswith("-DCUDA_cublas_LIBRARY=/a folder")
    assert "--target llama-bench" in made
    assert llama.tool() == program
    assert llama.begin_to_build() is None


def test_engines_take_turns_on_the_same_weights(program, monkeypatch):
    load = models.load
    monkeypatch.setattr(turns, "load", lambda file, backend="numba-cpu", **given: load(file, "numba-cpu", **given))
    monkeypatch.setattr(turns, "SMALL", LEAST)
    told = list(turns.small())
    assert [next(iter(each)) for each in told] == ["made in s", "augury", "llama.cpp", "augury again"]
    assert told[1]["augury"].keys() == told[3]["augury again"].keys()
    assert told[2]["llama.cpp"].keys() - {"build"} <= told[1]["augury"].keys()
    written = tables.written({"small": told[0] | told[1] | told[2] | told[3]})
    assert "| | 135M: augury | llama.cpp |" in written
    assert "| pass of 64 |" in written
    assert "| 1,000 |" in written
    assert "b11434" in written


def test_tables_have_what_there_is():
    turn = {"decoding": 700.0, "pass of 4": 2000.0, "prompt of 512": 91_571.4}
    kernels = {
        "1 tokens, norm_rows (1, 1, 1)": {"us": 4.3, "launches": 2, "GB/s": 0},
        "8 tokens, norm_rows (8, 1, 1)": {"us": 4.5, "launches": 2, "GB/s": 0},
        "8 tokens, multiply (4, 1, 1)": {"us": 10.0, "launches": 1, "GB/s": 900},
        "8 tokens, multiply (9, 1, 1)": {"us": 12.0, "launches": 1, "GB/s": 900},
    }
    ours = {"decoding": 20.0, "pass of 8": 80.0, "prompt of 512": 90.0}
    written = tables.written(
        {
            "versions": {"gpu": "a GPU"},
            "middle": {"augury": turn, "augury again": turn | {"decoding": 770.0}, "llama.cpp": {"left out": "there is none"}},
            "kernels": {"1.5B": kernels, "seconds": 3.0},
            "halves": {"8B, bytes": turn, "8B, halves": turn | {"decoding": 900.0}, "8B, bytes again": turn},
            "contexts": {"8B": {"pass of 1": 240.0, "pass of 1, ms on the device": 4.0}},
            "cpu_threads": {"threads: 16": {"augury": ours}, "threads: 2": {"augury": ours, "llama.cpp": ours}},
            "e4_grid_barrier": {"us": 0.9, "one kernel for a pass": "gains nothing"},
            "large": {"failed": "Traceback\nMemoryError: too little"},
        }
    )
    for line in (
        "a GPU",
        "| | 1.5B: augury |",
        "| decoding, one token at a time | 735 |",
        "| prompt of 512 | 91,571 |",
        "augury's turns differ by up to 10 %",
        "| `multiply` | | 10.0, 12.0 |",
        "| all launches of a pass | 9.0 | 31.0 |",
        "| | 8B: bytes | 8B: halves |",
        "| decoding, one token at a time | 700 | 900 |",
        "| pass of 1 | 240 |",
        "| 1.5B on the CPU, threads: | 2 | 16 |",
        "| decoding | 20.0 / 20.0 | 20.0 |",
        "| e4_grid_barrier | us: 0.9 | one kernel for a pass: gains nothing |",
        "* large failed: MemoryError: too little",
        "* middle left out: there is none",
    ):
        assert line in written, (line, written)


def one():
    yield {"first": 1}
    yield {"second": 2}


def broken():
    yield {"first": 1}
    raise ValueError("too many")


def endless():
    yield {"first": 1}
    time.sleep(3600)


def gone():
    os._exit(3)


def test_parts_tell_what_they_found_until_they_end(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "PARTS", (one, broken, gone))
    found = command.run(speed.PARTS, tmp_path / "out.json", time.monotonic() + 600)
    assert found == json.loads((tmp_path / "out.json").read_text())
    assert {name: value for name, value in found["one"].items() if name != "seconds"} == {"first": 1, "second": 2}
    assert found["broken"]["first"] == 1
    assert "failed" in found["broken"]
    assert found["gone"]["failed"] == "its process ended with status 3"
    assert "* gone failed" in (tmp_path / "out.md").read_text()


def test_what_is_beyond_the_time_is_left_out(tmp_path, monkeypatch):
    left_out = {"left out": "the time was over"}
    assert command.run((one,), tmp_path / "out.json", time.monotonic()) == {"one": left_out}
    for most_s, told in ((60, left_out), (600, {"failed": "it was stopped after 240 s"})):
        times = iter([0, 0, 240])  # the last one when it has told something
        monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda times=times: next(times)))
        assert command._told_by(endless, most_s) == {"first": 1} | told


def test_clocks_of_a_chain_tell_how_many_launches_share_a_multiprocessor():
    def launch(begun, waited, ended, order):
        return np.array([[begun, waited, ended, place] for place in order], np.uint64)

    chain = [launch(0, 10, 1000, (0, 1, 2)), launch(20, 1880, 2880, (2, 0, 1)), launch(1100, 3760, 4760, (1, 2, 0))]
    assert probes.overlap_of(np.stack(chain)) == {"launches at once": 2, "edge, us": 0.5}
    chain[2][:, 0] = 500
    assert probes.overlap_of(np.stack(chain))["launches at once"] == 3
