"""Augury where the calls of Linux and of all POSIX systems are missing, as on macOS and Windows."""

import os
import subprocess
import sys
import textwrap

from oracles.models import tiny_model

from augury.testing.tiny_model import write_tiny_model

# As `sitecustomize` of a process and its children. Python itself and libraries that go by `sys.platform` need the rest.
HIDING = """
    import builtins, ctypes, faulthandler, io, mmap, os, signal, socket, sys, types

    class Mapped(mmap.mmap):
        def __new__(cls, fileno, length, tagname=None, access=mmap.ACCESS_DEFAULT, offset=0):
            return super().__new__(cls, fileno, length, access=access, offset=offset)

        @property
        def madvise(self):
            raise AttributeError("madvise")

    for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
        sys.modules[name] = None
    mmap.mmap = Mapped
    hidden = {
        os: "sched_ SCHED_ memfd_ MFD_ eventfd EFD_ fork getpgid killpg setsid nice getpriority setpriority PRIO_ "
        "sysconf statvfs posix_ fchmod fchown chown mkfifo getloadavg O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_CLOEXEC",
        mmap: "MADV_ MAP_ PROT_",
        signal: "SIGHUP SIGUSR SIGPROF SIGALRM SIGVTALRM SIGQUIT SIGPIPE SIGSTOP SIGTSTP SIGCONT SIGWINCH "
        "setitimer getitimer alarm pause pthread_ ITIMER_ SIG_BLOCK SIG_UNBLOCK",
        socket: "AF_UNIX",
    }
    for module, names in hidden.items():
        for name in [each for each in dir(module) if each.startswith(tuple(names.split()))]:
            delattr(module, name)

    def without_proc(function):
        def call(path, *args, **more):
            if str(path).startswith("/proc"):
                raise FileNotFoundError(path)
            return function(path, *args, **more)
        return call

    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "listdir"), (os, "readlink")):
        setattr(module, name, without_proc(getattr(module, name)))

    def installed(n_kib):
        n_kib._obj.value = 4 << 20

    ctypes.windll = types.SimpleNamespace(kernel32=types.SimpleNamespace(GetPhysicallyInstalledSystemMemory=installed))
"""

PROGRAM = """
    import datetime as dt
    import sys
    from importlib.metadata import entry_points
    from pathlib import Path

    from augury import Engine
    from augury.__main__ import main
    from augury.files.atomic_file import write_atomically
    from augury.memory_limit import n_bytes_of_machine
    from augury.plugins.bench.machine import machine_facts
    from augury.plugins.server.batch.rows import RowFile
    from augury.plugins.server.collection import Collection
    from augury.plugins.server.process import most_connections
    from augury.text.renderer import Failure, Renderer

    for each in entry_points(group="augury"):
        each.load()
    model, chatting, folder = *sys.argv[1:3], Path(sys.argv[3])
    with Engine.load(model, n_ctx=64, threads=2, slots=2, spec_type="suffix") as engine:
        results = engine.generate([[1, 2, 3] * 4, [4, 5]], max_tokens=8, ignore_eos=True, temperature=0)
    Collection(folder).add([1, 2])
    with RowFile(folder / "rows") as rows:
        rows.add(1, {"id": 1})
    write_atomically(folder / "file", "text")
    assert n_bytes_of_machine() == 4 << 30 and machine_facts()["cores"] > 0 and most_connections() == 4096
    try:
        Renderer(seconds=0.1).render("{{ 9 ** 99999999 }}", {}, dt.datetime(2024, 7, 26))
    except Failure as failure:
        print(failure)
    print([len(result.tokens) for result in results], flush=True)
    sys.argv = ["augury", "run", "-m", chatting, "--backend", "reference", "-n", "2", "-p", "hi", "--chat"]
    sys.argv += ["--chat-template", "{{ messages[0].content }}"]
    assert main() == 0
"""


def test_it_runs_where_the_calls_of_linux_and_posix_are_missing(tmp_path):
    hiding, chatting, folder = (tmp_path / name for name in ("hiding", "chat.gguf", "folder"))
    write_tiny_model(chatting)
    hiding.mkdir()
    folder.mkdir()
    (hiding / "sitecustomize.py").write_text(textwrap.dedent(HIDING))
    words = [sys.executable, "-c", textwrap.dedent(PROGRAM), tiny_model("llama-dense"), chatting, folder]
    environment = os.environ | {"PYTHONPATH": str(hiding)}
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[:2] == ["takes more than 0.1 s of processor time", "[8, 8]"]
    assert "cannot be kept" not in found.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["file", "requests.jsonl", "rows"]
