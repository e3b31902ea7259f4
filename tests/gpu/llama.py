"""llama.cpp's `llama-bench`: where it is, or how it is built from sources, and what it tells.

LLAMA_BENCH names the program, or its sources: a folder or an archive of one. Without it PATH is searched. CMAKE_ARGS has
further words for cmake.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from statistics import median

FOLDER = Path(__file__).parents[2] / ".llama-bench"  # where it is built
NONE = "LLAMA_BENCH names neither llama.cpp's llama-bench nor its sources, and there is none on PATH"
LARGEST_PASS = 64  # tokens; of more it is a prompt
_LEFT_OUT = ("CURL", "OPENSSL", "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_SERVER", "BUILD_UI", "BUILD_APP")
_CONFIGURED = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native")


def tool() -> Path | None:
    """The program, if there is one already."""
    if (given := os.environ.get("LLAMA_BENCH")) is None:
        found = shutil.which("llama-bench")
        return None if found is None else Path(found)
    path = Path(given).absolute() if os.access(given, os.X_OK) and Path(given).is_file() else FOLDER / "build/bin/llama-bench"
    return path if path.is_file() else None


def begin_to_build() -> subprocess.Popen | None:
    """Begin to build it, as many files at once as there are cores but two; None where nothing is to be built."""
    given = os.environ.get("LLAMA_BENCH")
    if given is None or tool() is not None:
        return None
    sources = Path(given)
    FOLDER.mkdir(exist_ok=True)
    if sources.is_file():
        shutil.unpack_archive(sources, FOLDER / "sources", filter="data")
        sources = FOLDER / "sources"
    sources = next(
        path.parent for path in (sources / "CMakeLists.txt", *sorted(sources.glob("*/CMakeLists.txt"))) if path.exists()
    )
    options = [*_CONFIGURED, *(f"-DLLAMA_{name}=OFF" for name in _LEFT_OUT), *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
    n_jobs = str(max(1, (os.cpu_count() or 1) - 2))
    build = FOLDER / "build"
    configure = shlex.join(["cmake", "-S", str(sources), "-B", str(build), *options])
    make = shlex.join(["cmake", "--build", str(build), "--target", "llama-bench", "-j", n_jobs])
    with (FOLDER / "log").open("w") as log:
        return subprocess.Popen(f"{configure} && {make}", shell=True, stdout=log, stderr=subprocess.STDOUT)


def end_of(build: subprocess.Popen, seconds: float) -> str:
    """What came of a build, which is stopped after so many seconds; what was compiled until then is kept."""
    try:
        status = build.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        build.kill()
        return f"llama-bench was not built in time; another run goes on in {FOLDER}"
    return "llama-bench is built" if status == 0 else f"llama-bench was not built: {(FOLDER / 'log').read_text()[-1000:]}"


def speeds(
    model: Path,
    *,
    prompts: Iterable[int] = (),
    n_decoded: int = 0,
    depth: int = 0,
    threads: int | None = None,
    most_s: float = 90,
) -> dict[str, float | str]:
    """Tokens per second of passes over so many tokens after `depth` others, and of decoding so many; with `threads` on the CPU.

    Medians of all repetitions but the first, which is slow. Its passes have the logits of the last token alone.
    """
    words = [str(tool()), "-m", str(model), "-r", "4", "-o", "jsonl", "-fa", "1", "-d", str(depth), "-n", str(n_decoded)]
    words += ["-p", ",".join(map(str, prompts)) or "0"]
    words += ["-ngl", "99"] if threads is None else ["-ngl", "0", "-dev", "none", "-t", str(threads)]
    environment = os.environ | ({} if threads is None else {"CUDA_VISIBLE_DEVICES": ""})
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=most_s, env=environment)
    if ended.returncode:
        raise RuntimeError(f"{shlex.join(words)} ended with status {ended.returncode}: {ended.stderr[-1000:]}")
    return told_by(ended.stdout)


def told_by(lines: str) -> dict[str, float | str]:
    """Tokens per second that llama-bench tells in lines of JSON, by the names of our tables' rows; and its build."""
    runs = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    found: dict[str, float | str] = {}
    for run in runs:
        n = run["n_prompt"] or run["n_gen"]
        name = "decoding" if run["n_gen"] else f"pass of {n}" if n <= LARGEST_PASS else f"prompt of {n}"
        found[name] = round(n / median(run["samples_ns"][1:]) * 1e9, 1)
        found["build"] = f"b{run['build_number']}, {run['backends']}"
    return found
