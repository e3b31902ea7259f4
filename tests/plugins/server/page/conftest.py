"""A browser, and the page in it. Nothing is imported from Playwright where these tests are only collected."""

import json
import shutil
import socket
import threading
from contextlib import suppress

import pytest
from support.servers import serving

SETTINGS = {"sampling": {"max_tokens": 96}}


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        yield found
        found.close()


@pytest.fixture
def open_page(browser):
    """Opens the page at an address, in a browser without a past; whatever went wrong in it fails the test."""
    contexts, wrong = [], []

    def open_page(url, **how):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"} | how)
        contexts.append(context)
        context.set_default_timeout(60_000)
        context.add_init_script(f"localStorage['augury.settings'] ??= JSON.stringify({json.dumps(SETTINGS)})")
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    told = "Failed to load resource"  # what the browser itself says of an error that the test is about
    assert [each for each in wrong if told not in each] == []


@pytest.fixture(scope="session")
def drafting_server():
    """Drafts in every round, however busy the machine is, where a planner may think that it does not pay."""
    with serving(
        *["-m", "smollm2", "-t", "2", "-c", "512", "-np", "4", "--temp", "0", "--spec-type", "suffix", "--spec-fixed"]
    ) as found:
        yield found


@pytest.fixture
def page(open_page, drafting_server):
    return open_page(drafting_server.url)


class Proxy:
    """Passes connections on. Where `n_events` is set, it holds an answer after so many events, until it is let go or cut."""

    def __init__(self, url):
        self.n_events = None
        self._target = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = []
        self._is_held, self._may_go_on, self._is_cut = threading.Event(), threading.Event(), False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:  # closed
                return
            self._threads.append(threading.Thread(target=self._serve, args=[client]))
            self._threads[-1].start()

    def _serve(self, client):
        with client, socket.create_connection(self._target) as server:
            self._open += [client, server]
            answers = threading.Thread(target=self._pass_on, args=[server, client])
            answers.start()
            self._pass_on(client, server)
            answers.join()

    def _pass_on(self, source, sink):
        seen = b""
        with suppress(OSError):  # the other direction has ended
            while data := source.recv(4096):
                seen += data
                sink.sendall(data)
                if self.n_events is not None and seen.count(b'"draft_origin"') > self.n_events:
                    self._is_held.set()
                    self._may_go_on.wait()
                    if self._is_cut:
                        break
        shut_down(source, sink)

    def let_go(self):
        """Pass on what is held, as soon as it is, and hold nothing more."""
        if self.n_events is not None:
            self._is_held.wait()
        self.n_events = None
        self._may_go_on.set()

    def cut(self):
        """End what is held instead."""
        self._is_cut = True
        self.let_go()

    def close(self):
        self._may_go_on.set()
        shut_down(self._listener, *self._open)
        for thread in self._threads:
            thread.join()
        self._listener.close()


def shut_down(*sockets):
    for each in sockets:
        with suppress(OSError):  # it is already
            each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(drafting_server):
    found = Proxy(drafting_server.url)
    yield found
    found.close()
