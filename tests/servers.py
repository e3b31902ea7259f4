"""Real servers: processes of `augury serve`, asked over real sockets."""

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

import httpx

READY_S = 300  # kernels may have to be compiled first


class ServerProcess:
    """A server that was started with these words, and has its address."""

    def __init__(self, *words):
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the server
        command = [sys.executable, "-m", "augury", "serve", "--port", "0", *map(str, words)]
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
