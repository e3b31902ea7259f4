"""What the guide says holds for the drafter that it shows; that it is the one `augury new-drafter` writes is tested there."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from attrs import fields

from augury import Drafter, DrafterTraits, option
from augury.drafter import Tokenizer
from augury.errors import OptionError
from augury.testing import ContractError
from augury.testing.drafter.suite import DRAFTER_CHECKS, drafter_subject

GUIDE = (Path(__file__).parents[2] / "docs/write-a-drafter.md").read_text()


def shown(number=0):
    names = {}
    exec(re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)[number], names)
    (drafter,) = names["augury_drafters"]()
    return drafter


def test_the_drafter_follows_the_trail_and_keeps_to_the_limit():
    drafter = shown()(shown().options_class(), None)
    history = np.array([1, 2, 3, 1, 2, 4, 1], np.int32)
    drafter.begin(history, 0)
    assert drafter.draft(history[:5], 8).tokens.tolist() == [3, 1, 2, 3]
    assert drafter.draft(history, 3).tokens.tolist() == [2, 4, 1]


def test_the_message_it_shows_is_what_a_drafter_without_a_limit_gets():
    class Long(shown()):
        def draft(self, history, limit):
            return super().draft(history[:2].repeat(3), 4)

    (check,) = (check for check in DRAFTER_CHECKS if "any script" in check.name)
    with pytest.raises(ContractError) as found:
        check.run(drafter_subject(Long))
    told, _ = re.findall(r"^```text\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert str(found.value).replace("\n", " ") == told.replace("\n", " ").strip()


def test_its_options_have_bounds():
    with pytest.raises(OptionError, match="length is 0, expected at least 1"):
        drafter_subject(shown(), {"length": 0})


def test_the_guide_names_every_method_and_attribute_of_a_drafter():
    known = {name for name, value in vars(Drafter).items() if not name.startswith("_abc") and value is not None}
    public = (
        {name for name in known if not name.startswith("__")} | {"__init__"} | {each.name for each in fields(DrafterTraits)}
    )
    assert not [name for name in public if name not in GUIDE]


def test_the_guide_names_every_method_whose_exceptions_leave_a_drafter_out():
    (row,) = re.findall(r"^\| an exception \|.*$", GUIDE, re.MULTILINE)
    methods = {name for name, value in vars(Drafter).items() if callable(getattr(Drafter, name)) and not name.startswith("_")}
    asked_of_classes = {"drafts_with", "wrapped", "wrapping"}
    assert set(re.findall(r"`([a-z_]+)`", row)) == methods - {"close"} - asked_of_classes


OF_STATES = [check for check in DRAFTER_CHECKS if re.search("script|hidden states|greedy", check.name)]


@pytest.mark.parametrize("check", OF_STATES, ids=lambda check: check.name)
def test_the_drafter_that_reads_hidden_states_passes_the_checks(check):
    check.run(drafter_subject(shown(1)))


def test_the_drafter_that_reads_hidden_states_goes_on_as_after_the_most_similar_one():
    drafter = shown(1)(shown(1).options_class(), None)
    states = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0]] * np.float32([[1], [2], [3], [4], [5]])
    drafter.feed(0, np.array([7, 8, 9], np.int32), {"output": states[:3]})
    assert drafter.draft(np.array([7, 8, 9, 6, 7], np.int32), 8).tokens.tolist() == []  # of which one was not fed
    drafter.feed(3, np.array([6, 7], np.int32), {"output": states[3:]})
    assert drafter.draft(np.array([7, 8, 9, 6, 7, 8], np.int32), 2).tokens.tolist() == [9, 6]
    assert drafter.draft(np.array([7, 8, 9, 6, 7, 5], np.int32), 2).tokens.tolist() == []


def test_the_guide_names_every_argument_of_option_and_what_a_tokenizer_has():
    public = {name for name in vars(Tokenizer) if not name.startswith("_")} - {"add_bos", "bos"}
    for name in (*inspect.signature(option).parameters, *public):
        assert re.search(rf"^\|.*`{name}\b", GUIDE, re.MULTILINE), name
