"""Flags that are declared as their help shows them."""

import re

import pytest

from augury.cli.parser import Parser, count
from augury.errors import OptionError


@pytest.fixture
def parser():
    parser = Parser(prog="tea")
    group = parser.add_argument_group("leaves")
    group.flag("-n --n-cups N", "cups (default: 2)", count(least=1), default=2)
    group.flag("-l --leaf NAME ...", "a leaf; repeats")
    parser.flag("--milk", "with milk")
    parser.flag("--sort", "which", choices=("green", "black"))
    return parser


def test_a_flag_has_a_value_if_its_declaration_names_one(parser):
    found = vars(parser.parse_args(["-n", "3", "--milk", "-l", "a", "--leaf=b", "--sort", "green"]))
    assert {name: found[name] for name in ("n_cups", "leaf", "milk", "sort")} == {
        "n_cups": 3,
        "leaf": ["a", "b"],
        "milk": True,
        "sort": "green",
    }


def test_defaults_are_those_of_argparse(parser):
    found = vars(parser.parse_args([]))
    assert (found["n_cups"], found["leaf"], found["milk"], found["sort"]) == (2, [], False, None)


def test_a_value_is_converted_and_its_error_names_the_flag(parser):
    with pytest.raises(OptionError, match="-n is '0', expected a whole number of at least 1"):
        parser.parse_args(["-n", "0"])


def test_help_shows_the_declaration(parser):
    text = re.sub(r"(-\w) [A-Z]+, ", r"\1, ", " ".join(parser.format_help().split()))  # Python before 3.13 names a value twice
    assert "leaves: -n, --n-cups N cups (default: 2) -l, --leaf NAME a leaf; repeats" in text
