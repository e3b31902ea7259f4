"""Attention of blocks that nobody has written, in orders and with parts that no block of augury has: as the reference."""

from collections.abc import Callable
from functools import partial

import attrs
import numpy as np
import pytest
from oracles.models import altered, nmse, tiny_file
from oracles.passes import run_of

from augury import Registry
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.blocks import Block, GateKind, Linear, Matrices, Norm, Preparation, Rope, Temperature
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.lowering import AddWeighed, Attend, Choose, ChooseByHead, Gate, Join, Multiply, PositionChoice, PrepareLatents
from augury.plugins.pooling import Pooling
from augury.types import ModelOptions

E, H, G, D = 256, 4, 2, 32
REGISTRY = Registry.discover()
TOKENS = np.random.default_rng(3).integers(0, 128, 5).astype(np.int32)
ROPE, OTHER = (Rope(base ** (-np.arange(n) / n)) for base, n in ((100.0, 8), (30.0, 16)))
SHAPES = {"norm": (E,), "q": (H * D, E), "k": (G * D, E), "v": (G * D, E), "gate": (H, E), "o": (E, H * D), "head": (D,)}
SHAPES |= {"row": (D, E), "heads": (H, D, D)}
TENSORS = {name: np.random.default_rng(len(name)).standard_normal(shape) / 8 for name, shape in SHAPES.items()}
PLAIN = (Preparation(rope=ROPE), Preparation(rope=ROPE), Preparation())
STEPS = {
    "values are turned, too": (*PLAIN[:2], Preparation(rope=OTHER)),
    "keys are turned otherwise": (PLAIN[0], Preparation(rope=OTHER), PLAIN[2]),
    "queries alone are clamped": (Preparation(clamp=0.1, rope=ROPE), *PLAIN[1:]),
    "keys are normed": (PLAIN[0], Preparation(norm=Norm("head", D, 1e-5), rope=ROPE), PLAIN[2]),
}


NORM = Norm("norm", E, 1e-5)


def linear(name):
    return Linear(name, SHAPES[name][1], SHAPES[name][0])


@attrs.frozen
class Odd(Block):
    steps: tuple = PLAIN
    reads_queries: bool = False  # once more, as they were before they were prepared
    is_backwards: bool = False  # products in another order, and of two launches

    def tensors(self):
        norms = (step.norm for step in self.steps if step.norm is not None)
        return (NORM, *norms, *map(linear, ("q", "k", "v", "gate", "o")))

    def cached(self):
        return (("cache_type_k", G, D), ("cache_type_v", G, D))

    def lower(self, build):
        n = build.normalize(build.x, NORM)
        if self.is_backwards:
            v, q, gate = build.add(Multiply, n, tuple(map(linear, ("v", "q", "gate"))), "products")
            (k,) = build.add(Multiply, n, (linear("k"),), "keys")
        else:
            q, k, v, gate = build.add(Multiply, n, tuple(map(linear, ("q", "k", "v", "gate"))), "products")
        queries, *_ = build.prepare_heads((q, k, v), (D,) * 3, self.steps, (None, 0, 1))
        y = build.add(Gate, build.add(Attend, queries, 0, 1, H, D, 0.2), gate, GateKind.SIGMOID)
        if self.reads_queries:
            y = build.add(AddWeighed, y, q)
        build.add_product(y, linear("o"), "out")


def rows_of(backend, block):
    file = altered(tiny_file("llama-dense"), arrays=TENSORS)
    plan = plan_of(file, REGISTRY)
    plan = attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], mixer=block),))
    device = NumbaCuda(NumbaCudaOptions()) if backend == "numba-cuda" else make_backend(REGISTRY, backend)
    model = device.load(
        file, plan, ModelOptions(n_slots=2, n_ctx=32, threads=1, cache_type_k="f16", cache_type_v="f16"), Progress()
    )
    rows = model.forward(run_of(TOKENS)).rows().copy()
    assert np.array_equal(model.forward(run_of(TOKENS[:1], slot=1)).rows(), rows[:1]) or backend == "reference"
    return rows


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "block",
    [*(Odd(steps) for steps in STEPS.values()), Odd(is_backwards=True), Odd(reads_queries=True)],
    ids=[*STEPS, "products come in another order", "queries are read again"],
)
def test_heads_that_no_kernel_prepares_at_once_are_prepared_as_the_reference_does(block):
    assert nmse(rows_of("numba-cuda", block), rows_of("reference", block)) < 1e-6


def test_heads_that_are_kept_and_sharpened_are_refused():
    block = Odd((PLAIN[0], Preparation(rope=ROPE, temperature=Temperature(0.1, 4.0)), PLAIN[2]))
    with pytest.raises(UnsupportedError, match="heads that are kept, and multiplied by a temperature"):
        rows_of("numba-cuda", block)


@attrs.frozen
class Listing(Block):
    """Attends to rows of one head, as a function says of a builder, norm(x), and queries."""

    attend: Callable
    n_caches: int = 1

    def tensors(self):
        return (NORM, *map(linear, ("q", "row", "gate", "o")), HEADS)

    def cached(self):
        return (("cache_type_k", 1, D), ("f32", 1, D), ("cache_type_k", 1, D))[: self.n_caches]

    def lower(self, build):
        n = build.normalize(build.x, NORM)
        q, row = build.add(Multiply, n, (linear("q"), linear("row")), "products")
        build.add_product(self.attend(build, n, q, row), linear("o"), "out")


HEADS = Matrices("heads", H, D, D)
EQUAL = Preparation()


def attended(build, q, choice=None, pooled=None):
    return build.add(Attend, q, 0, None, H, D, 0.2, choice=choice, pooled=pooled)


def weighed(build, n, q, row, *, is_first=False):
    build.prepare_heads([row], [D], [EQUAL], [0])
    weights, compared = build.add(Multiply, n, (attrs.evolve(linear("gate"), scale=0.5), linear("q")), "products")
    return attended(build, q, build.add(Choose, compared if is_first else q, weights, 0, 3))


def unweighed(build, n, q, row):
    build.prepare_heads([row], [D], [EQUAL], [0])
    return attended(build, q, build.add(ChooseByHead, q, 0, 3, 0, PositionChoice(H, size=2)))


def pooled(build, n, q, row):
    build.prepare_heads([row], [D], [EQUAL], [0])
    Pooling(4, linear("row")).pool(build, build.add(Multiply, n, (linear("row"),), "values"), 1)
    return attended(build, q, build.add(Choose, q, None, 2, 3, PositionChoice(1, size=4)), 2)


def wide(build, n, q, row):
    build.prepare_heads([row], [D], [EQUAL], [0])
    (heads,) = build.prepare_heads([build.add(Join, (q, q, q, q, q))], [5 * H * D], [Preparation(clamp=1.0)])
    return attended(build, heads.split(H * D)[0])


def latent(build, n, q, row):
    norm = Norm("head", D, 1e-5)
    return attended(build, build.add(PrepareLatents, q, row, HEADS, norm, None, None, None, 0))


def test_weights_of_a_choice_may_come_from_another_product():
    block = Listing(weighed)
    assert nmse(rows_of("numba-cuda", block), rows_of("reference", block)) < 1e-6


@pytest.mark.parametrize(
    ("told", "block"),
    {
        "weights of queries that do not lie after these": Listing(partial(weighed, is_first=True)),
        "an indexer that does not always choose the last block": Listing(unweighed),
        "heads of 640 values": Listing(wide),
        "pooled rows are attended to beside a window": Listing(pooled, n_caches=3),
        "latents that are mixed and not multiplied by heads' matrices": Listing(latent),
    }.items(),
)
def test_what_kernels_do_not_choose_or_attend_to_is_refused(told, block):
    with pytest.raises(UnsupportedError, match=told):
        rows_of("numba-cuda", block)
