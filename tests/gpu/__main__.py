"""What only a GPU can tell, in one command each, in under ten minutes, offline: `make test-gpu` and `make bench-gpu`.

    python tests/gpu test test-gpu.json       what must hold: kernels, invariance, speculation, graphs
    python tests/gpu bench bench-gpu.json     how fast models and kernels are, and probes; with tables in bench-gpu.md

Every part stands for itself, in a process of its own, since after a fault no other kernel runs in the same one. Of one that
fails the file has the traceback, or what this machine lacks, and the next one runs. What is beyond `--minutes` is left out, the
least important last. If LLAMA_BENCH names sources of llama.cpp, `test` builds its llama-bench meanwhile; see `llama`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from pathlib import Path
from types import GeneratorType

sys.path.insert(0, str(Path(__file__).parents[1]))

_MOST_S = 240  # of a part: a kernel whose blocks wait for each other would never end


def main(words: list[str] | None = None) -> int:
    """Run what was asked for; 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python tests/gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("test", "bench"))
    parser.add_argument("out", type=Path, help="the file that figures are written to, after every part")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which a part is stopped, and no further one begins")
    parser.add_argument("--only", nargs="*", default=(), help="names of parts; by default all")
    args = parser.parse_args(words)
    from gpu import checks, llama, speed

    end_s = time.monotonic() + 60 * args.minutes
    build = llama.begin_to_build()
    if build is not None and args.what == "bench":  # nothing is measured beside a compiler
        print(llama.end_of(build, end_s - time.monotonic()), flush=True)
    parts = [
        part for part in (checks.PARTS if args.what == "test" else speed.PARTS) if not args.only or part.__name__ in args.only
    ]
    found = run(parts, args.out, end_s)
    if build is not None and args.what == "test":
        print(llama.end_of(build, end_s - time.monotonic()))
    failed = [name for name, figures in found.items() if "failed" in figures]
    for name in failed:
        print(f"--- {name}\n{found[name]['failed']}", flush=True)
    left_out = ", ".join(name for name, figures in found.items() if "left out" in figures) or "none"
    print(f"{len(found)} parts, failed: {', '.join(failed) or 'none'}, left out: {left_out}; see {args.out}")
    return bool(failed)


def run(parts, out: Path, end_s: float) -> dict[str, dict]:
    """What parts tell until a moment of the monotonic clock; it is written after every part, of measurements as tables, too."""
    from gpu import speed, tables

    found = {}
    for part in parts:
        name, begun = part.__name__, time.monotonic()
        if begun >= end_s:
            found[name] = {"left out": "the time was over"}
        else:
            found[name] = _told_by(part, end_s - begun)
            found[name]["seconds"] = round(time.monotonic() - begun, 1)
        out.write_text(json.dumps(found, indent=1) + "\n")
        if part in speed.PARTS:
            out.with_suffix(".md").write_text(tables.written(found))
        print(f"{name}: {json.dumps(found[name])[:2000]}", flush=True)
    return found


def _told_by(part, most_s: float) -> dict:
    """What a part tells, in a process that it may break; all that it told before it is stopped."""
    fork = multiprocessing.get_context("fork")  # what was imported is there already; no part ran here, nor the driver
    receiving, sending = fork.Pipe(duplex=False)
    process = fork.Process(target=_tell, args=(part, sending))
    process.start()
    sending.close()
    figures, end_s = {}, time.monotonic() + min(_MOST_S, most_s)
    try:
        while receiving.poll(max(0.0, end_s - time.monotonic())):
            if (told := receiving.recv()) is None:
                break
            figures |= json.loads(told)
        else:
            figures |= (
                {"failed": f"it was stopped after {_MOST_S} s"} if most_s > _MOST_S else {"left out": "the time was over"}
            )
    except EOFError:
        process.join()
        figures["failed"] = f"its process ended with status {process.exitcode}"
    process.kill()
    process.join()
    return figures


def _tell(part, sending) -> None:
    from augury.backends.numba_cuda.probe import unavailable_reason

    try:
        told = part()
        for figures in told if isinstance(told, GeneratorType) else (told or {},):
            sending.send(json.dumps(figures, default=str))
    except BaseException:  # noqa: BLE001 - whatever it is
        sending.send(json.dumps({"failed": unavailable_reason() or traceback.format_exc()}))
    sending.send(None)


if __name__ == "__main__":
    sys.exit(main())
