"""How far matrices and properties go: a seeded sample, or by options what it left out, all, or the least. See docs/testing.md.

And what is checked of every result of every test: that its statistics add up.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections import Counter
from functools import cache
from importlib import metadata
from itertools import combinations_with_replacement, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, gettempdir

import pytest
from hypothesis import settings

from augury.engine import prompt_files
from augury.engine.sequence import RunningSequence
from augury.testing.drafter.engines import miscounts
from augury.text import chat_template
from augury.text.renderer import Renderer

SEED = 12

# no deadlines, for how long an example takes says more about the machine than about the code
for name, n_examples in (("once", 5), ("sample", 20), ("rest", 100), ("full", 300)):
    settings.register_profile(name, max_examples=n_examples, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="session", autouse=True)
def _counted():
    """The statistics of every result of every test add up; where they do not, whoever waits for the request is told."""
    make = RunningSequence.result

    def result(sequence):
        made = make(sequence)
        assert miscounts(made) == []
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningSequence, "result", result)
        yield


@pytest.fixture(scope="session", autouse=True)
def _renderer():
    """The chat templates of a process are rendered by one other, which takes longer to start than most tests."""
    kept = Renderer()
    kept.close = lambda: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template, "Renderer", lambda: kept)
        yield
    Renderer.close(kept)


@pytest.fixture(scope="session", autouse=True)
def _entry_points():
    """The entry points of the environment are read once for a `sys.path`: each registry would open a hundred files for them."""
    find = metadata.entry_points
    found = cache(lambda _path, _times, of: find(**dict(of)))

    def entry_points(**of):
        times = tuple(Path(each).stat().st_mtime_ns for each in sys.path if Path(each).exists())
        return found(tuple(sys.path), times, tuple(of.items()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "entry_points", entry_points)
        yield


@pytest.fixture(scope="session", autouse=True)
def _untranslated():
    """For every parser argparse looks for translations of its words anew, of which Python has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse, "_", str)
        yield


@pytest.fixture(scope="session", autouse=True)
def _prompts(tmp_path_factory):
    """Prompts are not kept in the user's cache, where later runs would find them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_files, "cache_folder", tmp_path_factory.mktemp("cache").joinpath)
        yield


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="all cases of the tests marked with sample, and more of properties")
    parser.addoption(
        "--rest", action="store_true", help="of the cases left out without it as many as are worth it, and properties"
    )
    parser.addoption("--once", action="store_true", help="one case of each test, for another Python")


def pytest_configure(config):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:  # as in a shell's background: commands under test would inherit it
            signal.signal(number, signal.SIG_DFL)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # in each process that pytest-xdist starts: together they have all cores
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or else each of hundreds of processes would compile all that it imports
    sys.dont_write_bytecode = False
    os.environ.pop("COLUMNS", None)  # the width of whoever runs the tests, which pytest-xdist tells its processes
    if "TINY_MODELS" not in os.environ:  # where `oracles.models` writes what all processes that are started from here read
        folder = TemporaryDirectory(prefix="augury-models-", ignore_cleanup_errors=True)
        os.environ["TINY_MODELS"] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(lambda: os.environ.pop("TINY_MODELS"))
    # JAX compiles a training once for all tests of a process and what they start; it locks nothing that processes would share
    compiled = TemporaryDirectory(prefix="augury-jax-", ignore_cleanup_errors=True)
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": compiled.name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    config.add_cleanup(compiled.cleanup)
    settings.load_profile(next((name for name in ("full", "rest", "once") if config.getoption(name)), "sample"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect nothing of what modules and tests are made of, nor look at it again: that would be a tenth of all CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)  # 700 would take a twentieth of the time of all tests
        gc.enable()


@pytest.hookimpl(wrapper=True, optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers(config):
    """With `--rest` a process more than there are cores, because one of them waits for minutes."""
    return (yield) + config.getoption("rest")


@pytest.hookimpl(trylast=True)  # of what -k and -m have left
def pytest_collection_modifyitems(config, items):
    strange = [item.nodeid for item in items if gettempdir() in item.nodeid]
    assert not strange, f"tests with paths in their names differ from process to process: {strange}"
    if not config.getoption("full"):
        left_out = left_out_of(items, config)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=[*left_out])
    items[:] = spread(items, getattr(config, "workerinput", {}).get("workercount", 1))


def spread(items, n_processes):
    """Begin the share of each process, as many tests one after another, with some of those that wait, then of the slow ones."""
    groups = {"waits": [], "slow": [], None: []}
    for item in items:
        groups[next((name for name in ("waits", "slow") if item.get_closest_marker(name) is not None), None)].append(item)
    waiting, slow, others, in_order = groups["waits"], groups["slow"], iter(groups[None]), []
    for i in range(n_processes):
        # neighbours stay together: they compile the same
        begun = [*waiting[i::n_processes], *slow[len(slow) * i // n_processes : len(slow) * (i + 1) // n_processes]]
        size = (len(items) - len(in_order)) // (n_processes - i)
        in_order += [*begun, *islice(others, max(0, size - len(begun)))]
    return in_order


def left_out_of(items, config):
    """The tests that a run without `--full` leaves out."""
    cases = {}
    for item in items:
        if n_wanted(item, config) is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out, further = set(), set()
    for matrix in cases.values():
        n = n_wanted(matrix[0], config)
        n = max(n, 1) if is_named(matrix[0], config) else n
        n_further = matrix[0].get_closest_marker("sample").kwargs.get("rest", len(matrix)) if config.getoption("rest") else 0
        in_turn = sample(matrix, n + n_further)
        left_out |= {*matrix} - {*in_turn[:n]}
        further |= {*untried(in_turn, n)}
    if config.getoption("rest"):
        left_out = {item for item in items if item not in further and not is_property(item)}
    return left_out


def n_wanted(item, config):
    """How many cases of a test are to run; None is all."""
    mark = item.get_closest_marker("sample")
    if config.getoption("once"):
        return 1 if mark is None else min(1, *mark.args)
    return None if mark is None else mark.args[0]


def is_named(item, config):
    """Whether the command line asks for a test: by -k, its file or its id."""
    if config.option.keyword:
        return True
    test = item.nodeid.partition("::")[2]
    for word in config.args:
        file, _, name = word.partition("::")
        is_there = name in {"", test} or test.startswith((f"{name}[", f"{name}::"))
        if is_there and config.invocation_params.dir / file == item.path:
            return True
    return False


def is_property(item):
    """Whether a test tries more examples with `--rest`, because it has no number of its own."""
    test = getattr(item, "obj", None)
    if not getattr(test, "is_hypothesis_test", False):
        return False
    return test._hypothesis_internal_use_settings.max_examples == settings().max_examples


def sample(matrix, n):
    """Choose n cases of a test, one after another.

    The next one is always that whose parameters' values, each and in pairs, were tried least often: so as many of them as
    possible are tried, and about equally often. Among equals chance decides, by the case's name: other tests change nothing.
    """
    left, chosen, tried = {item: (pairs_of(item), chance(item)) for item in matrix}, [], Counter()
    for _ in matrix[:n]:
        item = min(left, key=lambda each: (sum(tried[pair] for pair in left[each][0]), left[each][1]))
        chosen.append(item)
        tried.update(left.pop(item)[0])
    return chosen


def untried(in_turn, n):
    """The cases after the first n that try a value, or a pair of values, that none before them has; a test's only case does."""
    tried = {pair for item in in_turn[:n] for pair in pairs_of(item)}
    for item in in_turn[n:]:
        pairs = pairs_of(item)
        if not pairs or not tried.issuperset(pairs):
            yield item
        tried.update(pairs)


def pairs_of(item):
    values = [(name, id(value)) for name, value in params_of(item).items()]  # not all values can be hashed
    return tuple(combinations_with_replacement(values, 2))


def params_of(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def chance(item):
    return Random(f"{SEED}/{item.name.partition('[')[2][:-1]}").random()
