"""Speaks as a llama-server does, as far as it is asked here; FAKE chooses what it does wrong. Run as a program."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

FAKE = os.environ.get("FAKE", "")
held = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Path(os.environ["FAKE_LOG"]).open("a") as log:
            log.write(json.dumps(body) + "\n")
        if FAKE == "dies":
            sys.stderr.write("out of memory\n")
            os._exit(1)
        prompt = body["prompt"]
        n_reused = 0
        if body["cache_prompt"]:
            while n_reused < min(len(held), len(prompt) - 1) and held[n_reused] == prompt[n_reused]:
                n_reused += 1
        held[:] = prompt
        timings = {"prompt_n": len(prompt) - n_reused, "predicted_n": body["n_predict"]}
        timings |= {"prompt_ms": 2e3 * timings["prompt_n"], "predicted_ms": 5e3 * (body["n_predict"] - 1)}
        if FAKE == "slow to start":
            timings["prompt_ms"] = timings["predicted_ms"] = 0
        if FAKE == "miscounts":
            timings["prompt_n"] += 1
        tokens = [number + 1 for number in range(body["n_predict"])]
        self.answer({} if FAKE == "says nothing" else {"timings": timings, "tokens": tokens})

    def answer(self, told):
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args):
        pass


if __name__ == "__main__":
    if FAKE == "ends":
        sys.stderr.write("unknown model architecture\n")
        raise SystemExit(3)
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
