"""Torture: random engines, failing plugins, cancels, crashes and damaged files, for minutes or hours.

    python tests/torture --minutes 5                                 what make test-all does, for longer
    python tests/torture --seed 3 --models smollm2 --goals tokens=5e6,real_tokens=5e4,files=1e5,starts=300
    python tests/torture --round engines:3000017                     one round again, as a failure told it

Rounds run in several processes, each of which is watched: one that says nothing for minutes has hung, and its threads' stacks
are shown. Every round follows from its kind and number alone, but for the moments at which its threads meet.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

KINDS = {"engines": "tokens", "real": "real_tokens", "files": "files", "starts": "starts"}  # and what of each is counted
GOALS = {"tokens": 5e6, "real_tokens": 5e4, "files": 1e5, "starts": 300}
LIMIT_S = 900.0  # of a round: most take seconds
MOST_GROWTH_KIB = 500 << 10  # of a process, between its rounds, once it has warmed up
N_WARM = 30  # rounds, in which kernels are loaded


def main() -> int:
    """Run what was asked for; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python tests/torture", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, help="stop after so long; without --goals 5")
    parser.add_argument("--goals", default="", help="stop when so much was tried, such as tokens=5e6,files=1e5")
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--models", default="", help="real models for the kind real, joined by commas")
    parser.add_argument("--kinds", default="", help=f"some of {','.join(KINDS)}")
    parser.add_argument("--round", help="one round, in this process: KIND:NUMBER")
    parser.add_argument("--json", type=Path, help="write the summary to a file, too")
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start:
        from torture.starts import answer

        answer(args.start)
        return 0
    with tempfile.TemporaryDirectory(prefix="augury-torture-", ignore_cleanup_errors=True) as home:
        args.home = args.home or Path(home)
        if args.worker:
            work(args)
            return 0
        if args.round:
            kind, _, number = args.round.partition(":")
            print(dict(run_round(kind, int(number), args)))
            return 0
        return Parent(args).run()


# One process's rounds


def run_round(kind: str, number: int, args: argparse.Namespace) -> Counter[str]:
    """A round; raises what it found."""
    counts: Counter[str] = Counter({f"{kind}_rounds": 1})
    logging.getLogger("augury").setLevel(logging.CRITICAL + 1)  # thousands of planted faults are reported there
    threading.excepthook = lambda _: None  # observed by what is missing
    models = [model for model in args.models.split(",") if model]
    if kind == "files":
        from torture import files

        files.run(number, counts)
    elif kind == "starts":
        from torture import starts

        starts.run(number, counts, args.home, models)
    else:
        from torture import engines

        model = random.Random(number).choice(models) if kind == "real" else None
        engines.run(number, counts, model)
        if kind == "real":
            counts = Counter({f"real_{name}" if name == "tokens" else name: n for name, n in counts.items()})
    return counts


def work(args: argparse.Namespace) -> None:
    """Run the rounds that standard input names, and tell on standard output what they counted or found."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed
    left: tuple[int, int, int] | None = None
    for n, line in enumerate(sys.stdin):
        kind, number = line.split()
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        told: dict[str, object] = {}
        try:
            told["counts"] = run_round(kind, int(number), args)
            held = held_now(left)
            if n >= N_WARM:
                left = left or held
                told["grown_kib"] = check_leaks(left, held)
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            told["failure"] = "".join(traceback.format_exception(error))
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(told), file=out)


def held_now(before: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Threads, open files and KiB of memory of this process, as soon as there are no more threads than before."""
    gc.collect()
    deadline = time.monotonic() + 30
    while (n_threads := n_in("/proc/self/task")) > (before or (n_threads,))[0] and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread that has ended takes a moment to be gone
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return n_threads, n_in("/proc/self/fd"), (resident - shared) * os.sysconf("SC_PAGE_SIZE") >> 10


def n_in(folder: str) -> int:
    return len([*Path(folder).iterdir()])


def check_leaks(before: tuple[int, int, int], after: tuple[int, int, int]) -> int:
    """Raise where rounds left more than they found; returns by how many KiB memory has grown."""
    threads, files, kib = (b - a for a, b in zip(before, after, strict=True))
    assert threads <= 0, f"{threads} threads more than after the first rounds"
    assert files <= 0, f"{files} open files more than after the first rounds"
    assert kib < MOST_GROWTH_KIB, f"{kib} KiB more than after the first rounds"
    return kib


# All of them


class Parent:
    """Hands out rounds, watches the processes, and adds up."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        asked = {name: float(value) for name, value in (each.split("=") for each in args.goals.split(",") if each)}
        self.goals = {name: asked.get(name, 0.0) if asked else n for name, n in GOALS.items()}
        kinds = [kind for kind in (args.kinds or ",".join(KINDS)).split(",") if self.goals[KINDS[kind]]]
        self.kinds = [kind for kind in kinds if kind != "real" or args.models]
        minutes = args.minutes or (None if asked else 5.0)
        self.ends_at = None if minutes is None else time.monotonic() + 60 * minutes
        self.counts: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.failures: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    def run(self) -> int:
        """All rounds, and the summary."""
        start = time.monotonic()
        print(f"seed {self.args.seed}, {self.args.jobs} processes, {', '.join(self.kinds)}", flush=True)
        threads = [threading.Thread(target=self.drive) for _ in range(self.args.jobs)]
        for thread in threads:
            thread.start()
        while running := [thread for thread in threads if thread.is_alive()]:
            running[0].join(30)
            print(f"{time.monotonic() - start:6.0f} s  {self.line()}", flush=True)
        summary = {"seed": self.args.seed, "seconds": round(time.monotonic() - start), "jobs": self.args.jobs}
        summary |= {"failures": len(self.failures), "counts": dict(sorted(self.counts.items()))}
        text = json.dumps(summary, indent=2)
        print(text)
        if self.args.json:
            self.args.json.write_text(text + "\n")
        return 1 if self.failures else 0

    def line(self) -> str:
        """How far it has come."""
        told = ", ".join(f"{self.counts[name]} {name}" for kind, name in KINDS.items() if kind in self.kinds)
        return f"{told}, {self.counts['faults']} faults, {self.counts['cancels']} cancels, {len(self.failures)} failures"

    def next_round(self) -> tuple[str, int] | None:
        """The kind that is furthest from its goal, each started once before any twice; None at the end."""
        with self.lock:
            left = [kind for kind in self.kinds if self.counts[KINDS[kind]] < self.goals[KINDS[kind]]]
            is_over = self.ends_at is not None and time.monotonic() >= self.ends_at
            if is_over or not left or len(self.failures) >= 20:
                return None
            kind = min(left, key=lambda kind: (self.started[kind] > 0, self.counts[KINDS[kind]] / self.goals[KINDS[kind]]))
            self.started[kind] += 1
            return kind, self.args.seed * 1_000_000 + self.started[kind]

    def drive(self) -> None:
        """Keep one process busy."""
        worker = None
        while (chosen := self.next_round()) is not None:
            if worker is None:
                worker = Worker(self.args)
            told = worker.ask(*chosen)
            with self.lock:
                self.counts.update(told.get("counts", {}))
                self.counts["most_kib_grown"] = max(self.counts["most_kib_grown"], told.get("grown_kib", 0))
            if "failure" in told:
                self.fail(chosen, told["failure"])
                worker.close()
                worker = None
        if worker is not None:
            worker.close()

    def fail(self, chosen: tuple[str, int], failure: str) -> None:
        """Say at once what was found, and how to see it again."""
        kind, number = chosen
        models = f" --models {self.args.models}" if self.args.models else ""
        with self.lock:
            self.failures.append((f"{kind}:{number}", failure))
            print(f"FAILED {kind}:{number}\n{failure}\nagain: python tests/torture{models} --round {kind}:{number}", flush=True)


class Worker:
    """A process that runs rounds one after another."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close
        words = [sys.executable, Path(__file__).parent, "--worker", "--models", args.models, "--home", args.home]
        self._process = subprocess.Popen(
            [*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err, text=True, bufsize=1
        )

    def ask(self, kind: str, number: int) -> dict:
        """What a round came to; a process that died of it has failed."""
        self._process.stdin.write(f"{kind} {number}\n")
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._err.seek(0)
        return {"failure": f"the process ended by {code}:\n{self._err.read()[-6000:]}"}

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._err.close()


if __name__ == "__main__":
    sys.exit(main())
