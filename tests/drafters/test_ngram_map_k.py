import pytest

from augury.drafters.ngram_map_k import NgramMapKOptions, augury_drafters
from augury.errors import OptionError
from augury.options import build, options_of


def test_its_options_are_known_by_llama_cpps_flags_and_checked():
    options = options_of(NgramMapKOptions)
    assert {name: option.default for name, option in options.items()} == {"n": 12, "m": 48}
    assert "spec-ngram-map-k-size-n" in options["n"].aliases
    assert "spec-ngram-map-k-size-m" in options["m"].aliases
    for key, value in (("n", "0"), ("n", "1025"), ("m", "0"), ("m", "x")):
        with pytest.raises(OptionError, match=key):
            build(NgramMapKOptions, {key: value}, "--spec-type ngram-map-k")


def test_it_is_offered_under_its_name():
    assert [drafter.name for drafter in augury_drafters()] == ["ngram-map-k"]
