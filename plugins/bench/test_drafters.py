"""Compares drafters with plain decoding, greedy, as pytest-benchmark's benchmarks: one per drafter and prompt.

`pytest --pyargs augury.plugins.bench --augury-model M --augury-drafter a --augury-drafter b`. pytest-benchmark times the
drafted runs, after the prompt is processed. Ratios to the plain runs beside them, acceptance and the machine stand in
`extra_info` of its JSON (`--benchmark-json FILE`), which `augury bench drafters --compare FILE` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from augury import Engine, Registry
from augury.cli import Prompt
from augury.errors import AuguryError
from augury.extras import install_command
from augury.plugins.bench.machine import run_facts
from augury.plugins.bench.pair_stats import PairStats, drafter_label
from augury.plugins.bench.paired_runs import Pair, PairedRuns
from augury.plugins.bench.pytest_plugin import FOUND
from augury.plugins.bench.workload import builtin_workload, read_workload
from augury.speculation.config import choose_drafters

_SEED = 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A benchmark for every drafter, prompt and state of the drafter."""
    option = metafunc.config.getoption
    if not metafunc.config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(f"comparisons need pytest-benchmark; install augury with it: {install_command('testing')}")
    prompts = _workload(metafunc.config)
    specs = list(dict.fromkeys(option("augury_drafter")))
    registry = Registry.discover()
    try:
        for text in specs:
            choose_drafters(registry, text)
    except AuguryError as error:
        raise pytest.UsageError(f"--augury-drafter: {error}") from None
    for name in ("augury_pairs", "augury_tokens"):
        if option(name) < 1:
            raise pytest.UsageError(f"--{name.replace('_', '-')} is {option(name)}, expected at least 1")
    states = ("cold", "warm") if option("augury_warm") else ("cold",)
    cases = [(spec, prompt, state) for spec in specs for prompt in prompts for state in states]
    ids = [f"{spec}-{prompt.id}-{state}" for spec, prompt, state in cases]
    metafunc.parametrize(("spec", "prompt", "state"), cases, ids=ids)


def _workload(config: pytest.Config) -> list[Prompt]:
    path = config.getoption("augury_workload")
    try:
        return read_workload(path) if path else builtin_workload()
    except AuguryError as error:
        raise pytest.UsageError(f"--augury-workload: {error}") from None


@pytest.fixture
def runs(request: pytest.FixtureRequest, spec: str, prompt: Prompt) -> Iterator[PairedRuns]:
    """The prompt, with engines as the options want them."""
    option = request.config.getoption

    def load() -> Engine:
        return Engine.load(
            option("augury_model"),
            spec_type=spec,
            backend=option("augury_backend"),
            threads=option("augury_threads"),
            spec_fixed=option("augury_fixed"),
            spec_synth_len=option("augury_synth_len"),
        )

    with closing(PairedRuns(load, {"temperature": 0, "seed": _SEED, "max_tokens": option("augury_tokens")}, prompt)) as runs:
        yield runs


def test_drafter_against_plain_decoding(
    benchmark: Any, request: pytest.FixtureRequest, runs: PairedRuns, spec: str, prompt: Prompt, state: str
) -> None:
    """The output is that of plain decoding; how much faster it came is in the benchmark's `extra_info`."""
    pairs, n_pairs = list[Pair](), request.config.getoption("augury_pairs")
    benchmark.group = f"{prompt.category}, {state}"
    benchmark.pedantic(
        runs.drafted,
        setup=lambda: runs.begin(len(pairs), is_warm=state == "warm"),
        teardown=lambda: pairs.append(runs.end()),
        rounds=n_pairs,
    )
    stats = PairStats.of(pairs)
    about = {"spec_type": runs.config["spec_type"], "category": prompt.category, "item": prompt.id, "state": state}
    facts = run_facts(runs.config, _workload(request.config), request.config.getoption("augury_tokens"))
    benchmark.extra_info |= about | stats.as_json() | {"machine": facts}
    label = drafter_label(runs.config["spec_type"], state, is_synthetic=bool(stats.synthetic))
    request.config.stash[FOUND].setdefault((label, prompt.category), []).append(stats)
    assert not stats.is_changed, f"{spec} changed the output of {prompt.id}; speculation must never do that"
