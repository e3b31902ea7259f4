"""What the guide says holds for the drafter that it shows; that it is the one `augury new-drafter` writes is tested there."""

import re
from pathlib import Path

import numpy as np
import pytest
from attrs import fields

from augury import Drafter, DrafterTraits
from augury.errors import OptionError
from augury.testing import ContractError
from augury.testing.drafter.suite import DRAFTER_CHECKS, drafter_subject

GUIDE = (Path(__file__).parents[2] / "docs/write-a-drafter.md").read_text()


def shown():
    (source,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    names = {}
    exec(source, names)
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
