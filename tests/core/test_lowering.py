"""Operations that do not fit each other are refused before a kernel sees them."""

from types import ModuleType

import attrs
import numpy as np
import pytest

from augury.blocks import (
    Activation,
    Block,
    Convolution,
    GateKind,
    Linear,
    LinearRecurrence,
    Matrices,
    Norm,
    Preparation,
    Rope,
    Vector,
)
from augury.errors import PluginError, UnsupportedError
from augury.lowering import Add, Builder, Gate, Join, KeptRows, LookUp, Value, emitters_of
from augury.plugins.pooling.blocks import KeepToPool, Pool

HEADS = LinearRecurrence(n_heads=2, n_key_heads=1, key_dim=3, value_dim=4, has_delta=True)
CONV = Convolution("conv", 8, 4)


def block_of(lower, *states):
    """A block that is lowered by a function of the builder, and keeps these states."""

    @attrs.frozen
    class Odd(Block):
        def lower(self, build):
            lower(build)

        def states(self):
            return states

    return Odd()


def recurrence(build, **changes):
    sizes = {"queries": 3, "keys": 3, "values": 8, "decays": 2, "betas": 2} | changes
    return build.recur(HEADS, 0, **{name: build.constant([0.0] * size) for name, size in sizes.items()})


def flawed(write):
    """A block that gives x, once a function of the builder and the norm of x has written something else."""

    def lower(build):
        n = build.normalize(build.x, NORM)
        write(build, n)
        build.add(n)

    return lower


def latents(build, n, keys):
    return build.prepare_latents(n, build.constant([1.0] * 7), keys, Norm("norm", 6, 1e-5), None, None, None, 0)


NORM = Norm("norm", 8, 1e-5)
FLAWS = {
    "x of up of Multiply has 8 values, expected 9": lambda b, n: b.multiply(n, Linear("up", 9, 8), purpose="up"),
    "x, in groups of 3, of Normalize has 8 values, expected 6": lambda b, n: b.normalize(n, Norm("norm", 3, 1e-5)),
    "up of Activate has 7 values, expected 8": lambda b, n: b.activate(n, Activation.SILU, b.constant([0.0] * 7)),
    "divisors of Activate has 9 values": lambda b, n: b.activate(n, Activation.SILU, divisors=Vector("d", 9)),
    "other of AddWeighed has 1 values, expected 8": lambda b, n: b.add_weighed(n, b.constant([1.0])),
    "x of gate of AddWeighed has 1 values": lambda b, n: b.add_weighed(n, n, Vector("gate", 8), b.constant([1.0])),
    "gates of Gate has 3 values, expected 4": lambda b, n: b.gate(n, b.constant([1.0] * 3), GateKind.SIGMOID),
    "y, in parts as norm has them, of Gate has 8": lambda b, n: b.gate(n, n, GateKind.SIGMOID, Norm("norm", 3, 1e-5)),
    "y, in parts as skip has them, of Gate has 8": lambda b, n: b.gate(n, n, GateKind.SIGMOID, skip=Vector("skip", 5)),
    "before of Convolve has 1 values, expected 8": lambda b, n: b.convolve([n], [CONV], [0], before=b.constant([1.0])),
    "after of Convolve has 8 values, expected 16": lambda b, n: b.convolve([n, n], [CONV, CONV], [0, 1], after=n),
    "x of conv of Convolve has 1 values, expected 8": lambda b, n: b.convolve([b.constant([1.0])], [CONV], [0]),
    "x, in heads of 3, of ScaleToLength has 8": lambda b, n: b.scale_to_length(n, 3, 1e-6, 1, 1.0),
    "b of Decay has 1 values, expected 8": lambda b, n: b.decay(n, b.constant([1.0])),
    "t of dt of Decay has 8 values, expected 3": lambda b, n: b.decay(n, dt=Vector("dt", 3)),
    "t of DecayByKey has 8 values, expected 4": lambda b, n: b.decay_by_key(n, b.constant([0.0]), n, Vector("a", 1), 4, None),
    "keys of Recur has 4 values, expected 3": lambda b, n: recurrence(b, keys=4),
    "decays of Recur has 3 values, expected 2": lambda b, n: recurrence(b, decays=3),
    "x, in heads of 3, of PrepareHeads has 8": lambda b, n: b.prepare_heads([n], [3], [Preparation(clamp=1.0)]),
    "the norm of heads of PrepareHeads has 8 values, expected 4": lambda b, n: b.prepare_heads(
        [n], [4], [Preparation(norm=NORM)]
    ),
    "the turned part of heads of PrepareHeads has 6 values, expected 4": lambda b, n: b.prepare_heads(
        [n], [4], [Preparation(rope=Rope(np.ones(3)))]
    ),
    "queries of 3 heads of Attend has 8 values, expected 6": lambda b, n: b.attend(n, 0, 1, 3, 4, 1.0),
    "sinks of Attend has 3 values, expected 2": lambda b, n: b.attend(n, 0, 1, 2, 4, 1.0, sinks=Vector("sinks", 3)),
    "base of ConvolveBlock has 5 values, expected 32": lambda b, n: b.convolve_block(n, n, Vector("base", 5), 2, 0),
    "slopes of Attend has 1 values, expected 2": lambda b, n: b.attend(n, 0, 1, 2, 4, 1.0, slopes=(0.5,)),
    "x of MultiplyHeads has 8 values, expected 9": lambda b, n: b.multiply_heads(n, Matrices("m", 3, 3, 2)),
    "queries of PrepareLatents has 8 values, expected 9": lambda b, n: latents(b, n, Matrices("keys", 3, 2, 6)),
    "the products of heads of PrepareLatents has 5 values, expected 6": lambda b, n: latents(b, n, Matrices("keys", 2, 3, 5)),
    "what is kept of KeepToPool has 4 values, expected 8": lambda b, n: b.write(KeepToPool(n, None, None, 2, KeptRows(0, 4))),
    "KeepToPool has cache 0 for rows of 8 floats, `cached` says ()": lambda b, n: b.write(
        KeepToPool(n, None, None, 2, KeptRows(0, 8))
    ),
    "what is kept of Pool has 8 values, expected 16": lambda b, n: b.write(Pool(KeptRows(0, 8), 2, True, False, Value(8))),
    "its operations keep rows of {0: 8} values by cache": lambda b, n: b.prepare_heads([n], [4], [Preparation()], [0]),
    "Normalize reads 8 values that nothing before it makes": lambda b, n: b.normalize(Value(8), NORM),
    "Normalize reads columns up to 9 of 8": lambda b, n: b.normalize(n.split(1, 8)[1], NORM),
    "Activate reads x as others may still add to it": lambda b, n: b.activate(b.x, Activation.SILU),
    "ScaleToLength writes over a norm of x": lambda b, n: b.scale_to_length(n, 4, 1e-6, 1, 1.0),
    "other of GiveInputs has 1 values, expected 8": lambda b, n: b.give_inputs(n, b.constant([1.0]), 1.0, 1.0),
    "x of output of GiveLogits has 8 values, expected 9": lambda b, n: b.give_logits(n, None, Linear("output", 9, 8)),
    "the norm of x of GiveLogits has 4 values, expected 8": lambda b, n: b.give_logits(
        b.x, Norm("norm", 4, 1e-5), Linear("output", 8, 9)
    ),
    "a row of table of LookUp has 9 values, expected 8": lambda b, n: b.write(
        LookUp(Linear("table", 8, 5), 1.0, False, Value(9))
    ),
    "its operations keep the states {0: ": lambda b, n: b.convolve([n], [CONV], [0]),
    "it adds to x more than once, or not in the end": lambda b, n: b.add(n),
}


@pytest.mark.parametrize("told", FLAWS)
def test_what_does_not_fit_is_named(told):
    with pytest.raises(PluginError) as found:
        block_of(flawed(FLAWS[told])).lowered(8)
    assert f"block Odd: {told}" in str(found.value)


def test_a_state_that_no_operation_keeps_is_named():
    with pytest.raises(PluginError, match=r"its operations keep the states \{\}, `states` says \{0: "):
        block_of(flawed(lambda b, n: None), CONV.state).lowered(8)


def test_what_gives_another_width_than_x_is_named():
    with pytest.raises(PluginError, match="block Odd: y of Add has 9 values, expected 8"):
        block_of(lambda b: b.add_product(b.normalize(b.x, NORM), Linear("up", 8, 9), "up")).lowered(8)


def test_what_fits_is_given_back_in_order():
    def write(b, n):
        b.convolve([n], [CONV], [1])
        recurrence(b)

    build = block_of(flawed(write), HEADS.state, CONV.state).lowered(8)
    assert [type(each).__name__ for each in build.operations] == ["Normalize", "Convolve", *["Constant"] * 5, "Recur", "Add"]


def test_an_operation_with_other_values_reads_them_and_makes_the_same():
    build = Builder(8)
    n, v, w = build.normalize(build.x, NORM), Value(8), Value(8)
    build.convolve([n, v], [CONV, CONV], [0, 1])
    build.activate(n, Activation.SILU, v)
    for each in build.operations[1:]:
        other = each.with_values({n: w})
        assert other.read == (w, v)
        assert other.made == each.made
        assert each.with_values({}) is each


@pytest.mark.parametrize(
    ("first", "width", "expected"), [(0, 2, False), (1, 2, True), (4, 2, True), (5, 3, False), (2, 1, True)]
)
def test_values_overlap_where_they_have_a_column_in_common(first, width, expected):
    rows = Value(8)
    _, middle, _ = rows.split(2, 3, 3)
    part = Value(width, rows, first)
    assert middle.overlaps(part) == part.overlaps(middle) == expected
    assert rows.overlaps(part)
    assert not middle.overlaps(Value(8))


def test_a_block_that_does_not_say_how_it_is_computed_is_refused():
    with pytest.raises(UnsupportedError, match="block Block does not say how it is computed; define its `lower`"):
        Block().lowered(8)


EMITTERS = """
from typing import Generic, TypeVar
from augury.lowering import Add, Gate, Join
Emitted = TypeVar("Emitted")
class Base(Generic[Emitted]): ...
class One(Base[Add]): ...
class Two(Base[Join | Gate]): ...
class Heir(Two): ...
"""


def test_an_emitter_emits_the_operations_that_its_base_names():
    file = ModuleType("file")
    exec(EMITTERS, vars(file))
    assert emitters_of(file.Base, [file]) == {Add: file.One, Join: file.Two, Gate: file.Two}
