"""Model files with damage: each is loaded and answers, or is refused, in bounded time and memory, by an `AuguryError`.

Three in ten are files of other kinds; see `fuzz`.
"""

from __future__ import annotations

import functools
import random
import resource
import tempfile
import time
from pathlib import Path

import gguf
from oracles.models import NAMES, tiny_model
from support import damage, fuzz
from torture.engines import REGISTRY

from augury import AuguryError, Engine
from augury.files.models import resolve
from augury.interfaces import Progress
from augury.testing.toys import TINY_TARGET

N_FILES = 250  # of a round
MOST_S = 60.0  # with kernels compiled in it
MOST_KIB = 256 << 10  # more than before, of files that have less than 2 MiB
BACKENDS = ("numba-cpu", "numba-cpu", "toy", "reference")


@functools.cache
def base(name):
    """A file's bytes, and where its weights begin."""
    path = resolve(TINY_TARGET, REGISTRY, Progress()) if name == TINY_TARGET else tiny_model(name)
    return path.read_bytes(), int(gguf.GGUFReader(path).data_offset)


def damaged(rng):
    """Damage to a header, or anywhere."""
    raw, n_header = base(rng.choice([*NAMES, *[TINY_TARGET] * 6]))
    if rng.random() < 0.1:
        return damage.mutate(raw, rng)
    changed = damage.mutate_header(raw[:n_header], rng, len(raw))
    return changed if len(changed) < n_header and rng.random() < 0.5 else changed + raw[len(changed) :]


def run(seed, counts):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="augury-torture-") as folder:
        path = Path(folder) / "damaged.gguf"
        others = [prepare(Path(folder)) for prepare in fuzz.KINDS.values()]
        for number in range(N_FILES):
            if rng.random() < 0.3:
                counts[f"other_files_{rng.choice(others)(rng)}"] += 1
                counts["files"] += 1
                continue
            path.write_bytes(damaged(rng))
            how = {"backend": rng.choice(BACKENDS), "n_ctx": rng.choice([16, 128]), "spec_type": "none", "threads": 1}
            prompt = [rng.randrange(128) for _ in range(rng.randint(1, 12))]
            start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                with Engine.load(path, registry=REGISTRY, **how) as engine:
                    counts["files_loaded"] += 1
                    engine.generate(prompt, max_tokens=6)
                    if engine.tokenizer is not None:
                        engine.generate("a text\n", max_tokens=2)
            except AuguryError as error:
                outcome = str(error)
            except BaseException as error:
                error.add_note(f"file {number}, {how}")
                raise
            else:
                outcome = "answered"
            counts["files"] += 1
            seconds, grown = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert outcome.isprintable(), (number, how, outcome)
            assert seconds < MOST_S, f"file {number}, {how}: it took {seconds:.1f} s; {outcome}"
            assert grown < MOST_KIB or number == 0, f"file {number}, {how}: memory grew by {grown} KiB; {outcome}"
