"""What only a GPU can tell, in one command each, in under ten minutes, offline: `make test-gpu` and `make bench-gpu`.

    python tests/gpu test test-gpu.json       what must hold: kernels, invariance, speculation, graphs
    python tests/gpu bench bench-gpu.json     versions and what a first run finds out, then how fast kernels and models are

Every part stands for itself, in a process of its own, since after a fault no other kernel runs in the same one. Of one that
fails the file has the traceback, or what this machine lacks, and the next one runs. What is beyond `--minutes` is left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

_MOST_S = 240  # of a part: a kernel whose blocks wait for each other would never end


def main() -> int:
    """Run what was asked for; 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python tests/gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("test", "bench"))
    parser.add_argument("out", type=Path, help="the file that figures are written to, after every part")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no further part begins")
    parser.add_argument("--only", nargs="*", default=(), help="names of parts; by default all")
    args = parser.parse_args()
    from gpu import checks, speed

    parts = checks.PARTS if args.what == "test" else speed.PARTS
    found, start = {}, time.monotonic()
    for part in parts:
        name = part.__name__
        if args.only and name not in args.only:
            continue
        if time.monotonic() - start > 60 * args.minutes:
            found[name] = {"left out": f"{args.minutes} minutes were over"}
        else:
            begun = time.monotonic()
            found[name] = _told_by(part)
            found[name]["seconds"] = round(time.monotonic() - begun, 1)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}: {json.dumps(found[name])[:2000]}", flush=True)
    failed = [name for name, figures in found.items() if "failed" in figures]
    for name in failed:
        print(f"--- {name}\n{found[name]['failed']}", flush=True)
    print(f"{len(found)} parts, failed: {', '.join(failed) or 'none'}; see {args.out}")
    return bool(failed)


def _told_by(part):
    """What a part tells, in a process that it may break."""
    fork = multiprocessing.get_context("fork")  # what was imported is there already; no part ran here, nor the driver
    receiving, sending = fork.Pipe(duplex=False)
    process = fork.Process(target=_tell, args=(part, sending))
    process.start()
    sending.close()
    try:
        figures = json.loads(receiving.recv()) if receiving.poll(_MOST_S) else {"failed": f"it was stopped after {_MOST_S} s"}
    except EOFError:
        process.join()
        figures = {"failed": f"its process ended with status {process.exitcode}"}
    process.kill()
    process.join()
    return figures


def _tell(part, sending) -> None:
    from augury.backends.numba_cuda.probe import unavailable_reason

    try:
        figures = part() or {}
    except BaseException:  # noqa: BLE001 - whatever it is
        figures = {"failed": unavailable_reason() or traceback.format_exc()}
    sending.send(json.dumps(figures, default=str))


if __name__ == "__main__":
    sys.exit(main())
