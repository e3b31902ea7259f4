"""What only a GPU can tell, in one command each, in under ten minutes, offline: `make test-gpu` and `make bench-gpu`.

    python tests/gpu test test-gpu.json       what must hold: kernels, invariance, speculation, graphs
    python tests/gpu bench bench-gpu.json     versions and what a first run finds out, then how fast kernels and models are

Every part stands for itself: one that fails is told in the file, with its traceback, or with what this machine lacks, and the
next one runs. So does a part that takes too long leave out what is beyond `--minutes`.
"""

from __future__ import annotations

import argparse
import json
import site
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
site.addsitedir(str(ROOT / ".gpu/site"))  # numba-cuda takes the place of numba's own by a .pth file there


def main() -> int:
    """Run what was asked for; 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python tests/gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("test", "bench"))
    parser.add_argument("out", type=Path, help="the file that figures are written to, after every part")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no further part begins")
    parser.add_argument("--only", nargs="*", default=(), help="names of parts; by default all")
    args = parser.parse_args()
    from gpu import checks, speed

    from augury.backends.numba_cuda.probe import unavailable_reason

    parts = checks.PARTS if args.what == "test" else speed.PARTS
    found, start, missing = {}, time.monotonic(), unavailable_reason()
    for part in parts:
        name = part.__name__
        if args.only and name not in args.only:
            continue
        if time.monotonic() - start > 60 * args.minutes:
            found[name] = {"left out": f"{args.minutes} minutes were over"}
        else:
            begun = time.monotonic()
            try:
                found[name] = part() or {}
            except BaseException:  # noqa: BLE001 - the next part is worth as much
                found[name] = {"failed": missing or traceback.format_exc()}
            found[name]["seconds"] = round(time.monotonic() - begun, 1)
        args.out.write_text(json.dumps(found, indent=1, default=str) + "\n")
        print(f"{name}: {json.dumps(found[name], default=str)[:2000]}", flush=True)
    failed = [name for name, told in found.items() if "failed" in told]
    for name in failed:
        print(f"--- {name}\n{found[name]['failed']}", flush=True)
    print(f"{len(found)} parts, failed: {', '.join(failed) or 'none'}; see {args.out}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
