"""Blocks that nobody has written: operations in any order that fits compute the same on all backends that know them."""

from typing import Any

import attrs
import numpy as np
import pytest
from oracles.models import altered, nmse, tiny_file, tiny_model
from oracles.states import script_rows

from augury import Engine, Registry
from augury.blocks import Activation, Block, Convolution, GateKind, Linear, LinearRecurrence, Norm, Vector
from augury.errors import PluginError
from augury.loader import plan_of
from augury.lowering import Activate, Add, AddWeighed, Builder, Convolve, Decay, Gate, Multiply, Recur, ScaleToLength

REGISTRY = Registry.discover()
N_EMBD = 256  # of the model that the blocks stand in
WIDTHS = (32, 40, 64)
STEPS = ("multiply", "activate", "gate", "convolve", "norm", "split", "add", "recur")


class Author:
    """Writes operations at random, of values that there are, and the tensors that they take part with."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.tensors, self.parts, self.states, self.build = {}, [], [], Builder(N_EMBD)
        self.values = [self.build.normalize(self.build.x, self.norm_of(N_EMBD))]
        self.write()

    def write(self):
        for step in self.rng.choice(STEPS, 8):
            getattr(self, str(step))()
        if self.rng.random() < 0.5:
            self.build.add(Add, self.value(N_EMBD), self.maybe(self.norm_of(N_EMBD)))
        else:
            (y,) = self.build.add(Multiply, self.values[-1], (self.linear(self.values[-1].width, N_EMBD),), "last")
            self.build.add(Add, y, self.maybe(self.norm_of(N_EMBD)))

    def maybe(self, what):
        return what if self.rng.random() < 0.5 else None

    def tensor(self, *shape):
        name = f"odd.{len(self.tensors)}.weight"
        self.tensors[name] = self.rng.standard_normal(shape) / np.sqrt(shape[-1])
        return name

    def part(self, part):
        self.parts.append(part)
        return part

    def norm_of(self, size):
        return self.part(Norm(self.tensor(size), size, 1e-5))

    def linear(self, n_in, n_out):
        return self.part(Linear(self.tensor(n_out, n_in), n_in, n_out))

    def vector(self, width):
        return self.part(Vector(self.tensor(width), width))

    def conv(self, width, size):
        return self.part(Convolution(self.tensor(width, size), width, size))

    def value(self, width=None):
        found = [each for each in self.values if width in (None, each.width)]
        return found[self.rng.integers(len(found))] if found else self.product(width)

    def product(self, width):
        x = self.value()
        return self.build.add(Multiply, x, (self.linear(x.width, width),), "product")[0]

    def multiply(self):
        x, widths = self.value(), self.rng.choice(WIDTHS, self.rng.integers(1, 4)).tolist()
        self.values += self.build.add(Multiply, x, tuple(self.linear(x.width, each) for each in widths), "products")

    def activate(self):
        x = self.value()
        up = self.maybe(self.value(x.width))
        self.values.append(self.build.add(Activate, x, Activation.SILU, up))

    def gate(self):
        y = self.value()
        skip = self.maybe(self.vector(y.width))
        values = None if skip is None else self.value(y.width)
        kind = (Activation.SILU, GateKind.SIGMOID)[self.rng.integers(2)]
        self.values.append(
            self.build.add(Gate, y, self.value(y.width), kind, self.maybe(self.norm_of(8)), values=values, skip=skip)
        )

    def convolve(self):
        x = [self.value() for _ in range(self.rng.integers(1, 3))]
        convs = [self.conv(each.width, 3) for each in x]
        places = range(len(self.states), len(self.states) + len(x))
        self.states += [conv.state for conv in convs]
        gates = {}
        if len(x) == 1:
            gates = {name: self.maybe(self.value(x[0].width)) for name in ("before", "after")}
        self.values.append(
            self.build.add(Convolve, tuple(x), tuple(convs), tuple(places), has_silu=bool(self.rng.integers(2)), **gates)
        )

    def norm(self):
        x = self.value()
        self.values.append(self.build.normalize(x, self.norm_of(int(self.rng.choice([8, x.width])))))

    def split(self):
        self.values += self.value(64).split(*self.rng.permutation([24, 40]).tolist())

    def add(self):
        self.values.append(self.build.add(AddWeighed, self.value(64), self.value(64)))

    def recur(self):
        heads = LinearRecurrence(n_heads=2, n_key_heads=1, key_dim=8, value_dim=16, has_delta=bool(self.rng.integers(2)))
        self.states.append(heads.state)
        queries, times, values = self.product(8), self.product(2), self.value(32)
        conv = self.conv(8, 2)
        keys = self.build.add(Convolve, (queries,), (conv,), (len(self.states),))
        self.states.append(conv.state)
        self.build.add(ScaleToLength, keys, 8, 1e-6, 1, 1.0)
        a = self.vector(2)
        self.tensors[a.weight] = -np.abs(self.tensors[a.weight])
        decays, betas = self.build.add(Decay, times, self.product(2), a=a)
        self.values.append(self.build.add(Recur, heads, len(self.states) - 2, queries, keys, values, decays, betas))


class Repetitive(Author):
    """Has the norm of the residual stream read by one operation after another, some of which write over what they read."""

    def value(self, width=None):
        is_norm = width in (None, N_EMBD) and self.rng.random() < 0.7
        return self.values[0] if is_norm else self.product(width or N_EMBD)

    def write(self):
        for step in self.rng.choice(["gate", "convolve", "activate", "norm"], 4):
            getattr(self, str(step))()
        products = [self.build.add(Multiply, each, (self.linear(each.width, 64),), "product")[0] for each in self.values]
        total = products[0]
        for each in products[1:]:
            total = self.build.add(AddWeighed, total, each)
        self.build.add(Add, self.build.add(Multiply, total, (self.linear(64, N_EMBD),), "last")[0])


@attrs.frozen(eq=False)
class Written(Block):
    """A block of an author's operations."""

    author: Author

    def tensors(self):
        return tuple(self.author.parts)

    def states(self):
        return tuple(self.author.states)

    def lower(self, build):
        mine = self.author.build
        for each in mine.operations:
            build.add(each.with_values, {mine.x: build.x, mine.before: build.before})


def rows_of(backend, file, block):
    """Logits where a block stands in place of attention."""
    plan = plan_of(file, REGISTRY)
    plan = attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], mixer=block), *plan.layers[1:]))
    return script_rows(REGISTRY.backends[backend], file, plan)


@pytest.mark.sample(8, rest=64)
@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("kind", [Author, Repetitive])
def test_operations_in_any_order_compute_the_same(kind, seed):
    author = kind(seed)
    file = altered(tiny_file("llama-dense"), arrays=author.tensors)
    expected = rows_of("reference", file, Written(author))
    assert nmse(rows_of("numba-cpu", file, Written(author)), expected) < 1e-6


@attrs.frozen
class Odd(Block):
    """A package's block that is wrong."""

    how: Any

    def lower(self, build):
        self.how(build)


def leave(build):
    raise SystemExit(3)


class Wrong(REGISTRY.architectures["llama"]):
    """An architecture whose first layer has a wrong block."""

    how = None

    @classmethod
    def plans(cls, file):
        plan = super().plans(file)["main"]
        return {"main": attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], mixer=Odd(cls.how)), *plan.layers[1:]))}


@pytest.mark.parametrize("how", [leave, lambda build: build.add(Add, None), lambda build: build.add(Add, "x")])
@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
def test_a_wrong_block_ends_the_load_with_its_name_and_its_packages(monkeypatch, backend, how):
    monkeypatch.setattr(Wrong, "how", how)
    monkeypatch.setitem(REGISTRY.architectures, "llama", Wrong)
    with pytest.raises(PluginError, match=r"Odd.*package tests|Odd.*package test_made_up"):
        Engine.load(tiny_model("llama-dense"), backend=backend, spec_type="none", registry=REGISTRY)
