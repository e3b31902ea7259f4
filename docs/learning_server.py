# ruff: noqa: INP001, S310, S603, T201 - a script, not a module, which asks a server of its own
"""What `augury serve --learn` gains: python docs/learning_server.py MODEL PROMPTS.jsonl [FLAG OF SERVE ...].

Two servers answer the same conversations in the same order, one after the other, the second with `--learn`. It is left alone
after each of `--blocks` parts until it has trained a head, if it trains one then, and changes heads in between. A row for each
part says how many tokens a round were written by each, how their times compare, and how many texts differ, which has to be
none. docs/benchmarks.md, "A server that learns", has what came of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

from attrs import frozen

_IDLE_S = 20.0  # after which a server that is to train has begun


@frozen
class Part:
    """What a server did in a part of the conversations."""

    texts: list[str]
    n_tokens: int
    n_rounds: int
    seconds: float


@contextmanager
def served(words: Sequence[str], port: int) -> Iterator[str]:
    """A server; its address."""
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, "-m", "augury", "serve", "--port", str(port), *words]) as process:
        try:
            while process.poll() is None:
                try:
                    if urlopen(f"{address}/health").status == 200:
                        break
                except OSError:
                    time.sleep(0.2)
            yield address
        finally:
            process.terminate()


def asked(address: str, n: int, conversation: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The answer to a conversation, and the server's figures of it."""
    body = {"temperature": 0, "max_tokens": n, **conversation}
    request = Request(f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    found = json.load(urlopen(request))
    return found["choices"][0]["message"]["content"], found["timings"]


def answered(address: str, part: Sequence[dict[str, Any]], n: int, n_parallel: int) -> Part:
    """A part of the conversations."""
    start = time.perf_counter()
    with ThreadPoolExecutor(n_parallel) as pool:
        texts, figures = zip(*pool.map(partial(asked, address, n), part), strict=True)
    seconds = time.perf_counter() - start
    return Part([*texts], sum(each["predicted_n"] for each in figures), sum(each["rounds"] for each in figures), seconds)


def wait_for_head(folder: Path) -> int:
    """Leave the server alone until no training goes on; how many heads it has trained so far."""
    time.sleep(_IDLE_S)
    while any(folder.glob(".heads/*.learn")) or (folder / ".heads/texts").exists():
        time.sleep(1.0)
    return max((int(path.stem) for path in folder.glob(".heads/*.gguf")), default=0)


def main() -> None:
    """Print a row for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path, help="a line for each conversation, as docs/prompts.py writes them")
    parser.add_argument("-n", type=int, default=160, help="tokens of an answer at most")
    parser.add_argument("-np", "--parallel", type=int, default=1, help="requests at once")
    parser.add_argument("--blocks", type=int, default=5, help="parts of the conversations")
    parser.add_argument("--port", type=int, default=8791)
    args, flags = parser.parse_known_args()
    lines = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    parts = [lines[i * len(lines) // args.blocks : (i + 1) * len(lines) // args.blocks] for i in range(args.blocks)]
    words = ["-m", args.model, "-np", str(args.parallel), *flags]
    with served(words, args.port) as address:
        without = [answered(address, part, args.n, args.parallel) for part in parts]
    titles = "tokens before", "head", "tokens a round", "without `--learn`", "ratio", "time", "texts that differ"
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    n_before = head = 0
    with TemporaryDirectory() as name, served([*words, "--collect", name, "--learn"], args.port) as address:
        for part, plain in zip(parts, without, strict=True):
            found = answered(address, part, args.n, args.parallel)
            each, other = (one.n_tokens / one.n_rounds for one in (found, plain))
            differ = sum(a != b for a, b in zip(found.texts, plain.texts, strict=True))
            row = f"{n_before} | {head} | {each:.2f} | {other:.2f} | {each / other:.2f} | {found.seconds / plain.seconds:.2f}"
            print(f"| {row} | {differ} |", flush=True)
            n_before += found.n_tokens
            head = wait_for_head(Path(name))


if __name__ == "__main__":
    main()
