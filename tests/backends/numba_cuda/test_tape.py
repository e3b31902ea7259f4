"""How many tokens a pass has, how many blocks attend to how many positions, and the memory for it, by the context's size."""

import attrs
import numpy as np
import pytest
from cuda_simulator.device import CountingDevice
from gpu.models import LARGE, MIDDLE, Q4_K_M, TINY, random_model
from hypothesis import given, strategies as st
from oracles.cuda_launches import placed
from oracles.models import tiny_file
from oracles.passes import joined, run_of, tree_of

from augury.backends.numba.lowering import Parts
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.attention import ATTEND
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.latent_attention import ATTEND_LATENT
from augury.backends.numba_cuda.kernels.splits import SPLIT
from augury.backends.numba_cuda.lowering import PASS_SIZES, size_of
from augury.backends.numba_cuda.model import CudaModel
from augury.backends.numba_cuda.tape import splits_seen
from augury.passes import ArrayPass
from augury.types import ModelInfo

LAYERS = {shape.name: attrs.evolve(shape, n_layers=1, n_ff=256, n_vocab=256) for shape in (MIDDLE, LARGE)}
ATTENTION = {*ATTEND.values(), *ATTEND_LATENT.values()}


def attending(lowering, size):
    """The launches of attention in a pass of a size through one layer, and their arguments by name."""
    for step in lowering.steps(size, Parts((0, 1))).steps:
        if isinstance(step, Launch) and step.kernel in ATTENTION:
            yield step, step.kernel.grouped([*step.arguments])[1]


def counted(file, n_ctx):
    """A model of so many positions on a device that computes nothing."""
    lowering = placed(file, CountingDevice(), {}, n_ctx, 2)
    return CudaModel(ModelInfo.of(file, lowering.plan), lowering, CountingDevice())


@pytest.mark.parametrize("n_ctx", [4096, 8192, 32768, 131072])
def test_passes_of_a_prompt_are_as_long_in_any_context(n_ctx, monkeypatch):
    model, spans = counted(random_model(TINY, Q4_K_M, is_hollow=True), n_ctx), []

    def passed(batch, tree, span, *rest):
        spans.append(span.stop - span.start)
        return ArrayPass(np.zeros((0, 1), np.float32))

    monkeypatch.setattr(model, "_pass", passed)
    for start in {0, n_ctx - 4096}:
        model.forward(run_of(np.zeros(4096, np.int32), start=start, rows=[]))
    assert set(spans) == {MAX_TOKENS}


def test_of_layers_that_nobody_reads_only_the_last_is_written_in_part():
    lowering = placed(tiny_file("llama-dense"), CountingDevice(), {})

    def steps(**how):
        found = lowering.steps(size_of(1, 0), Parts(**how)).steps
        return [each.kernel.name for each in found if isinstance(each, Launch)]

    whole, unread, first = steps(layers=(0, 2)), steps(layers=(0, 2), is_read=False), steps(layers=(0, 1), is_read=False)
    assert unread == whole[: len(unread)]
    assert len(first) < len(unread) < len(whole)


@pytest.mark.parametrize("n_ctx", [512, 8192, 131072])
@pytest.mark.parametrize("name", LAYERS)
def test_the_results_of_splits_have_room_wherever_a_pass_of_all_tokens_ends(name, n_ctx):
    lowering = placed(random_model(LAYERS[name], Q4_K_M, is_hollow=True), CountingDevice(), {}, n_ctx)
    n_bytes = lowering.buffers["parts of attention"].buffer.n_bytes
    assert n_bytes <= 128 << 20
    for last in (255, n_ctx // 2, n_ctx - 1):
        for is_run in (False, True):
            firsts = []
            for launch, params in attending(lowering, size_of(MAX_TOKENS, last, is_run=is_run)):
                n = launch.grid[2] << params.step
                assert 4 * n * params.n_heads * params.n_splits * (params.value_dim + 2) <= n_bytes
                firsts.append((params.first_token, n))
            assert firsts == [(n * i, n) for i in range(MAX_TOKENS // n)], "tokens that never attend"


@pytest.mark.parametrize("position", [0, 255, 511, 512, 4000, 8199, 32767])
def test_blocks_attend_to_positions_that_exist(position):
    lowering = placed(random_model(LAYERS["8B"], Q4_K_M, is_hollow=True), CountingDevice(), {}, 32768)
    n_seen = position // SPLIT + 1
    for n in (1, 8):
        for is_run in (False, True):
            for launch, _ in attending(lowering, size_of(n, position, is_run=is_run)):
                assert n_seen <= launch.grid[0] <= max(2, 2 * n_seen - 1)
                assert launch.grid[2] == (-(-n // 4) if is_run else n), "four heads share keys, so four tokens share a block"


def test_blocks_attend_to_positions_in_a_window():
    lowering = placed(tiny_file("gemma3-dense"), CountingDevice(), {}, 32768)
    ((launch, params),) = attending(lowering, size_of(1, 32767))
    assert 0 < params.window < SPLIT
    assert launch.grid[0] == 2


@given(st.integers(0, 5000), st.integers(1, 2000), st.integers(1, 64))
def test_splits_of_a_window_are_those_of_all_its_tokens(position, window, n_tokens):
    first, last = max(0, position + 1 - window), position + n_tokens - 1
    n_splits = last // SPLIT + 1
    assert n_splits - first // SPLIT <= splits_seen(n_splits, window, n_tokens) <= n_splits
    assert splits_seen(n_splits, window, n_tokens) <= (window + n_tokens) // SPLIT + 2
    assert splits_seen(n_splits, 0, n_tokens) == n_splits


@pytest.mark.parametrize(
    ("batch", "is_run"),
    [
        (run_of([1, 2, 3]), True),
        (run_of([1, 2, 3], slot=1, start=9), True),
        (run_of([1]), False),
        (joined(run_of([1, 2]), run_of([3], slot=1, start=2)), False),
        (joined(run_of([1, 2]), run_of([3], start=7)), False),
        (tree_of([1, 2, 3], [-1, 0, 1]), True),
        (tree_of([1, 2, 3], [-1, 0, 0]), False),
    ],
)
def test_neighbouring_tokens_of_one_slot_are_a_run(batch, is_run, monkeypatch):
    model = counted(tiny_file("llama-dense"), 64)

    def program(size, parts):
        raise LookupError(size)

    monkeypatch.setattr(model, "_program", program)
    with pytest.raises(LookupError) as raised:
        model.forward(batch)
    assert raised.value.args[0].is_run == is_run


def test_kernels_of_few_splits_are_prepared_beside_those_of_many():
    lowering = placed(tiny_file("deepseek2-moe"), CountingDevice(), {}, 8192)
    ready = {kernel.name for kernel in lowering.kernels()}
    for n in PASS_SIZES:
        for last in (0, 255, 3000, 8191):
            steps = lowering.steps(size_of(n, last), Parts((0, len(lowering.plan.layers)))).steps
            assert {step.kernel.name for step in steps if isinstance(step, Launch)} <= ready
