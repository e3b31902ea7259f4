"""Every promise that a constraint may break is found out."""

import re

import numpy as np
import pytest
from support.more_toys import ToyConstraint, registry_with_toys

from augury.errors import OptionError, PluginError
from augury.testing import ContractError, check_constraint


def broken(method, result, name="broken"):
    """The toy with another method; `result` is given the constraint and what the toy itself says."""
    own = getattr(ToyConstraint, method)
    asked = own.fget if isinstance(own, property) else own

    def changed(self, *arguments):
        return result(self, asked(self, *arguments))

    return type("Broken", (ToyConstraint,), {"name": name, method: property(changed) if asked is not own else changed})


def fail(constraint, _):
    if constraint._n > 7:
        raise KeyError(constraint._n)


def counted(constraint, mask):
    """Allows something else when it is asked again."""
    constraint.n_asked = getattr(constraint, "n_asked", 0) + 1
    return np.roll(mask, constraint.n_asked % 2)


class Remembering(ToyConstraint):
    """Knows how many instances there were before it."""

    name = "remembering"
    made = 0

    def __init__(self, options, session):
        super().__init__(options, session)
        Remembering.made += 1
        self._n = Remembering.made


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        (broken("allowed", lambda _, mask: mask.tolist()), "`allowed` returns (V,) bool. Seen: a list, where V is 264"),
        (broken("allowed", lambda _, mask: mask[:-1]), "Seen: bool of shape (263,)"),
        (broken("allowed", lambda _, mask: mask.astype(np.uint8)), "Seen: uint8 of shape (264,)"),
        (broken("allowed", lambda self, mask: mask & (self._n < 3)), "Something may follow, until the output is complete"),
        (broken("allowed", counted), "Only `accept` changes what a constraint says"),
        (broken("accept", fail), "raises nothing. Seen: KeyError: 8, in `accept`, after the output ["),
        (broken("is_complete", lambda self, _: "no"), "`is_complete` is true or false. Seen: 'no'"),
        (broken("forced", lambda self, tokens: [*tokens, 1, 2, 3, 4, 5, 6]), "where the limit was 1"),
        (
            broken("forced", lambda self, tokens: [(token + 1) % 263 for token in tokens]),
            "A forced token is the only one allowed",
        ),
        (Remembering, "What is allowed depends on options and output alone"),
    ],
)
def test_a_broken_promise_is_found_out(constraint, told):
    with pytest.raises(ContractError, match=re.escape(told)) as found:
        check_constraint(constraint)
    assert "See augury.plugin.Constraint" in str(found.value)


@pytest.mark.parametrize("options", [{}, {"modulus": 1, "stretch": 9}, {"length": 5}, {"modulus": 60, "stretch": 0}])
def test_an_honest_constraint_passes(options):
    check_constraint(ToyConstraint, options)  # raises if it finds anything


def test_a_name_or_an_option_that_does_not_exist_is_an_error():
    with pytest.raises(PluginError, match="did you mean 'toy-residues'"):
        check_constraint("toy-residue", registry=registry_with_toys())
    with pytest.raises(OptionError, match="there is no option 'mod'"):
        check_constraint(ToyConstraint, {"mod": 1})
