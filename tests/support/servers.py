"""Real servers: processes of `augury serve`, asked over real sockets.

They have one more route than users' servers: `/tasks` tells how many tasks the event loop has. Each is forked off a process
that has imported augury, which takes longer than the rest of a start.
"""

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.metadata import entry_points
from multiprocessing import get_context
from pathlib import Path
from pkgutil import iter_modules

import httpx

from augury.plugins import architectures

READY_S = 300  # kernels may have to be compiled first
N_TRIES = 200
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "augury.__main__",
        "augury.cli.command_line",
        "augury.plugins.server.batch.command",
        "augury.plugins.server.command",
        "augury.plugins.server.process",
        "augury.backends.numba_cpu.model",
        "augury.backends.reference.backend",
        "uvicorn.protocols.http.h11_impl",
        *(entry.module for entry in entry_points(group="augury")),
        *(f"{architectures.__name__}.{file.name}" for file in iter_modules(architectures.__path__)),
    ]
)


class ServerProcess:
    """A server that was started with these words, and has its address."""

    def __init__(self, *words):
        self.log = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 - closed with the server
        command = ["augury", "serve", "--port", "0", "--cache-ram", "0", *map(str, words)]
        self.process = _FORKS.Process(target=_serve, args=(command, {**os.environ}, Path.cwd(), self.log.name))
        self.process.start()
        self.url = self.wait_for("listens on ").split()[0]
        self.client = httpx.Client(base_url=self.url, timeout=READY_S, verify=False)  # of http: no certificates are read for it

    def wait_for(self, text, after=0):
        """What the server writes after this text, which it does after so many characters."""
        end = time.monotonic() + READY_S
        while text not in self.output[after:]:
            assert self.process.is_alive(), self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.02)
        return self.output[after:].split(text, 1)[1]

    @property
    def output(self):
        self.log.seek(0)
        return self.log.read()

    def end(self, number=signal.SIGTERM):
        """Send a signal, and wait for the process' exit code."""
        self.signal(number)
        return self.wait(READY_S)

    def signal(self, number):
        os.kill(self.process.pid, number)

    def wait(self, seconds):
        """The exit code of the process, which ends within this time."""
        self.process.join(seconds)
        return self.process.exitcode

    @property
    def n_descriptors(self):
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @property
    def n_threads(self):
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    @property
    def n_resident_bytes(self):
        (line,) = re.findall(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        return int(line) << 10

    @property
    def n_tasks(self):
        return self.client.get("/tasks").json()

    def close(self):
        self.client.close()
        self.process.kill()
        self.process.join()
        self.process.close()
        self.log.close()


@contextmanager
def serving(*words, is_loaded=True):
    """A server of one's own, with other flags; the model is loaded unless said otherwise."""
    server = ServerProcess(*words)
    try:
        if is_loaded:
            server.wait_for(" is ready")
        yield server
    finally:
        server.close()


def settled(tell, most):
    """A number that comes down to `most`, which may take a round or two after the last client."""
    for _ in range(N_TRIES):
        if (n := tell()) <= most:
            return n
        time.sleep(0.05)
    return n


def count_tasks(app):
    async def tasks():
        return len(asyncio.all_tasks())

    app.add_api_route("/tasks", tasks, include_in_schema=False)
    return app


def _serve(command, environment, folder, log):
    """augury, with that route, in a process that was forked off."""
    import augury.__main__
    from augury.plugins.server import process

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with Path(log).open("ab", buffering=0) as out:
        for descriptor in (1, 2):
            os.dup2(out.fileno(), descriptor)
    make = process.make_app
    process.make_app = lambda models: count_tasks(make(models))
    sys.argv = command
    sys.exit(augury.__main__.main())
