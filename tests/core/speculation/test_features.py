"""Drafters that read the target's hidden states: what they are fed, and that something can be predicted from it."""

import numpy as np
import pytest
from oracles.models import tiny_model
from support.more_toys import registry_with_toys
from support.toys import toy_engine

from augury import Engine
from augury.engine.loop import Loop
from augury.errors import UnsupportedError
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, DrafterTraits
from augury.testing.toys import TINY_TARGET
from augury.types import Draft

BACKENDS = ["numba-cpu", "reference"]
N_VOCAB = 128
WAYS = [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7, "top_k": 20}]


class Nearest(Drafter):
    """Drafts what came two tokens after the place whose hidden state was most like that of the last token it was fed."""

    name = "nearest"
    traits = DrafterTraits(features=("layer.0", "output"))

    def __init__(self, options, session):
        super().__init__(options, session)
        self.texts = []  # of requests that are over: tokens and what was fed of each
        self.tokens, self.states = np.empty(0, np.int32), {name: np.empty((0, 0), np.float32) for name in self.traits.features}

    def n_held(self, history):
        n = min(len(self.tokens), len(history))
        return int((np.append(self.tokens[:n] != history[:n], True)).argmax())

    def feed(self, start, tokens, features):
        assert start <= len(self.tokens), "nothing is left out"
        self.tokens = np.concatenate([self.tokens[:start], tokens])
        for name in self.traits.features:
            assert features[name].dtype == np.float32
            before = self.states[name][:start] if start else np.empty((0, features[name].shape[1]), np.float32)
            self.states[name] = np.concatenate([before, features[name]])

    def begin(self, history, n_reused):
        assert np.array_equal(self.tokens, history[:-1])

    def draft(self, history, limit):
        assert np.array_equal(self.tokens, history[:-1])
        if len(history) < 4 or len(history) % 3 == 0:
            return Draft()
        states = self.seen()
        past, last = states[:-1], states[-1]
        likeness = past @ last / np.maximum(np.linalg.norm(past, axis=1), 1e-9)
        return Draft(history[likeness.argmax() + 2 :][:1])

    def seen(self):
        return self.states["layer.0"]

    def accept(self, history, verdict):
        assert np.array_equal(self.tokens, history[:-1])

    def end(self):
        self.texts.append((tuple(self.tokens.tolist()), self.states.copy()))


class Blind(Nearest):
    """The same from noise."""

    name = "blind"

    def seen(self):
        return np.random.default_rng(len(self.tokens)).standard_normal((len(self.tokens), 8))


class Deep(Nearest):
    traits = DrafterTraits(features=("layer.9",))


class Plug:
    @hookimpl
    def augury_drafters(self):
        return [Nearest, Blind]


@pytest.fixture(scope="module")
def registry():
    registry = registry_with_toys()
    registry.register(Plug(), name="hidden-states")
    return registry


def prompts():
    rng = np.random.default_rng(5)
    phrases = [rng.integers(0, N_VOCAB, 6).tolist() for _ in range(3)]
    return [phrases[i % 3] * 2 + phrases[(i + 1) % 3] for i in range(5)]


def load(backend, registry, spec_type, **how):
    spec = {"spec_type": spec_type, "spec_fixed": True, "n_ctx": 160, "registry": registry}
    model = TINY_TARGET if backend.startswith("toy") else tiny_model("llama-dense")
    return Engine.load(model, backend=backend, **spec | how)


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("backend", [*BACKENDS, "toy", "toy-recurrent:keeps_aside=false"])  # the last replays accepted tokens
def test_what_is_fed_is_what_one_pass_over_the_text_computes_and_the_output_is_plain(backend, way, registry, monkeypatch):
    asked = {"max_tokens": 30, "logprobs": 0, "ignore_eos": True, **way}
    with load(backend, registry, "none") as engine:
        plain = engine.generate(prompts(), **asked)
    monkeypatch.setattr("augury.engine.loop.CHUNK", 7)
    with load(backend, registry, "nearest;recycle:n_max=6,depth=3", slots=2) as engine:
        results = engine.generate([*prompts(), *prompts()], **asked)  # the second ones find a part of their text in a slot
        texts = [text for drafter in engine._drafters if drafter.name == "nearest" for text in drafter.texts]
    monkeypatch.undo()
    for result, one in zip(results, [*plain, *plain], strict=True):
        assert result.tokens == one.tokens
        assert [piece.logprob for piece in result.pieces] == [piece.logprob for piece in one.pieces]
        assert all(each.failed is None and each.used > 0 for each in result.stats.drafters.values())
    assert sum(result.stats.n_reused for result in results) > 0 or "recurrent" in backend
    assert {tokens for tokens, _ in texts} == {
        (*prompt, *result.tokens[:-1]) for prompt, result in zip(prompts(), plain, strict=True)
    }
    with load(backend, registry, "nearest") as engine:
        for tokens, states in texts:
            engine.generate(tokens, max_tokens=1, cache_prompt=False)
            drafter = engine._drafters[0]
            assert tuple(drafter.tokens.tolist()) == tokens
            for name in Nearest.traits.features:
                assert np.array_equal(states[name], drafter.states[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_hidden_states_predict_better_than_chance(backend, registry):
    rates = []
    for name in ("nearest", "blind"):
        with load(backend, registry, name) as engine:
            stats = [result.stats for result in engine.generate(prompts(), max_tokens=90, ignore_eos=True, **WAYS[0])]
        rates.append(sum(each.n_accepted for each in stats) / sum(each.n_drafted for each in stats))
    assert rates[0] > max(5 / N_VOCAB, 2 * rates[1]), rates


def test_a_target_without_the_features_is_refused():
    with pytest.raises(
        UnsupportedError,
        match=r"drafter nearest wants 'layer\.9' of every token; features of this target: embedding, output, layer\.0",
    ):
        toy_engine(drafter=lambda _: Deep(None, None))


def test_where_nobody_wants_features_no_pass_computes_them(monkeypatch):
    asked, forward = [], Loop._forward

    def watched(*parts):
        done = forward(*parts)
        asked.append(done.features)
        return done

    monkeypatch.setattr(Loop, "_forward", watched)
    with toy_engine() as engine:
        engine.generate([1, 2], max_tokens=3)
    assert asked == [{}] * 3
