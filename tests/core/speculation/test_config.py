"""What a request may ask of its drafters, and synthetic acceptance. What chains there are is tested with the engine."""

import numpy as np
import pytest
from attrs import frozen
from support.toys import ScriptedDrafter, planner_of, toy_engine

from augury.engine.engine import Engine
from augury.errors import OptionError
from augury.options import NoOptions, option
from augury.registry import Registry
from augury.speculation.config import Member, Speculation, choose_drafters, speculative_params
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafts import SlotProposals
from augury.speculation.verification import Match, Synthetic, acceptance_rule

PROMPT = [1, 2, 3, 4]


@frozen
class SureOptions:
    p_min: float = option(0.5, help="sure enough", ge=0, le=1, per_request=True)
    depth: int = option(3, help="how far")


LOADED = Speculation((Member("sure", SureOptions(), ("certain",)), Member("easy", NoOptions())))


def test_a_request_chooses_among_the_drafters_that_were_loaded():
    assert LOADED.override({"type": "easy"}).type == "easy"
    assert LOADED.override({"type": "easy,sure"}).type == "easy;sure"
    assert LOADED.override({"type": "none"}).members == LOADED.override(False).members == ()
    assert LOADED.override({"p_min": 0.25}).members[0].options == SureOptions(p_min=0.25)
    assert LOADED.override({"p_min": 0.25, "type": "none"}).type == "none"
    assert LOADED.override(None) is LOADED


def test_every_request_may_bound_its_drafts():
    easy = LOADED.override({"type": "easy", "p_min": 0.75, "n_max": 4, "n_min": 0})
    assert (easy.type, easy.n_max, easy.n_min) == ("easy", 4, 0)
    assert Speculation().override({"p_min": 0.75, "n_max": 4.0}).n_max == 4
    strict = Speculation(n_max=8, n_min=6)
    assert strict.override({"n_max": 4}) == Speculation(n_max=4, n_min=4)
    assert strict.override({"n_min": 9}) == Speculation(n_max=8, n_min=8)


def test_what_is_in_force_is_told_of_drafters_that_are_in_use():
    assert Speculation(n_max=4).effective() == {"type": "none", "n_max": 4, "n_min": 0}
    assert LOADED.effective() == {
        "type": "sure;easy",
        "n_max": 16,
        "n_min": 0,
        "is_fixed": False,
        "verify": "match",
        "timeout_s": LOADED.timeout_s,
        "sure": {"p_min": 0.5, "depth": 3},
    }


def test_auto_stands_alone():
    assert [member.name for _, member in choose_drafters(Registry.discover(), "auto")] == ["suffix", "recycle"]
    assert [member.name for _, member in choose_drafters(Registry.discover(), "auto", "md")] == [
        "suffix",
        "recycle",
        "draft-model",
    ]
    for text in ("auto:k=1", "auto;suffix"):
        with pytest.raises(OptionError, match="auto chooses the drafters itself"):
            choose_drafters(Registry.discover(), text)


def test_a_request_may_call_drafters_what_spec_type_may():
    assert LOADED.override({"type": "certain"}).members == LOADED.members[:1]
    assert LOADED.override(True) is LOADED.override(None) is LOADED
    assert LOADED.override({"type": "easy;certain;sure"}).type == "easy;sure"
    assert LOADED.override({"certain": {"p_min": 0.25}}).members[0].options == SureOptions(p_min=0.25)
    ((_, lookup),) = choose_drafters(Registry.discover(), "lookup")
    assert Speculation((lookup,)).override({"type": "lookup"}).type == "ngram-cache"


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"type": "other"}, "loaded with 'sure;easy'; name some of that, or 'none'"),
        ({"type": "sure:p_min=0.9"}, r"type takes names alone; give options as \{'sure': \{'p_min': '0.9'\}\}"),
        ({"type": ""}, "type is '', expected 'none' or some of 'sure;easy'"),
        ({"type": ["easy"]}, r"type is \['easy'\], expected"),
        ({"type": "easy", "p_min": 1.5}, "p_min is 1.5, expected 0 to 1"),
        ({"p_min": float("nan")}, "p_min is nan"),
        ({"n_max": 3, "n_min": 4}, "n_min is 4, expected at most n_max, which is 3"),
        ({"type": "sute"}, "type is 'sute', but the engine was loaded with 'sure;easy'; did you mean 'sure'"),
        ({"type": "certain:p_min=0.9"}, "type takes names alone"),
        ({"sure": {}, "certain": {}}, "certain is another name of sure, which is given, too"),
        ({"sure": {"depth": 4}}, "depth can only be set when the engine is loaded"),
        (3, "speculative is 3, expected True, False or a mapping"),
    ],
)
def test_what_a_request_cannot_have_is_refused(wishes, expected):
    with pytest.raises(OptionError, match=expected):
        LOADED.override(wishes)


@pytest.mark.parametrize("said", [{"speculative": False}, {"speculative": {"n_max": 1}}])
def test_a_dotted_key_beside_the_same_key_is_refused(said):
    with pytest.raises(OptionError, match=r"speculative\.n_max is given as well as speculative"):
        speculative_params(said | {"speculative.n_max": 2})


def test_dotted_keys_are_taken_by_submit():
    with toy_engine(drafter=wrong) as engine:
        result = engine.generate(PROMPT, max_tokens=6, temperature=0.0, **{"speculative.n_max": 1})
    assert result.stats.effective["n_max"] == 1
    with toy_engine(drafter=wrong) as engine, pytest.raises(OptionError, match="speculative: there is no 'n_maxx'"):
        engine.submit(PROMPT, **{"speculative.n_maxx": 1})


def wrong(model):
    """Never right, four tokens a draft."""
    return ScriptedDrafter(model, ((0, 4),))


def generate(rates, drafter=wrong, *, n=300, **params):
    with toy_engine(n_ctx=n + 16, drafter=drafter, n_max=4, rule=Synthetic(rates) if rates else Match()) as engine:
        return engine.generate(PROMPT, max_tokens=n, **{"temperature": 0.0, "seed": 3} | params)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_accepted_at_the_given_rates_whoever_is_right(temperature):
    stats = generate((0.9, 0.6), n=4000, temperature=temperature).stats
    offered = np.array([stats.n_rounds - 1, *stats.accepted_by_position[:3]])  # a trial is where all before were accepted
    expected = np.array([0.9, 0.6, 0.6, 0.6])
    shares = np.array(stats.accepted_by_position) / offered
    assert (abs(shares - expected) < 4 * np.sqrt(expected * (1 - expected) / offered)).all()


def test_a_length_is_what_is_accepted_of_endless_drafts_on_average():
    (rate,) = Synthetic.of(None, 3.0).rates
    assert rate / (1 - rate) == pytest.approx(3.0)
    assert Synthetic.of(None, 0) == Synthetic((0.0,))
    assert Synthetic.of((1, 0.5), None) == Synthetic((1.0, 0.5))
    assert Synthetic.of(None, None) is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_seed_repeats_what_chance_accepted(temperature):
    first, again, other = (generate((0.5,), temperature=temperature, seed=seed) for seed in (5, 5, 6))
    assert first.tokens == again.tokens
    assert first.stats.accepted_by_position == again.stats.accepted_by_position
    assert first.tokens != other.tokens


def test_requests_say_that_acceptance_was_synthetic_and_others_do_not():
    assert generate((0.5, 0.25)).stats.effective["synthetic"] == [0.5, 0.25]
    assert "synthetic" not in generate(()).stats.effective
    with toy_engine(drafter=wrong, rule=Synthetic((0.5,))) as engine:
        plain = engine.generate(PROMPT, max_tokens=20, temperature=0.0, speculative={"type": "none"})
    assert "synthetic" not in plain.stats.effective
    with toy_engine() as engine:
        assert plain.tokens == engine.generate(PROMPT, max_tokens=20, temperature=0.0).tokens


@pytest.mark.parametrize(("script", "rate"), [((0, 4), 1.0), ((4, 0), 0.0)])
@pytest.mark.parametrize("n_verified", [1, 4])
def test_the_planner_learns_what_chance_accepts_and_not_what_is_right(script, rate, n_verified, monkeypatch):
    seen, score = [], SlotProposals.score

    def scored(slot, drafter, emitted):
        score(slot, drafter, emitted)
        if (proposal := slot.by_drafter.get(drafter)) is not None and len(proposal.draft):
            seen.append(drafter.n_right / min(len(proposal.draft), len(emitted)))

    monkeypatch.setattr(SlotProposals, "score", scored)
    costs = PassCosts([PassTime(n, 0, 1.2 if n <= 1 + n_verified else 9.0) for n in (1, 2, 3, 5)], 8)
    drafter = [lambda model: ScriptedDrafter(model, (script,))]
    with toy_engine(n_ctx=320, drafter=drafter, n_max=4, rule=Synthetic((rate,)), planner=planner_of(costs, False)) as engine:
        engine.generate(PROMPT, max_tokens=300, temperature=0.0, seed=3)
    assert set(seen) == {rate}


@pytest.mark.parametrize("rule", [Match(), Synthetic((1.0,))])
def test_a_drafters_own_probabilities_end_no_draft_that_chance_accepts(rule):
    paces = []

    class Paced(ScriptedDrafter):
        @classmethod
        def draft_together(cls, asks):
            paces.extend(ask.pace for ask in asks)
            return [ask.drafter.draft(ask.history, ask.limit) for ask in asks]

    planner = planner_of(PassCosts([PassTime(n, 0, 1.0) for n in (1, 2, 3, 5)], 8), True)
    planner.profiles[0].is_paced = True
    drafter = [lambda model: Paced(model, ((4, 0),))]
    with toy_engine(n_ctx=128, drafter=drafter, n_max=4, rule=rule, planner=planner) as engine:
        lengths = engine.generate(PROMPT, max_tokens=60, temperature=0.0, seed=3).stats.draft_lengths
    assert any(paces) is rule.judges_by_text
    assert max(lengths) == 4


@pytest.mark.parametrize(
    ("rates", "length", "expected"),
    [
        ((0.5,), 2, "give one of them"),
        ((), None, "expected chances"),
        ((1.5,), None, "expected chances"),
        ((float("nan"),), None, "expected chances"),
        ("0.5", None, "expected chances"),
        ((True,), None, "expected chances"),
        (0.5, None, "expected chances"),
        (None, -1, "at least 0"),
        (None, float("inf"), "at least 0"),
        (None, "two", "at least 0"),
    ],
)
def test_rates_that_make_no_sense_are_refused(rates, length, expected):
    with pytest.raises(OptionError, match=expected):
        Synthetic.of(rates, length)


def test_synthetic_acceptance_stands_alone():
    with pytest.raises(OptionError, match="takes the place of spec_verify rejection"):
        acceptance_rule("rejection", (0.5,))
    with pytest.raises(OptionError, match="no drafter is in use"):
        Engine.load("absent.gguf", spec_type="none", spec_synth_len=2)


def test_drafts_may_be_wanted_of_one_length_and_no_call_may_take_no_time():
    assert Speculation(n_max=4, n_min=4).n_min == Speculation(n_max=0, n_min=4).n_min == 4
    with pytest.raises(OptionError, match="expected at most n_max"):
        Speculation(n_max=4, n_min=5)
    with pytest.raises(OptionError, match="above 0"):
        Speculation(timeout_s=0)
