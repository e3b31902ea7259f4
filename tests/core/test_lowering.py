"""Operations that do not fit each other are refused before a kernel sees them."""

import attrs
import pytest

from augury.blocks import Activation, Block, Convolution, GateKind, Linear, LinearRecurrence, Norm, Vector
from augury.errors import PluginError, UnsupportedError
from augury.lowering import Builder, Value

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


FLAWS = {
    "x of up of Multiply has 8 values, expected 9": lambda b: b.multiply(b.x, Linear("up", 9, 8), purpose="up"),
    "x, in groups of 3, of Normalize has 8 values, expected 6": lambda b: b.normalize(b.x, Norm("norm", 3, 1e-5)),
    "y of Add has 9 values, expected 8": lambda b: b.add_product(b.x, Linear("up", 8, 9), "up"),
    "up of Activate has 7 values, expected 8": lambda b: b.activate(b.x, Activation.SILU, b.constant([0.0] * 7)),
    "divisors of Activate has 9 values": lambda b: b.activate(b.x, Activation.SILU, divisors=Vector("d", 9)),
    "other of AddWeighed has 1 values, expected 8": lambda b: b.add_weighed(b.x, b.constant([1.0])),
    "x of gate of AddWeighed has 1 values": lambda b: b.add_weighed(b.x, b.x, Vector("gate", 8), b.constant([1.0])),
    "gates of Gate has 1 values, expected 8": lambda b: b.gate(b.x, b.constant([1.0]), GateKind.SIGMOID),
    "y, in parts as norm has them, of Gate has 8": lambda b: b.gate(b.x, b.x, GateKind.SIGMOID, Norm("norm", 3, 1e-5)),
    "y, in parts as skip has them, of Gate has 8": lambda b: b.gate(b.x, b.x, GateKind.SIGMOID, skip=Vector("skip", 5)),
    "before of Convolve has 1 values, expected 8": lambda b: b.convolve([b.x], [CONV], [0], before=b.constant([1.0])),
    "x of conv of Convolve has 1 values, expected 8": lambda b: b.convolve([b.constant([1.0])], [CONV], [0]),
    "x, in heads of 3, of ScaleToLength has 8": lambda b: b.scale_to_length(b.x, 3, 1e-6, 1, 1.0),
    "b of Decay has 1 values, expected 8": lambda b: b.decay(b.x, b.constant([1.0])),
    "t of dt of Decay has 8 values, expected 3": lambda b: b.decay(b.x, dt=Vector("dt", 3)),
    "t of DecayByKey has 8 values, expected 4": lambda b: b.decay_by_key(b.x, b.constant([0.0]), b.x, Vector("a", 1), 4, None),
    "keys of Recur has 4 values, expected 3": lambda b: recurrence(b, keys=4),
    "decays of Recur has 3 values, expected 2": lambda b: recurrence(b, decays=3),
    "Normalize reads 8 values that nothing before it makes": lambda b: b.normalize(Value(8), Norm("norm", 8, 1e-5)),
    "Normalize reads columns up to 9 of 8": lambda b: b.normalize(b.x.split(1, 8)[1], Norm("norm", 8, 1e-5)),
    "its operations keep the states {0: ": lambda b: b.convolve([b.x], [CONV], [0]),
}


@pytest.mark.parametrize("told", FLAWS)
def test_what_does_not_fit_is_named(told):
    with pytest.raises(PluginError) as found:
        block_of(FLAWS[told]).lowered(8)
    assert f"block Odd: {told}" in str(found.value)


def test_a_state_that_no_operation_keeps_is_named():
    with pytest.raises(PluginError, match=r"its operations keep the states \{\}, `states` says \{0: "):
        block_of(lambda b: b.normalize(b.x, None), CONV.state).lowered(8)


def test_what_fits_is_given_back_in_order():
    def lower(b):
        b.convolve([b.normalize(b.x, Norm("norm", 8, 1e-5))], [CONV], [1])
        recurrence(b)

    build = block_of(lower, HEADS.state, CONV.state).lowered(8)
    assert isinstance(build, Builder)
    assert [type(each).__name__ for each in build.operations] == ["Normalize", "Convolve", *["Constant"] * 5, "Recur"]


def test_a_block_that_does_not_say_how_it_is_computed_is_refused():
    with pytest.raises(UnsupportedError, match="block Block does not say how it is computed; define its `lower`"):
        Block().lowered(8)
