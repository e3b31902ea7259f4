"""What a constraint decides, and that what goes wrong in one ends its own request alone."""

import weakref

import numpy as np
import pytest
from support.more_toys import registry_with_toys
from support.toys import ScriptedDrafter, planner_of, toy_engine
from support.vocabularies import tiny

from augury.constraint import Constraint
from augury.engine.channel import Channel
from augury.engine.constraint import ConstraintGuard
from augury.engine.request import make_request
from augury.errors import OptionError, PluginError, UnsupportedError
from augury.hookspecs import hookimpl
from augury.options import NoOptions
from augury.registry import Registry
from augury.speculation.config import Speculation
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.verification import Synthetic
from augury.testing.toy_model import ToyModel
from augury.text.tokenizer import load_tokenizer
from augury.types import Draft

GREEDY = {"temperature": 0.0}
TOYS = registry_with_toys()
EOS = 15
TOKENIZER = load_tokenizer(
    tiny(tokens=[chr(ord("a") + i) for i in range(16)], token_type=None, merges=[], bos_token_id=None, eos_token_id=EOS)
)


class Countdown(Constraint):
    """Allows 3, 2 and 1 in turn, then the end."""

    name = "countdown"
    calls = ()  # of the latest

    def __init__(self, options, session):
        super().__init__(options, session)
        self.n_left = 3
        Countdown.calls = self.calls = []

    def allowed(self):
        self.calls.append("allowed")
        mask = np.zeros(self.session.n_vocab, bool)
        mask[[self.n_left] if self.n_left else sorted(self.session.end_tokens)] = True
        return mask

    def accept(self, token):
        self.calls.append(token)
        assert token == self.n_left
        self.n_left -= 1


class Complete(Countdown):
    """The same, and says itself when nothing may follow."""

    name = "complete"

    @property
    def is_complete(self):
        return self.n_left == 0


def registry_with(*constraints):
    class Plug:
        @hookimpl
        def augury_constraints(self):
            return constraints

    registry = Registry()
    registry.register(Plug(), name="constraints")
    return registry


def engine_with(*constraints, **how):
    return toy_engine(registry=registry_with(*constraints), **how)


def scripted(*tokens):
    """Makes drafters that draft what follows of these tokens."""

    class Scripted(ScriptedDrafter):
        def draft(self, history, limit):
            return Draft(tokens[len(history) :][:limit])

    return Scripted


@pytest.mark.parametrize("wish", ["toy-residues:modulus=4,length=6", {"toy-residues": {"modulus": 4, "length": 6}}])
def test_it_is_named_by_text_or_mapping_and_ends_what_is_complete(wish):
    with toy_engine(registry=TOYS) as engine:
        result = engine.generate([1], constraint=wish, max_tokens=40, **GREEDY)
    assert result.finish_reason == "stop"
    assert 6 <= len(result.tokens) <= 10
    assert result.tokens[0] % 4 == 0


@pytest.mark.parametrize(
    ("wish", "error", "told"),
    [
        ("toy-residue", OptionError, "no constraint 'toy-residue'; did you mean 'toy-residues'"),
        ("toy-residues:modulus=0", OptionError, "constraint toy-residues: modulus is '0', expected at least 1"),
        ({"toy-residues": {"mod": 2}}, OptionError, "there is no option 'mod'"),
        ({"toy-residues": None}, OptionError, "expected one, as 'name:key=value' or"),
        ({}, OptionError, "expected one"),
        ("toy-residues;toy-residues", OptionError, "expected one"),
        (7, OptionError, "constraint is 7, expected one"),
    ],
)
def test_what_is_no_constraint_is_refused_when_it_is_submitted(wish, error, told):
    with toy_engine(registry=TOYS) as engine, pytest.raises(error, match=told):
        engine.submit([1], constraint=wish)


def test_where_acceptance_is_synthetic_a_request_with_a_constraint_is_verified():
    asked = {"constraint": "toy-residues", "max_tokens": 12, **GREEDY}
    with toy_engine(registry=TOYS) as engine:
        plain = engine.generate([1], **asked)
    with toy_engine(registry=TOYS, drafter=ScriptedDrafter, rule=Synthetic((1.0,))) as engine:
        found, free = engine.generate([1], **asked), engine.generate([1], max_tokens=12, **GREEDY)
    assert found.tokens == plain.tokens
    assert found.stats.n_drafted > 0
    assert [each.stats.effective.get("synthetic") for each in (found, free)] == [None, [1.0]]


@pytest.mark.parametrize("way", [GREEDY, {"temperature": 5.0, "top_k": 0, "seed": 2}, {**GREEDY, "logit_bias": {3: -50.0}}])
def test_where_one_token_is_allowed_it_is_chosen_and_logprobs_are_the_model_s_own(way):
    with engine_with(Countdown, tokenizer=TOKENIZER) as engine:
        result = engine.generate([1], constraint="countdown", logprobs=2, **way)
        logits = engine.evaluate([1, *result.tokens[:-1]])
    assert result.tokens == (3, 2, 1, EOS)
    assert result.finish_reason == "stop"
    logits = logits.astype(np.float64)
    expected = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[range(4), result.tokens]
    assert [piece.logprob for piece in result.pieces] == pytest.approx(expected.tolist(), rel=1e-6)
    assert all(len(piece.top_logprobs) == 2 for piece in result.pieces)


@pytest.mark.parametrize("params", [{"ignore_eos": True}, {"min_tokens": 9}, {"logit_bias": {EOS: -np.inf}}])
def test_an_end_that_the_request_forbids_is_an_error_unless_the_constraint_says_that_it_is_complete(params):
    with engine_with(Countdown, Complete, tokenizer=TOKENIZER) as engine:
        with pytest.raises(
            PluginError, match="after 3 tokens constraint countdown allows none that the request does not forbid"
        ):
            engine.generate([1], constraint="countdown", **GREEDY, **params)
        result = engine.generate([1], constraint="complete", **GREEDY, **params)
    assert (result.tokens, result.finish_reason) == ((3, 2, 1), "stop")


def test_stops_and_limits_end_it_before_it_is_complete():
    with engine_with(Countdown, tokenizer=TOKENIZER) as engine:
        stopped = engine.generate([1], constraint="countdown", stop="dc", **GREEDY)
        short = engine.generate([1], constraint="countdown", max_tokens=2, **GREEDY)
        by_token = engine.generate([1], constraint="countdown", stop_token_ids=[2], **GREEDY)
    assert (stopped.text, stopped.finish_reason) == ("", "stop")
    assert (short.tokens, short.finish_reason) == ((3, 2), "length")
    assert (by_token.tokens, by_token.finish_reason) == ((3, 2), "stop")


@pytest.mark.parametrize("constraint", ["countdown", "complete"])
def test_a_draft_that_goes_on_after_the_end_does_no_harm(constraint):
    text = [0, 3, 2, 1, *([EOS] if constraint == "countdown" else [])]
    text += ToyModel().plain(text, 3)  # which the target would go on with
    with engine_with(Countdown, Complete, tokenizer=TOKENIZER, drafter=scripted(*text)) as engine:
        result = engine.generate([0], constraint=constraint, **GREEDY)
    assert result.tokens == ((3, 2, 1, EOS) if constraint == "countdown" else (3, 2, 1))
    assert result.stats.n_rounds == 2
    asked = ["allowed", 3, "allowed", 2, "allowed", 1, *(["allowed"] if constraint == "countdown" else [])]
    assert Countdown.calls == asked, "neither end tokens nor what follows reach it"


def failing(method, error):
    """A constraint whose method raises at the second token."""

    def fail(self, *_):
        if self.n_left == 2 or (method == "accept" and self.n_left == 3):
            raise error
        return getattr(super(failed, self), method)(*_)

    failed = type("Failing", (Countdown,), {"name": "failing", method: fail})
    return failed


@pytest.mark.parametrize("drafter", [None, scripted(0, 3, 2, 1, EOS)])
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), UnsupportedError("no token begins what must follow")])
@pytest.mark.parametrize("method", ["allowed", "accept"])
def test_a_failing_constraint_ends_its_own_request_alone_and_is_named(method, error, drafter):
    is_meant = isinstance(error, UnsupportedError)
    told = "constraint failing: no token" if is_meant else f"constraint failing failed in `{method}`: {type(error).__name__}"
    with toy_engine() as engine:
        plain = engine.generate([4, 5], max_tokens=12, **GREEDY).tokens
    with engine_with(failing(method, error), slots=2, tokenizer=TOKENIZER, drafter=drafter) as engine:
        other = engine.submit([4, 5], max_tokens=12, ignore_eos=True, speculative=False, **GREEDY)
        broken = engine.submit([0], constraint="failing", **GREEDY)
        with pytest.raises(UnsupportedError if is_meant else PluginError, match=told):
            broken.result()
        assert [piece.token for piece in broken._channel.tokens] == [3]
        assert other.result().tokens[:3] == plain[:3]
        counts = engine.stats().counts
    assert (counts.n_failed, counts.n_finished) == (1, 1)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("allowed", lambda self: [True] * 16, "`allowed`: TypeError: returned a list, expected an array"),
        ("allowed", lambda self: np.ones(16, np.int8), r"returned int8 of shape \(16,\), expected bool of shape \(16,\)"),
        ("allowed", lambda self: np.ones(15, bool), r"returned bool of shape \(15,\)"),
        ("is_complete", "no", "`is_complete`: TypeError: is 'no', expected true or false"),
        ("allowed", lambda self: np.zeros(16, bool), "after 0 tokens constraint odd allows none"),
    ],
)
def test_what_a_method_may_not_return_is_an_error_that_says_so(name, value, told):
    odd = type("Odd", (Countdown,), {"name": "odd", name: value})
    with engine_with(odd, tokenizer=TOKENIZER) as engine, pytest.raises(PluginError, match=told):
        engine.generate([1], constraint="odd", **GREEDY)


@pytest.mark.parametrize(("error", "kind"), [(OptionError("no such grammar"), OptionError), (KeyError("x"), PluginError)])
def test_what_the_constructor_raises_is_told_to_whoever_submits(error, kind):
    def fail(self, options, session):
        raise error

    with (
        engine_with(type("Refusing", (Countdown,), {"name": "refusing", "__init__": fail})) as engine,
        pytest.raises(kind, match=r"no such grammar|constraint refusing failed in `__init__`: KeyError: 'x'"),
    ):
        engine.submit([1], constraint="refusing")


def test_a_forced_that_fails_leaves_out_the_drafter_alone():
    class Forcing(Countdown):
        name = "forcing"

        def forced(self, limit):
            raise ValueError("broken")

    class Asking(ScriptedDrafter):
        def draft(self, history, limit):
            return Draft(self.session.forced(limit))

    def make(model):
        drafter = Asking(model)
        drafter.session = type("Session", (), {})()
        return drafter

    from augury import Engine

    with engine_with(Forcing, tokenizer=TOKENIZER, drafter=make, kind=Engine) as engine:
        result = engine.generate([1], constraint="forcing", **GREEDY)
    assert result.tokens == (3, 2, 1, EOS)
    assert "constraint forcing failed in `forced`: ValueError: broken" in result.stats.drafters["scripted"].failed


def test_what_drafters_are_given_of_a_constraint_keeps_no_request_alive():
    with toy_engine(registry=TOYS) as engine:
        for params in ({}, {"constraint": "toy-residues"}):
            request = make_request(np.array([1], np.int32), params, speculation=Speculation(), n_vocab=16, registry=TOYS)
            sequence = engine._sequence(request, Channel())
            forced, gone = sequence.forced, weakref.ref(sequence)
            assert not forced(3)
            del sequence
            assert gone() is None


def test_the_second_call_that_takes_too_long_is_a_failure(monkeypatch):
    now = [0.0]

    class Slow(Countdown):
        name = "slow"

        def allowed(self):
            now[0] += 2
            return super().allowed()

    monkeypatch.setattr("augury.engine.constraint.perf_counter", lambda: now[0])
    session = type("Session", (), {"n_vocab": 16, "end_tokens": frozenset()})()
    guard = ConstraintGuard((Slow, NoOptions()), session, timeout_s=1.0)
    history = np.array([0, 3], np.int32)
    assert guard.allowed(history[:1], 0)[3]
    with pytest.raises(PluginError, match="`allowed`: TimeoutError: took 2 s, the second call that took more than 1 s"):
        guard.allowed(history, 1)


class Foreseeing(Countdown):
    """The same, and says of drafts what may follow."""

    name = "foreseeing"

    def n_allowed(self, tokens):
        due = range(self.n_left, 0, -1)
        return next((i for i, token in enumerate(tokens) if i >= len(due) or token != due[i]), len(tokens))


@pytest.mark.parametrize("costs", [None, PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 1.01)], 64)])
@pytest.mark.parametrize(("constraint", "lengths"), [("countdown", (5, 3)), ("foreseeing", (1,))])
def test_drafts_are_cut_where_the_constraint_forbids_them_before_they_cost_a_pass(constraint, lengths, costs):
    how = {"drafter": scripted(0, 3, 2, 9, 9, 9, 9), "planner": costs and planner_of(costs, False)}
    with engine_with(Countdown, Foreseeing, tokenizer=TOKENIZER, **how) as engine:
        result = engine.generate([0], constraint=constraint, **GREEDY)
    assert result.tokens == (3, 2, 1, EOS)
    assert tuple(n for n in result.stats.draft_lengths if n) == lengths


def test_a_tree_loses_its_forbidden_branches_and_its_drafter_hears_of_the_places_that_it_knows():
    verdicts = []

    class Tree(ScriptedDrafter):
        def draft(self, history, limit):
            return Draft([9, 2, 8, 1, 7], [-1, -1, 0, 1, 3]) if len(history) == 2 else Draft()

        def accept(self, history, verdict):
            verdicts.append(verdict)

    with engine_with(Foreseeing, tokenizer=TOKENIZER, drafter=Tree) as engine:
        result = engine.generate([0], constraint="foreseeing", **GREEDY)
    assert result.tokens == (3, 2, 1, EOS)
    assert (verdicts[0].n_offered, verdicts[0].n_accepted, verdicts[0].n_proposed, [*verdicts[0].path]) == (2, 2, 5, [1, 3])


@pytest.mark.parametrize(
    "wrong", [lambda self, tokens: 1 / 0, lambda self, tokens: len(tokens) + 1, lambda self, tokens: "all"]
)
def test_a_constraint_that_fails_over_a_draft_ends_its_own_request_alone(wrong):
    failed = type("Failing", (Countdown,), {"name": "failing", "n_allowed": wrong})
    with engine_with(failed, slots=2, tokenizer=TOKENIZER, drafter=scripted(0, 3, 2, 1, EOS)) as engine:
        other = engine.submit([0], max_tokens=12, ignore_eos=True, **GREEDY)
        with pytest.raises(PluginError, match=r"constraint failing failed in `n_allowed`: (ZeroDivision|Value)Error"):
            engine.generate([0], constraint="failing", **GREEDY)
        assert len(other.result().tokens) == 12
