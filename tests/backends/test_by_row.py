"""Operations that packages bring: what their functions are given, and when they are compiled again."""

from typing import Any, ClassVar

import attrs
import numpy as np
import pytest
from oracles.models import nmse, tiny_file
from oracles.passes import run_of
from oracles.states import script_rows

from augury import Registry, UnsupportedError
from augury.backends.numba_cpu.operations.rows import _name
from augury.blocks import Block, FeedForward, Vector
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.lowering import Activate, CachedRows, Multiply, Operation, Value, source_key
from augury.types import ModelOptions

REGISTRY = Registry.discover()
FILE = tiny_file("llama-dense")


def weave(x, weights, factor, every, y, total, rest):
    total[0] = 0.0
    for i in range(len(x)):
        if i % every == 0:
            rest[i] = x[i] - y[i]
        else:
            rest[i] = factor * weights[i] * x[i]
        total[0] += rest[i]
    for i in range(len(x)):
        rest[i] += total[0] / len(x)


@attrs.frozen(eq=False)
class Weave(Operation):
    x: Value
    weights: Vector
    factor: float
    every: int
    y: Value
    out: tuple[Value, ...]

    kernels: ClassVar = {"reference": weave, "numba-cpu": weave}


@attrs.frozen(eq=False)
class Named(Operation):
    x: Value
    name: Any
    out: tuple[Value, ...]

    kernels: ClassVar = {"numba-cpu": weave}


N_SEEN = []


def average(x, rows, out):
    N_SEEN.append(len(rows))
    rows[-1] = x
    out[:] = rows.mean(axis=0)


@attrs.frozen(eq=False)
class Average(Operation):
    x: Value
    rows: CachedRows
    out: Value

    kernels: ClassVar = {"reference": average, "numba-cpu": average}

    def cached(self):
        return {self.rows.cache: self.rows.width}


@attrs.frozen
class Averaging(Block):
    inner: FeedForward

    def tensors(self):
        return self.inner.tensors()

    def cached(self):
        return (("f32", 1, self.inner.up.n_in),)

    def lower(self, build):
        n = build.normalize(build.x, self.inner.norm)
        mean = build.add(Average, n, CachedRows(0, n.width), Value(n.width))
        (up,) = build.add(Multiply, mean, (self.inner.up,), "up")
        build.add_product(up, self.inner.down, "down")


@attrs.frozen
class Woven(Block):
    inner: FeedForward
    make: Any

    def tensors(self):
        return self.inner.tensors()

    def lower(self, build):
        n = build.normalize(build.x, self.inner.norm)
        gate, up = build.add(Multiply, n, (self.inner.gate, self.inner.up), "products")
        *_, rest = build.add(self.make, n, gate, up, Vector(self.inner.norm.weight, n.width))
        (up,) = build.add(Multiply, rest, (self.inner.up,), "up")
        build.add_product(build.add(Activate, up, self.inner.activation), self.inner.down, "down")


def rows_of(backend, make):
    plan = plan_of(FILE, REGISTRY)
    layer = attrs.evolve(plan.layers[0], feed_forward=Woven(plan.layers[0].feed_forward, make))
    return script_rows(REGISTRY.backends[backend], FILE, attrs.evolve(plan, layers=(layer, *plan.layers[1:])))


def test_rows_vectors_and_numbers_are_given_in_the_order_of_the_fields():
    def make(n, gate, up, weights):
        return Weave(n, weights, 0.5, 3, n, (Value(1), Value(n.width)))

    assert nmse(rows_of("numba-cpu", make), rows_of("reference", make)) < 1e-6


def averaging():
    plan = plan_of(FILE, REGISTRY)
    layer = attrs.evolve(plan.layers[0], feed_forward=Averaging(plan.layers[0].feed_forward))
    return attrs.evolve(plan, layers=(layer, *plan.layers[1:]))


def test_an_operation_sees_what_earlier_tokens_of_its_sequence_have_kept():
    kind, options, tokens = REGISTRY.backends["reference"], ModelOptions(n_slots=2, n_ctx=16), [5, 3, 5, 8]
    model = kind(kind.options_class()).load(FILE, averaging(), options, Progress())
    N_SEEN.clear()
    whole = model.forward(run_of(tokens)).rows()
    assert N_SEEN == [1, 2, 3, 4]
    model.forward(run_of([9, 9], slot=1))
    alone = [model.forward(run_of([token], start=start)).rows()[0] for start, token in enumerate(tokens)]
    assert np.array_equal(whole, alone)


def test_a_field_that_a_row_cannot_be_computed_of_is_refused():
    with pytest.raises(UnsupportedError, match="operation Average has a CachedRows; by rows numba-cpu takes values"):
        script_rows(REGISTRY.backends["numba-cpu"], FILE, averaging())
    with pytest.raises(
        UnsupportedError, match="operation Named has a str; by rows numba-cpu takes values, vectors, and numbers"
    ):
        rows_of("numba-cpu", lambda n, gate, up, weights: Named(n, "what", (Value(n.width),)))


def test_code_is_compiled_again_where_its_file_or_what_it_encloses_is_another(tmp_path):
    def made(text, factor):
        names = {}
        path = tmp_path / "package.py"
        path.write_text(text)
        exec(compile(text, path, "exec"), names)
        return _name(names["make"](factor), (np.ndarray, np.ndarray))

    text = "def make(factor):\n    def scale(x, out):\n        out[:] = helped(factor * x)\n    return scale\n{}"
    first = made(text.format("def helped(x): return x\n"), 2.0)
    assert first == made(text.format("def helped(x): return x\n"), 2.0)
    others = {made(text.format("def helped(x): return x\n"), 3.0), made(text.format("def helped(x): return -x\n"), 2.0)}
    assert len({first, *others}) == 3
    assert first.startswith("scale_")


def test_code_that_no_file_has_is_told_apart_by_its_numbers_and_by_what_it_calls():
    def made(body):
        names = {}
        exec(compile(f"def scale(x, out):\n    {body}", "<cell>", "exec"), names)
        return _name(names["scale"], (np.ndarray, np.ndarray))

    bodies = ("out[:] = 2.0 * x", "out[:] = 3.0 * x", "out[:] = sin(x)", "out[:] = cos(x)")
    assert len({made(body) for body in bodies}) == len(bodies)
    assert made(bodies[0]) == made(bodies[0])


def test_code_of_a_file_goes_by_the_file_alone_whatever_a_version_of_python_makes_of_it(tmp_path):
    def made(body):
        names = {}
        exec(compile(f"def scale(x, out):\n    {body}", path, "exec"), names)
        return source_key(names["scale"])

    path = tmp_path / "package.py"
    path.write_text("as it is")
    first = made("out[:] = x")
    assert made("out[:] = x + 0.0") == first
    path.write_text("edited")
    assert made("out[:] = x") != first
