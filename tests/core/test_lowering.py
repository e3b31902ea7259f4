"""Operations that do not fit each other are refused before a kernel sees them."""

import re
from typing import ClassVar

import attrs
import numpy as np
import pytest

from augury.blocks import (
    Activation,
    Block,
    Convolution,
    Experts,
    GateKind,
    Gating,
    Linear,
    LinearRecurrence,
    Matrices,
    Norm,
    NormKind,
    Preparation,
    Rope,
    Router,
    Vector,
)
from augury.errors import OptionError, PluginError, UnsupportedError
from augury.lowering import (
    Activate,
    Add,
    AddWeighed,
    Attend,
    Builder,
    CachedRows,
    Choose,
    ChooseByHead,
    ComputeLogits,
    Constant,
    Convolve,
    ConvolveBlock,
    Decay,
    DecayByKey,
    Emitters,
    FeedExperts,
    Gate,
    Join,
    LookUp,
    Multiply,
    MultiplyHeads,
    Operation,
    PositionChoice,
    PrepareLatents,
    Recur,
    Route,
    ScaleToLength,
    SetLayerInputs,
    Value,
)
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
    return build.add(Recur, HEADS, 0, **{name: build.add(Constant, (0.0,) * size) for name, size in sizes.items()})


def flawed(write):
    """A block that gives x, once a function of the builder and the norm of x has written something else."""

    def lower(build):
        n = build.normalize(build.x, NORM)
        write(build, n)
        build.add(Add, n)

    return lower


def latents(build, n, keys):
    return build.add(PrepareLatents, n, build.add(Constant, (1.0,) * 7), keys, Norm("norm", 6, 1e-5), None, None, None, 0)


NORM = Norm("norm", 8, 1e-5)
EXPERTS = Experts(
    Router(Linear("router", 8, 4), 2, Gating.SOFTMAX),
    *(Matrices(name, 4, 8, 8) for name in ("gate", "up", "down")),
    Activation.SILU,
    limit=None,
    limits_activated=False,
    weighs_input=False,
    constants=(),
)
FLAWS = {
    "x of up of Multiply has 8 values, expected 9": lambda b, n: b.add(Multiply, n, (Linear("up", 9, 8),), "up"),
    "x, in groups of 3, of Normalize has 8 values, expected 6": lambda b, n: b.normalize(n, Norm("norm", 3, 1e-5)),
    "up of Activate has 7 values, expected 8": lambda b, n: b.add(Activate, n, Activation.SILU, b.add(Constant, (0.0,) * 7)),
    "divisors of Activate has 9 values": lambda b, n: b.add(Activate, n, Activation.SILU, divisors=Vector("d", 9)),
    "other of AddWeighed has 1 values, expected 8": lambda b, n: b.add(AddWeighed, n, b.add(Constant, (1.0,))),
    "x of gate of AddWeighed has 1 values": lambda b, n: b.add(AddWeighed, n, n, Vector("gate", 8), b.add(Constant, (1.0,))),
    "constants of Activate has 0 values, expected 4": lambda b, n: b.add(Activate, n, Activation.XIELU),
    "constants of Activate has 1 values, expected 0": lambda b, n: b.add(Activate, n, GateKind.SIGMOID, constants=(1.0,)),
    "constants of FeedExperts has 0 values, expected 2": lambda b, n: b.add(
        FeedExperts, n, b.add(Route, n, EXPERTS.router), attrs.evolve(EXPERTS, activation=Activation.SITU)
    ),
    "constants of Gate has 0 values, expected 2": lambda b, n: b.add(Gate, n, n, Activation.SITU),
    "Attend reads cache 1, `cached` says ()": lambda b, n: b.add(Attend, n, 1, None, 2, 4, 1.0),
    "Attend reads cache -1, `cached` says ()": lambda b, n: b.add(Attend, n, -1, None, 2, 4, 1.0),
    "Choose reads cache 3, `cached` says ()": lambda b, n: b.add(Choose, n, None, 3, 1),
    "ChooseByHead reads cache 0, `cached` says ()": lambda b, n: b.add(ChooseByHead, n, 0, 1, 1, PositionChoice(2, size=16)),
    "gates of Gate has 3 values, expected 4": lambda b, n: b.add(Gate, n, b.add(Constant, (1.0,) * 3), GateKind.SIGMOID),
    "y, in parts as norm has them, of Gate has 8": lambda b, n: b.add(Gate, n, n, GateKind.SIGMOID, Norm("norm", 3, 1e-5)),
    "y, in parts as skip has them, of Gate has 8": lambda b, n: b.add(Gate, n, n, GateKind.SIGMOID, skip=Vector("skip", 5)),
    "before of Convolve has 1 values, expected 8": lambda b, n: b.add(
        Convolve, (n,), (CONV,), (0,), before=b.add(Constant, (1.0,))
    ),
    "after of Convolve has 8 values, expected 16": lambda b, n: b.add(Convolve, (n, n), (CONV, CONV), (0, 1), after=n),
    "x of conv of Convolve has 1 values, expected 8": lambda b, n: b.add(Convolve, (b.add(Constant, (1.0,)),), (CONV,), (0,)),
    "x, in heads of 3, of ScaleToLength has 8": lambda b, n: b.add(ScaleToLength, n, 3, 1e-6, 1, 1.0),
    "b of Decay has 1 values, expected 8": lambda b, n: b.add(Decay, n, b.add(Constant, (1.0,))),
    "t of dt of Decay has 8 values, expected 3": lambda b, n: b.add(Decay, n, dt=Vector("dt", 3)),
    "t of DecayByKey has 8 values, expected 4": lambda b, n: b.add(
        DecayByKey, n, b.add(Constant, (0.0,)), n, Vector("a", 1), 4, None
    ),
    "keys of Recur has 4 values, expected 3": lambda b, n: recurrence(b, keys=4),
    "decays of Recur has 3 values, expected 2": lambda b, n: recurrence(b, decays=3),
    "x, in heads of 3, of PrepareHeads has 8": lambda b, n: b.prepare_heads([n], [3], [Preparation(clamp=1.0)]),
    "the norm of heads of PrepareHeads has 8 values, expected 4": lambda b, n: b.prepare_heads(
        [n], [4], [Preparation(norm=NORM)]
    ),
    "the turned part of heads of PrepareHeads has 6 values, expected 4": lambda b, n: b.prepare_heads(
        [n], [4], [Preparation(rope=Rope(np.ones(3)))]
    ),
    "queries of 3 heads of Attend has 8 values, expected 6": lambda b, n: b.add(Attend, n, 0, 1, 3, 4, 1.0),
    "sinks of Attend has 3 values, expected 2": lambda b, n: b.add(Attend, n, 0, 1, 2, 4, 1.0, sinks=Vector("sinks", 3)),
    "base of ConvolveBlock has 5 values, expected 32": lambda b, n: b.add(ConvolveBlock, n, n, Vector("base", 5), 2, 0),
    "slopes of Attend has 1 values, expected 2": lambda b, n: b.add(Attend, n, 0, 1, 2, 4, 1.0, slopes=(0.5,)),
    "x of MultiplyHeads has 8 values, expected 9": lambda b, n: b.add(MultiplyHeads, n, Matrices("m", 3, 3, 2)),
    "queries of PrepareLatents has 8 values, expected 9": lambda b, n: latents(b, n, Matrices("keys", 3, 2, 6)),
    "the products of heads of PrepareLatents has 5 values, expected 6": lambda b, n: latents(b, n, Matrices("keys", 2, 3, 5)),
    "what is kept of KeepToPool has 4 values, expected 8": lambda b, n: b.add(KeepToPool, n, None, None, 2, CachedRows(0, 4)),
    "KeepToPool has cache 0 for rows of 8 floats, `cached` says ()": lambda b, n: b.add(
        KeepToPool, n, None, None, 2, CachedRows(0, 8)
    ),
    "what is kept of Pool has 8 values, expected 16": lambda b, n: b.add(Pool, CachedRows(0, 8), 2, True, False, Value(8)),
    "its operations keep rows of {0: 8} values by cache": lambda b, n: b.prepare_heads([n], [4], [Preparation()], [0]),
    "Normalize reads 8 values that nothing before it makes": lambda b, n: b.normalize(Value(8), NORM),
    "Normalize reads columns up to 9 of 8": lambda b, n: b.normalize(n.split(1, 8)[1], NORM),
    "Activate reads x as others may still add to it": lambda b, n: b.add(Activate, b.x, Activation.SILU),
    "ScaleToLength writes over a norm of x": lambda b, n: b.add(ScaleToLength, n, 4, 1e-6, 1, 1.0),
    "other of SetLayerInputs has 1 values, expected 8": lambda b, n: b.add(
        SetLayerInputs, n, b.add(Constant, (1.0,)), 1.0, 1.0
    ),
    "x of output of ComputeLogits has 8 values, expected 9": lambda b, n: b.add(ComputeLogits, n, None, Linear("output", 9, 8)),
    "the norm of x of ComputeLogits has 4 values, expected 8": lambda b, n: b.add(
        ComputeLogits, b.x, Norm("norm", 4, 1e-5), Linear("output", 8, 9)
    ),
    "a row of table of LookUp has 9 values, expected 8": lambda b, n: b.add(
        LookUp, Linear("table", 8, 5), 1.0, False, Value(9)
    ),
    "its operations keep the states {0: ": lambda b, n: b.add(Convolve, (n,), (CONV,), (0,)),
    "it adds to x more than once, or not in the end": lambda b, n: b.add(Add, n),
}


@pytest.mark.parametrize("told", FLAWS)
def test_what_does_not_fit_is_named(told):
    with pytest.raises(PluginError) as found:
        block_of(flawed(FLAWS[told])).lowered(8)
    assert f"block Odd: {told}" in str(found.value)


def activated(**changes):
    """A builder's function that activates x with some operands changed."""
    operands = {"activation": Activation.SILU, "up": None, "divisors": None, "limit": None, "constants": ()} | changes
    return lambda b, n: b.add(Activate, n, operands.pop("activation"), **operands)


WRONG = {
    "y of Add is None, expected a Value": lambda b, n: b.add(Add, None),
    "y of Add is 'x', expected a Value": lambda b, n: b.add(Add, "x"),
    "y of Add is 3, expected a Value": lambda b, n: b.add(Add, 3),
    "norm of Add is Vector(": lambda b, n: b.add(Add, n, Vector("norm", 8)),
    "eps of norm of Add is nan, expected a finite number": lambda b, n: b.add(Add, n, Norm("norm", 8, np.nan)),
    "kind of norm of Add is 'rms', expected a member of NormKind": lambda b, n: b.add(Add, n, Norm("n", 8, 1e-5, kind="rms")),
    "size of norm of Add is True, expected a whole number": lambda b, n: b.add(Add, n, Norm("norm", True, 1e-5)),
    "weight_shape of norm of Add is (8,), expected a tuple of": lambda b, n: b.add(
        Add, n, Norm("n", 8, 1e-5, weight_shape=(8,))
    ),
    "linears of Multiply is (Vector(": lambda b, n: b.add(Multiply, n, (Vector("up", 8),), "up", (Value(8),)),
    "linears of Multiply is [], expected a tuple of a Linear": lambda b, n: b.add(Multiply, n, [], "up"),
    "scale of linears of Multiply is inf, expected": lambda b, n: b.add(Multiply, n, (Linear("w", 8, 8, scale=np.inf),), ""),
    "purpose of Multiply is None, expected a text": lambda b, n: b.add(Multiply, n, (Linear("w", 8, 8),), None),
    "activation of Activate is <NormKind.RMS: 'rms'>, expected a member of Activation or a": activated(activation=NormKind.RMS),
    "limit of Activate is -inf, expected a finite number or None": activated(limit=-np.inf),
    "limit of Activate is '7', expected a finite number or None": activated(limit="7"),
    "constants of Activate is (1.0, nan), expected a tuple of a finite number": activated(constants=(1.0, np.nan)),
    "up of Activate is 8, expected a Value or None": activated(up=8),
    "limits_activated of Activate is 1, expected true or false": activated(limits_activated=1),
    "scale of Attend is 1": lambda b, n: b.add(Attend, n, 0, 1, 2, 4, 10**400),
    "keys of Attend is 0.0, expected a whole number": lambda b, n: b.add(Attend, n, 0.0, 1, 2, 4, 1.0),
    "slopes of Attend is [0.5, 0.25], expected a tuple of": lambda b, n: b.add(Attend, n, 0, 1, 2, 4, 1.0, slopes=[0.5, 0.25]),
    "choice of Attend is Value(": lambda b, n: b.add(Attend, n, 0, 1, 2, 4, 1.0, choice=n),
    "y of AddWeighed is PositionChoice(": lambda b, n: b.add(AddWeighed, b.reuse_choice(), n, None, None, Value(1)),
    "routes of FeedExperts is Value(": lambda b, n: b.add(FeedExperts, n, n, EXPERTS),
    "x of Activate is Routes(": lambda b, n: b.add(Activate, b.add(Route, n, EXPERTS.router), Activation.SILU),
    "whole of y of Add is PositionChoice(": lambda b, n: b.add(Add, b.reuse_choice().split(1)[0]),
    "frequencies of rope of steps of PrepareHeads is array([nan])": lambda b, n: b.prepare_heads(
        [n], [4], [Preparation(rope=Rope(np.array([np.nan])))]
    ),
    "weights of KeepToPool is 'rms', expected a Value or None": lambda b, n: b.add(
        KeepToPool, n, "rms", None, 2, CachedRows(0, 8)
    ),
    "rows of KeepToPool is 0, expected a CachedRows": lambda b, n: b.add(KeepToPool, n, None, None, 2, 0),
    "it writes 'add', expected an operation": lambda b, n: b.operations.append("add"),
    "Normalize reads columns up to 7 of 8, from -1 on": lambda b, n: b.normalize(Value(8, n, -1), NORM),
    "Normalize reads columns up to 0 of 8, from 0 on": lambda b, n: b.normalize(n.split(0, 8)[0], NORM),
}


@pytest.mark.parametrize("told", WRONG)
def test_an_operand_of_another_type_than_its_field_is_named(told):
    with pytest.raises(PluginError) as found:
        block_of(flawed(WRONG[told])).lowered(8)
    assert f"block Odd: {told}" in str(found.value)


@pytest.mark.parametrize("number", [np.float32(2.0), np.float64(2.0), np.int64(2), 2])
def test_a_number_may_be_of_numpy(number):
    block_of(flawed(lambda b, n: b.add(Activate, n, Activation.SILU, limit=number))).lowered(8)


def test_a_value_of_another_builder_is_refused():
    other = Builder(8)
    theirs = other.normalize(other.x, NORM)
    with pytest.raises(PluginError, match="Add reads 8 values that nothing before it makes"):
        block_of(lambda b: b.add(Add, theirs)).lowered(8)


def operation_of(kind):
    """An operation of a package's, with a field of a type by its name."""

    @attrs.frozen(eq=False)
    class Turn(Operation):
        x: Value
        table: kind
        out: Value

    return Turn


@pytest.mark.parametrize(
    ("kind", "table", "told"),
    [
        ("Linear", None, "table of Turn is None, expected a Linear"),
        ("Temperature | None", 3, "table of Turn is 3, expected a Temperature or None"),  # which this file does not import
        ("Thing", 3, "the types of Turn's fields are not known: name 'Thing' is not defined"),
    ],
)
def test_the_operands_of_a_packages_operation_are_of_its_types(kind, table, told):
    turn = operation_of(kind)
    with pytest.raises(PluginError, match=re.escape(told)):
        block_of(flawed(lambda b, n: b.add(turn, n, table, Value(8)))).lowered(8)


def raising(error):
    def lower(build):
        raise error

    return lower


@pytest.mark.parametrize("kind", [ValueError, SystemExit, RecursionError, MemoryError, GeneratorExit, OptionError])
def test_an_error_of_lower_names_block_and_package(kind):
    with pytest.raises(PluginError) as found:
        block_of(raising(kind("so it is"))).lowered(8)
    assert f"Odd cannot be lowered: {kind.__name__}: so it is" in str(found.value)
    assert f"package {__name__.partition('.')[0]}" in str(found.value)
    assert isinstance(found.value.__cause__, kind)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UnsupportedError("no")])
def test_an_interrupt_and_what_is_not_supported_pass_through(error):
    with pytest.raises(type(error)) as found:
        block_of(raising(error)).lowered(8)
    assert found.value is error


@pytest.mark.parametrize("changes", [{"states": None}, {"cached": 3}, {"cached": "rows"}])
def test_states_and_caches_that_are_none_name_the_block(changes):
    body = {name: lambda self, value=value: value for name, value in changes.items()}
    body["lower"] = lambda self, build: build.add(Add, build.normalize(build.x, NORM))
    with pytest.raises(PluginError, match=r"Odd cannot be lowered: .* of this block of package"):
        type("Odd", (Block,), body)().lowered(8)


class Yielding(Block):
    def lower(self, build):
        yield build.add(Add, build.normalize(build.x, NORM))


def test_a_lower_that_returns_in_place_of_writing_is_refused():
    with pytest.raises(PluginError, match="Yielding: `lower` returns <generator"):
        Yielding().lowered(8)


def test_a_state_that_no_operation_keeps_is_named():
    with pytest.raises(PluginError, match=r"its operations keep the states \{\}, `states` says \{0: "):
        block_of(flawed(lambda b, n: None), CONV.state).lowered(8)


def test_what_gives_another_width_than_x_is_named():
    with pytest.raises(PluginError, match="block Odd: y of Add has 9 values, expected 8"):
        block_of(lambda b: b.add_product(b.normalize(b.x, NORM), Linear("up", 8, 9), "up")).lowered(8)


def test_what_fits_is_given_back_in_order():
    def write(b, n):
        b.add(Convolve, (n,), (CONV,), (1,))
        recurrence(b)

    build = block_of(flawed(write), HEADS.state, CONV.state).lowered(8)
    assert [type(each).__name__ for each in build.operations] == ["Normalize", "Convolve", *["Constant"] * 5, "Recur", "Add"]


def test_an_operation_with_other_values_reads_them_and_makes_the_same():
    build = Builder(8)
    n, v, w = build.normalize(build.x, NORM), Value(8), Value(8)
    build.add(Convolve, (n, v), (CONV, CONV), (0, 1))
    build.add(Activate, n, Activation.SILU, v)
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


def test_a_table_finds_the_emitter_of_an_operation_before_the_operations_own_kernels():
    emitters = Emitters("toy")

    @emitters.of(Add, Gate)
    class Two:
        pass

    class Own(Add):
        kernels: ClassVar = {"toy": abs}

    x, own = Value(8), Own(Value(8))
    assert (emitters.find(Add(x), "Odd"), emitters.find(Gate(x, x, Activation.SILU), "Odd")) == (Two, Two)
    assert emitters.find(own, "Odd") is abs
    assert emitters.of(Own)(Two) is emitters.find(own, "Odd") is Two
    with pytest.raises(UnsupportedError, match="block Odd has the operation Join, which backend toy does not compute"):
        emitters.find(Join((x,)), "Odd")
