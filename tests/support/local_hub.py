"""A Hugging Face Hub on a port of this machine: lists of files, files with resumed downloads, searches."""

import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

from huggingface_hub import constants


class Hub:
    """Repositories, each with files by name; what was asked for; and whether it hangs up in the middle of files."""

    def __init__(self):
        self.repositories = {}
        self.asked = []
        self.address = ""
        self.cuts = 0  # how many downloads still break off

    def commit(self, repo):
        return hashlib.sha1(repr(sorted(self.repositories[repo].items())).encode()).hexdigest()

    def names(self, method):
        """The files that were asked for by a method."""
        return [path.rpartition("/")[2] for asked, path in self.asked if asked == method and "/resolve/" in path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self):
        return self.server.hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        path, hub = urlsplit(self.path), self.hub
        hub.asked.append((self.command, path.path))
        if path.path == "/api/models":
            words = parse_qs(path.query)["search"][0]
            self.send(json.dumps([{"id": repo, "downloads": 7} for repo in hub.repositories if words in repo]).encode())
        elif (match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/\w+)?", path.path)) and match[
            1
        ] in hub.repositories:
            self.send(json.dumps(self.described(match[1])).encode())
        elif (match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/\w+/(.+)", path.path)) and match[1] in hub.repositories:
            self.send_file(match[1], match[2])
        else:
            self.send(b"", 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    def described(self, repo):
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1},
            }
            for name, data in self.hub.repositories[repo].items()
        ]
        return {"id": repo, "sha": self.hub.commit(repo), "siblings": siblings, "tags": []}

    def send_file(self, repo, name):
        data, begin, hub = self.hub.repositories[repo][name], 0, self.hub
        found = {"X-Repo-Commit": hub.commit(repo), "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            begin = int(match[1])
            found["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        if self.command == "GET" and hub.cuts:
            hub.cuts -= 1
            self.send(data[begin:], 206 if begin else 200, found, n_sent=(len(data) - begin) // 2)
            self.close_connection = True
            return
        self.send(data[begin:], 206 if begin else 200, found)

    def send(self, body, status=200, headers=(), n_sent=None):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:n_sent])


@contextmanager
def serving(monkeypatch, cache):
    """A Hub that huggingface_hub asks, and keeps its files in `cache`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.hub = Hub()
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = server.hub.address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        try:
            yield server.hub
        finally:
            server.shutdown()
            thread.join()
