"""Real servers: processes of `augury serve`, asked over real sockets.

They have one more route than users' servers: `/tasks` tells how many tasks the event loop has.
"""

import asyncio
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

READY_S = 300  # kernels may have to be compiled first
N_TRIES = 200


class ServerProcess:
    """A server that was started with these words, and has its address."""

    def __init__(self, *words):
        self.log = tempfile.TemporaryFile("a+")  # noqa: SIM115 - closed with the server; both ends share one place in it
        command = [sys.executable, __file__, "serve", "--port", "0", "--cache-ram", "0", *map(str, words)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.url = self.wait_for("listens on ").split()[0]
        self.client = httpx.Client(base_url=self.url, timeout=READY_S)

    def wait_for(self, text, after=0):
        """What the server writes after this text, which it does after so many characters."""
        end = time.monotonic() + READY_S
        while text not in self.output[after:]:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.02)
        return self.output[after:].split(text, 1)[1]

    @property
    def output(self):
        self.log.seek(0)
        return self.log.read()

    def end(self, number=signal.SIGTERM):
        """Send a signal, and wait for the process' exit code."""
        self.process.send_signal(number)
        return self.process.wait(READY_S)

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
        self.process.wait()
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


if __name__ == "__main__":  # augury, with that route
    import augury.__main__
    from augury.plugins.server import app

    make = app.make_app
    app.make_app = lambda models: count_tasks(make(models))
    sys.exit(augury.__main__.main())
