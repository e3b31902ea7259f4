"""Type checkers, the page of options and the check of a request know the same parameters."""

import pickle
from typing import get_type_hints

import attrs
import numpy as np
import pytest

from augury.engine.params import RequestParams
from augury.engine.request import Request, make_request
from augury.errors import AuguryError, PromptTooLongError
from augury.registry import Registry
from augury.sampling import SamplingParams, sampling_options
from augury.speculation.config import Speculation

OF_TEMPLATES = {"messages", "tools", "chat_template_kwargs"}
REGISTRY = Registry.discover()


@pytest.mark.parametrize("name", sorted(RequestParams.__annotations__.keys() - OF_TEMPLATES - {"receipt", "json_schema"}))
def test_every_parameter_that_has_a_type_is_checked(name):
    with pytest.raises(AuguryError) as refused:
        make_request(np.array([1]), {name: object()}, speculation=Speculation(), n_vocab=4, registry=REGISTRY)
    assert "there is no parameter" not in str(refused.value)


def test_every_parameter_that_is_checked_has_a_type():
    given = {each.name for each in attrs.fields(Request) if each.converter is not None}
    keywords = {each.keyword for each in REGISTRY.constraints.values() if each.keyword is not None}
    assert given | attrs.fields_dict(SamplingParams).keys() | keywords <= RequestParams.__annotations__.keys()


def test_types_of_sampling_are_those_of_its_options():
    types, expected = get_type_hints(RequestParams), get_type_hints(SamplingParams)
    assert {name: types[name] for name in sampling_options()} == {name: expected[name] for name in sampling_options()}


def test_an_error_reaches_another_process_with_its_figures():
    error = pickle.loads(pickle.dumps(PromptTooLongError(9, 8, is_least=True)))
    assert (str(error), error.n_prompt, error.n_ctx) == (str(PromptTooLongError(9, 8, is_least=True)), 9, 8)
