"""A drafter that wraps others: who drafts inside it, and what it asks the memory for."""

import attrs
import pytest
from attrs import frozen
from support.more_toys import registry_with_toys

from augury.engine.engine import Engine
from augury.errors import OptionError, PluginError
from augury.interfaces import Drafter, DrafterTraits
from augury.options import option
from augury.testing.toys import TINY_DRAFT, TINY_TARGET
from augury.types import Draft

REGISTRY = registry_with_toys()
GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPT = [7, 8, 9] * 6
INNER = f"draft-model:model={TINY_DRAFT}"


@frozen
class WrapperOptions:
    inner: str = option("auto", help="who drafts")


class Wrapper(Drafter):
    """Drafts as the first of its drafters does that proposes something, and has rejected drafts restored."""

    name = "toy-wrapper"
    options_class = WrapperOptions
    traits = DrafterTraits(memory_options={"use_checkpoints": "on"})

    def __init__(self, options, session):
        super().__init__(options, session)
        self.inner, self.used = session.drafters(options.inner), None
        self.traits = attrs.evolve(self.traits, n_top=max(each.traits.n_top for each in self.inner))

    @classmethod
    def wrapped(cls, options):
        return options.inner

    @classmethod
    def wrapping(cls, drafters):
        return {"inner": drafters}

    def begin(self, history, n_reused):
        for each in self.inner:
            yield from each.begin(history, n_reused) or ()

    def draft(self, history, limit):
        drafts = ((each, each.draft(history, limit)) for each in self.inner)
        self.used, draft = next(((each, draft) for each, draft in drafts if len(draft)), (None, Draft()))
        return attrs.evolve(draft, evidence=None)

    def accept(self, history, verdict):
        if self.used is not None:
            self.used.accept(history, verdict)

    def end(self):
        for each in self.inner:
            each.end()


REGISTRY.drafters[Wrapper.name] = Wrapper


def load(spec, backend="toy-recurrent", memory="auto", **how):
    how = {"n_ctx": 256, "spec_fixed": True, "draft_max": 6, "registry": REGISTRY} | how
    return Engine.load(TINY_TARGET, backend=backend, memory=memory, spec_type=spec, **how)


@pytest.mark.parametrize(
    ("backend", "memory", "is_restored"),
    [
        ("toy-recurrent", "auto", True),
        ("toy-recurrent:keeps_aside=false", "auto", True),
        ("toy-recurrent", "checkpoints:use_checkpoints=auto", False),  # what the user says comes first
        ("toy", "auto", False),
    ],
)
def test_rejected_drafts_are_restored_and_counted_where_there_is_a_state(backend, memory, is_restored):
    with load("none", backend) as plain, load(f"toy-wrapper({INNER})", backend, memory) as engine:
        result = engine.generate(PROMPT, max_tokens=80, **GREEDY)
        assert result.tokens == plain.generate(PROMPT, max_tokens=80, **GREEDY).tokens
        assert 0 < result.stats.n_accepted < result.stats.n_drafted
        assert (result.stats.n_restores > 0, result.stats.n_replayed > 0) == (is_restored, is_restored)
        assert engine.config["spec_type"] == f"toy-wrapper({INNER})"


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize(
    "inner", ["toy-period;ngram-map-k:n=1,m=5", f"recycle;{INNER}", "self-spec:mode=layers,layers=1", "auto"]
)
def test_chains_and_all_kinds_of_drafters_can_be_wrapped(inner, is_fixed):
    with load("none") as plain, load(f"toy-wrapper({inner})", slots=2, spec_fixed=is_fixed) as engine:
        prompts = [PROMPT, [5, 6, 5, 6, 5]]
        found, expected = (each.generate(prompts, max_tokens=60, **GREEDY) for each in (engine, plain))
        assert [each.tokens for each in found] == [each.tokens for each in expected]
        assert all(each.stats.drafters["toy-wrapper"].failed is None for each in found)
        assert not is_fixed or sum(each.stats.n_drafted for each in found) > 0


@pytest.mark.parametrize("spec", ["toy-wrapper(toy-period;draft-model:p_min=0.1)", f"toy-wrapper({INNER})"])
def test_a_draft_model_is_given_to_the_drafter_that_takes_it(spec):
    with load(spec, draft_model=TINY_DRAFT) as engine:
        assert f"model={TINY_DRAFT}" in engine.config["spec_type"]
        assert len(engine._loader.models) == 2
    with pytest.raises(OptionError, match="a draft model is given, but toy-wrapper uses none"):
        load("toy-wrapper(suffix)", draft_model=TINY_DRAFT)


@pytest.mark.parametrize(
    ("spec", "error", "told"),
    [
        ("toy-wrapper(ngram-simpel)", PluginError, "did you mean 'ngram-simple'"),
        ("toy-wrapper(ngram-simple:x=1)", OptionError, "there is no option 'x'"),
        ("ngram-simple(suffix)", OptionError, "ngram-simple: there is no option 'inner'"),
        ("toy-wrapper(suffix", OptionError, "has a bracket that is not closed"),
    ],
)
def test_what_cannot_be_wrapped_is_told(spec, error, told):
    with pytest.raises(error, match=told):
        load(spec)
