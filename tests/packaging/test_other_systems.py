"""Augury where Linux's calls are missing: locks of files, cores of a process, what `/proc` tells, advice on memory."""

import subprocess
import sys
import textwrap

from oracles.models import tiny_model

PROGRAM = """
    import builtins, io, mmap, os, sys

    class Mapped(mmap.mmap):
        @property
        def madvise(self):
            raise AttributeError("madvise")

    sys.modules["fcntl"] = None
    mmap.mmap = Mapped
    for module, hidden in ((os, ("sched_", "memfd_", "MFD_", "eventfd", "EFD_")), (mmap, ("MADV_",))):
        for name in [each for each in dir(module) if each.startswith(hidden)]:
            delattr(module, name)

    def without_proc(function):
        def call(path, *args, **more):
            if str(path).startswith("/proc"):
                raise FileNotFoundError(path)
            return function(path, *args, **more)
        return call

    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "listdir"), (os, "readlink")):
        setattr(module, name, without_proc(getattr(module, name)))

    from importlib.metadata import entry_points
    from pathlib import Path

    from augury import Engine
    from augury.files.atomic_file import write_atomically
    from augury.memory_limit import n_bytes_of_machine
    from augury.plugins.bench.machine import machine_facts
    from augury.plugins.server.batch.rows import RowFile
    from augury.plugins.server.collection import Collection

    for each in entry_points(group="augury"):
        each.load()
    folder = Path(sys.argv[2])
    with Engine.load(sys.argv[1], n_ctx=64, threads=2, slots=2, spec_type="suffix") as engine:
        results = engine.generate([[1, 2, 3] * 4, [4, 5]], max_tokens=8, ignore_eos=True, temperature=0)
    Collection(folder).add([1, 2])
    with RowFile(folder / "rows") as rows:
        rows.add(1, {"id": 1})
    write_atomically(folder / "file", "text")
    assert n_bytes_of_machine() > 0 and machine_facts()["cores"] > 0
    print([len(result.tokens) for result in results])
"""


def test_it_runs_where_linux_s_calls_are_missing(tmp_path):
    words = [sys.executable, "-c", textwrap.dedent(PROGRAM), tiny_model("llama-dense"), tmp_path]
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "[8, 8]\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "requests.jsonl", "rows"]
