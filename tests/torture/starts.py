"""Starts that are killed at any moment, several at once, in a cache that is damaged in between: the next start is right."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from zlib import crc32

from oracles.models import tiny_model
from support import damage
from torture.engines import REGISTRY

from augury.backends.numba_cpu.kernels.jit import cache_folder
from augury.files.models import resolve
from augury.interfaces import Progress

PROMPT = [5, 9, 33, 5, 9, 33, 5, 9]
WAYS = ({"temperature": 0.0}, {"temperature": 0.9, "seed": 4, "top_k": 30})
LIMIT_S = 400.0


def answer(model):
    """A start, in a process of its own: its tokens, plainly and with drafts."""
    from augury import Engine

    found = []
    for spec_type in ("none", "ngram-simple:n=1,m=5;self-spec:mode=layers,layers=1"):
        with Engine.load(model, backend="numba-cpu", n_ctx=128, threads=2, spec_type=spec_type, spec_fixed=True) as engine:
            found.append([engine.generate(PROMPT, max_tokens=40, ignore_eos=True, **way).tokens for way in WAYS])
    assert found[0] == found[1]
    print(json.dumps(found[0]))


def start(cache, model):
    """A process that starts with this cache."""
    words = [sys.executable, Path(__file__).parent, "--start", model]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.Popen([*map(str, words)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """What a start that nobody disturbed had to say."""
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, f"a start ended by {process.returncode}:\n{err[-4000:]}"
    return json.loads(out)


def spoil(rng, cache):
    """Damage some files of a cache as a crash, a full disk or a bad one does; returns how many."""
    paths = [path for path in cache.rglob("*") if path.is_file()]
    chosen = rng.sample(paths, min(len(paths), rng.choice([1, 3, len(paths)])))
    for path in chosen:
        data, way = path.read_bytes(), rng.randrange(6)
        if way == 0:
            path.unlink()
        elif way == 1 or not data:
            path.write_bytes(b"")
        elif way == 2:
            path.write_bytes(rng.choice([each for each in paths if each.exists()]).read_bytes())
        else:
            path.write_bytes(damage.mutate(data, rng))
    return len(chosen)


def prepared(home, model):
    """A cache that is whole, as a start with this model leaves it, and the tokens that every other start must give."""
    folder = home / f"cache-{crc32(model.encode())}"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "tokens.json").exists():
            here = cache_folder()  # most of what is needed was compiled before
            if here.exists():
                shutil.copytree(here, folder / "cache" / "augury" / "kernels" / here.name)
            tokens = ended(start(folder / "cache", model))
            (folder / "tokens.json").write_text(json.dumps(tokens))
    return folder / "cache", json.loads((folder / "tokens.json").read_text())


def run(seed, counts, home, models):
    """Several crashes in one cache, and what the start after them says."""
    rng = random.Random(seed)
    tiny = home / "tiny.gguf"
    if not tiny.exists():
        copy = home / f"{os.getpid()}.gguf"
        shutil.copy(tiny_model("llama-dense-q4_0"), copy)
        copy.replace(tiny)
    model = rng.choice([str(tiny), str(tiny), *map(str, (resolve(each, REGISTRY, Progress()) for each in models))])
    template, expected = prepared(home, model)
    with tempfile.TemporaryDirectory(prefix="augury-torture-") as folder:
        cache = Path(folder) / "cache"
        if rng.random() < 0.9:
            shutil.copytree(template, cache)
            for path in [path for path in cache.rglob("*.kernel") if rng.random() < 0.02]:
                path.unlink()  # so that something is compiled
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.5 and cache.exists():
                counts["cache_files_damaged"] += spoil(rng, cache)
            processes = [start(cache, model) for _ in range(rng.choice([1, 1, 2, 3]))]
            for process in processes:
                time.sleep(rng.random() * 2.5)
                process.send_signal(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            for process in processes:
                process.communicate(timeout=LIMIT_S)
                counts["kills"] += 1
                died_by = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 0, 1, 130, 143}
                assert process.returncode in died_by, f"a start that was killed ended by {process.returncode}"
        if rng.random() < 0.5 and cache.exists():
            counts["cache_files_damaged"] += spoil(rng, cache)
        for process in [start(cache, model) for _ in range(rng.choice([1, 2]))]:
            assert ended(process) == expected
            counts["starts"] += 1
        left = [path.name for path in cache.rglob("*.part")]
        assert not left, f"left behind: {left}"
