"""Every promise that a drafter may break is found out by the check that is there for it."""

import re
import sys
from typing import ClassVar

import numpy as np
import pytest
from attrs import frozen

from augury.errors import OptionError, PluginError
from augury.interfaces import Drafter, DrafterTraits
from augury.options import option
from augury.testing import ContractError, check_drafter
from augury.testing.contract import Checks
from augury.testing.drafter import suite
from augury.testing.drafter.engines import ENGINE_CHECKS
from augury.testing.drafter.suite import DRAFTER_CHECKS, drafter_subject
from augury.testing.drafter.watched import Watched
from augury.testing.toys import registry_with_toys
from augury.types import Draft

CHECKS = {check.name: check.run for check in DRAFTER_CHECKS}
ANY_SCRIPT = "keeps limit, vocabulary and history under any script"
AHEAD = "drafts ahead without a trace"
PACE = "drafts no deeper than pays"
REJECTION = "drafts what can be verified by rejection"
DISTRIBUTION = "keeps the distribution where it is verified by rejection"


@frozen
class Options:
    n: int = option(4, help="length", ge=1, le=8, per_request=True)


class Honest(Drafter):
    """Expects the last dozen tokens to come again."""

    name = "mutant"
    options_class = Options

    def draft(self, history, limit):
        return Draft(history[-12:][: min(limit, self.options.n)] if len(history) > 24 else ())


def mutant(base=Honest, /, **changed):
    return type("Mutant", (base,), changed)


def check(name, drafter):
    """Raises if it finds anything."""
    CHECKS[name](drafter_subject(drafter, backends=("toy",)))


def test_a_drafter_may_have_attributes_of_any_private_name():
    names = [*vars(Watched(None, None)), *vars(Watched)]
    assert not [name for name in names if name.startswith("_") and not name.startswith(("__", "_Watched__", "_abc"))]


def test_an_installed_drafter_is_checked_by_its_name_and_its_drafts_are_counted(monkeypatch):
    monkeypatch.setattr(suite, "DRAFTER_CHECKS", Checks(ENGINE_CHECKS[:1]))  # test_conformance.py runs all
    report = check_drafter("ngram-simple", {"n": 3, "m": 8})
    assert report.n_drafted > report.n_accepted > 0
    with pytest.raises(PluginError, match="did you mean 'ngram-simple'"):
        check_drafter("ngram-simpel")
    with pytest.raises(OptionError, match="there is no option 'k'"):
        check_drafter("ngram-simple", {"k": 3})


Long = mutant(draft=lambda self, history, limit: Draft(history[-12:]))
Foreign = mutant(draft=lambda self, history, limit: Draft([264]))
Plain = mutant(draft=lambda self, history, limit: [1])


class Writing(Honest):
    def accept(self, history, verdict):
        history.flags.writeable = True
        history[-1] = 0


class Meddling(Honest):
    """Reaches behind everything that it was given."""

    def accept(self, history, verdict):
        self.session.target._context.model.cells[:] = 0


Short = mutant(draft=lambda self, history, limit: Draft([history[-3]]))
Orphaned = mutant(draft=lambda self, history, limit: Draft([1, 2][:limit], parents=[0, -1][:limit]))
Improbable = mutant(draft=lambda self, history, limit: Draft([1], probabilities=np.full((1, 264), 1 / 263, np.float32)))
Undefined = mutant(draft=lambda self, history, limit: Draft([1], probabilities=np.full((1, 264), np.nan, np.float32)))


class Unseeded(Honest):
    """Draws, where drafts are verified by rejection, by numbers of its own."""

    def draft(self, history, limit):
        if self.session.verify == "match":
            return super().draft(history, limit)
        return Draft([np.random.default_rng().integers(264)], probabilities=np.full((1, 264), 1 / 264, np.float32))


class Drawing(Honest):
    """Draws what follows from two tokens: what came a period ago, and the last one once more."""

    def begin(self, history, n_reused):
        self.rng = np.random.default_rng(self.session.sampling.seed + 1)

    def draft(self, history, limit):
        if len(history) < 12:
            return Draft()
        probabilities = np.zeros((1, 264), np.float32)
        probabilities[0, history[[-12, -1]]] = 0.5
        return self.drawn(history[[-12, -1]], probabilities / probabilities.sum())

    def drawn(self, tokens, probabilities):
        return Draft([self.rng.choice(tokens)], probabilities=probabilities)


class Pretending(Drawing):
    """Says that it draws, and does not."""

    def drawn(self, tokens, probabilities):
        return Draft(tokens[:1], probabilities=probabilities)


class Choosy(Drawing):
    """Keeps what it drew to itself if it does not like it."""

    def drawn(self, tokens, probabilities):
        return Draft(tokens[:1], probabilities=probabilities) if self.rng.random() < 0.5 else Draft()


class Late(Honest):
    """Reads a history that is over."""

    past = None

    def begin(self, history, n_reused):
        self.past, self.history = getattr(self, "history", None), history

    def draft(self, history, limit):
        return Draft(self.past[:1] if self.past is not None else ())


class Keeping(Honest):
    def begin(self, history, n_reused):
        self.tail = history[-5:]


Random = mutant(draft=lambda self, history, limit: Draft(np.random.default_rng().integers(0, 264, 1)))


class Stepping(Honest):
    """Reads the prompt token by token, and lets others go on in between."""

    traits = DrafterTraits(scope="request")

    def begin(self, history, n_reused):
        self.followers = {}
        return self.steps(history)

    def steps(self, history):
        for i in range(len(history) - 1):
            self.followers[int(history[i])] = int(history[i + 1])
            yield

    def draft(self, history, limit):
        return Draft([self.followers[int(history[-1])]] if int(history[-1]) in self.followers else ())


class Reading(Honest):
    """Wants the target's hidden states, of every token, and keeps those of one request."""

    traits = DrafterTraits(scope="request", features=("output",))

    def n_held(self, history):
        return 0

    def feed(self, start, tokens, features):
        self.fed = [*(self.fed if start else []), *tokens.tolist()]
        assert features["output"].shape == (len(tokens), 64)

    def draft(self, history, limit):
        assert self.fed == history[:-1].tolist()
        tokens = super().draft(history, limit).tokens
        return Draft(tokens, confidence=[0.5] * len(tokens))


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [name for name in CHECKS if name != DISTRIBUTION])  # none of them draws
@pytest.mark.parametrize("drafter", [Honest, Stepping, Reading])
def test_what_keeps_its_promises_passes_though_it_begins_in_steps_or_reads_hidden_states(name, drafter):
    subject = drafter_subject(drafter, backends=("toy",))
    CHECKS[name](subject)
    assert subject.report.n_accepted > 0 or name != "leaves greedy output as it is", "what declines every time proves nothing"


class Satiated(Reading):
    def feed(self, start, tokens, features):
        if start > 100:
            raise MemoryError("full")
        super().feed(start, tokens, features)


Boasting = mutant(Reading, n_held=lambda self, history: len(history) + 1)


class Endless(Stepping):
    def steps(self, history):
        while True:
            yield


Listed = mutant(Stepping, begin=lambda self, history, n_reused: [1])


class Unforgetting(Stepping):
    """Trusts that what was begun was ended."""

    n_begun = 0

    def steps(self, history):
        self.n_begun += 1
        yield from super().steps(history)
        self.n_begun -= 1

    def draft(self, history, limit):
        return Draft([self.n_begun])


class Crowded(Stepping):
    """All slots read into one place."""

    traits = DrafterTraits(scope="slot")
    places: ClassVar[list[int]] = []

    def steps(self, history):
        self.places.append(len(history))
        yield
        self.places.remove(len(history))

    def draft(self, history, limit):
        return Draft([len(self.places)])


class Global(Honest):
    traits = DrafterTraits(scope="slot")
    seen: ClassVar[list[int]] = []

    def begin(self, history, n_reused):
        self.seen.append(int(history[0]))

    def draft(self, history, limit):
        return Draft(self.seen[-2:][:limit])


class SharedPool(Honest):
    """Learns with all slots of its engine, and does not say so."""

    traits = DrafterTraits(scope="slot")

    def begin(self, history, n_reused):
        self.pool = self.session.shared("pool", set)
        self.pool.add(int(history[0]))

    def draft(self, history, limit):
        return Draft(sorted(self.pool)[:limit])


HonestPool = mutant(SharedPool, traits=DrafterTraits(scope="process"))


class Remembering(Honest):
    traits = DrafterTraits(scope="request")
    n_requests = 0

    def begin(self, history, n_reused):
        self.n_requests += 1

    def draft(self, history, limit):
        return Draft([self.n_requests])


HonestlyRemembering = mutant(Remembering, traits=DrafterTraits(scope="slot"))
Divided = mutant(draft_together=classmethod(lambda cls, asks: [Draft() for _ in asks]))
Losing = mutant(draft_together=classmethod(lambda cls, asks: [ask.drafter.draft(ask.history, ask.limit) for ask in asks[1:]]))


class Ahead(Honest):
    """Drafts after guesses as it does after histories."""

    traits = DrafterTraits(drafts_ahead=True)

    @classmethod
    def draft_together(cls, asks):
        return [ask.drafter.draft(np.append(ask.history, ask.guess), ask.limit) for ask in asks]


class Deaf(Ahead):
    @classmethod
    def draft_together(cls, asks):
        return [ask.drafter.draft(ask.history, ask.limit) for ask in asks]


class Credulous(Ahead):
    """Takes a guess for what the text holds from then on."""

    def begin(self, history, n_reused):
        self.text = history.tolist()

    def draft(self, history, limit):
        self.text += history[len(self.text) :].tolist()
        return super().draft(np.array(self.text), limit)


class Paced(Honest):
    """Knows how deep it pays to draft."""

    traits = DrafterTraits(is_paced=True)

    @classmethod
    def draft_together(cls, asks):
        drafts = [ask.drafter.draft(ask.history, ask.limit) for ask in asks]
        confident = [Draft(draft.tokens, confidence=np.full(len(draft), 0.5, np.float32)) for draft in drafts]
        return [draft.cut(cls.length(ask.pace, ask.limit)) for ask, draft in zip(asks, confident, strict=True)]

    @staticmethod
    def length(pace, limit):
        return (
            limit
            if pace is None
            else min(pace.depth, next(k for k in range(1, 99) if 0.5**k < pace.min_path_probability or k == 64))
        )


Tireless = mutant(Paced, length=staticmethod(lambda pace, limit: limit))
Hopeful = mutant(Paced, length=staticmethod(lambda pace, limit: limit if pace is None else pace.depth))
Heedless = mutant(traits=DrafterTraits(is_paced=True))
Alone = mutant(traits=DrafterTraits(drafts_ahead=True))
Brief = mutant(teacher_forced=lambda self, history, n: np.ones(1, np.int32))


class Whole(Honest):
    def draft(self, history, limit):
        self.session.target.forward({self.session.slot: history[-1:]}, None)
        return Draft()


@frozen
class Contradiction:
    n: int = option(0, help="length", ge=1)


Contradicting = mutant(options_class=Contradiction)


@frozen
class Lenient:
    n: int = option(4, help="length", ge=1, le=8)


class Leaving(Honest):
    def accept(self, history, verdict):
        raise SystemExit(3)


class Unmade(Honest):
    def __init__(self, options, session):
        raise KeyError("gpu")


class Unclosed(Honest):
    def close(self):
        del self.never_there


@frozen
class Wide:
    n: int = option(4, help="length", ge=0, le=8, per_request=True)


class Dividing(Honest):
    options_class = Wide

    def draft(self, history, limit):
        return Draft(history[-12 // self.options.n :][: min(limit, self.options.n)] if len(history) > 24 else ())


@pytest.mark.parametrize(
    ("name", "drafter", "told"),
    [
        (ANY_SCRIPT, Long, "at most `limit` tokens. Seen: 2 tokens where the limit was 1"),
        (ANY_SCRIPT, Foreign, "token 264, where the target has 0 to 263"),
        (ANY_SCRIPT, Plain, "Seen: a list, after: begin with 2 tokens, 0 of them reused; draft of at most 1."),
        (ANY_SCRIPT, Writing, "never writes into `history`. Seen: another text after the call, after: begin"),
        (ANY_SCRIPT, Orphaned, "parents [0], where each is -1 or stands before its token"),
        (ANY_SCRIPT, Improbable, "do not sum to 1"),
        (ANY_SCRIPT, Undefined, "negative or not finite"),
        (ANY_SCRIPT, Late, "token -7"),
        (ANY_SCRIPT, Leaving, "SystemExit: 3"),
        ("leaves greedy output as it is", Leaving, "SystemExit: 3, in `accept`, in a running engine"),
        (ANY_SCRIPT, Brief, "`teacher_forced` returns (n,) int32 tokens, or None. Seen: array([1], dtype=int32) for"),
        (ANY_SCRIPT, Whole, "a pass through None layers, expected 1 to 3"),
        ("declines gracefully on short and odd texts", Short, "IndexError"),
        ("gives the same drafts for the same calls", Random, "The same calls give the same drafts"),
        ("gives the same drafts for the same calls", Global, "before it was"),
        ("remembers no longer than its scope", SharedPool, "scope is “slot”, but another slot's requests change drafts"),
        ("remembers no longer than its scope", Remembering, "scope is “request”, but after another request drafts are others"),
        ("drafts beside other slots as alone", SharedPool, "beside other slots"),
        (ANY_SCRIPT, Satiated, "MemoryError: full, after: "),
        (ANY_SCRIPT, Boasting, "`n_held` returns how many of the first tokens it can do without, 0 to all. Seen: "),
        (ANY_SCRIPT, Endless, "that comes to an end. Seen: PluginError: takes more than 1002 steps for a text of 2 tokens"),
        (ANY_SCRIPT, Listed, "Seen: a list"),
        ("lets others go on while it begins", Unforgetting, "after requests that were cancelled in `begin`"),
        ("lets others go on while it begins", Crowded, "beside a slot that is in `begin`"),
        ("drafts together as one by one", Divided, "`draft_together` drafts what `draft` does"),
        ("drafts together as one by one", Losing, "for 1 asks"),
        (AHEAD, Deaf, "Drafting ahead leaves no trace but the draft, which is what `draft` gives once the guess is history"),
        (AHEAD, Credulous, "which is what `draft` gives once the guess is history. Seen: draft "),
        (AHEAD, Alone, "drafts_ahead without a `draft_together` that knows `Ask.guess`"),
        (PACE, Tireless, " tokens one after another, where 1 were asked for"),
        (PACE, Hopeful, "a token after a path of 0.250, where 0.3 was asked for"),
        (PACE, Heedless, "is_paced without a `draft_together` that knows `Ask.pace`"),
        ("keeps no reference to a history that is over", Keeping, "1 views of its memory after `end`"),
        ("ends and closes in every order", Unclosed, "AttributeError"),
        ("ends and closes in every order", Unmade, "KeyError: 'gpu'"),
        ("refuses options outside their bounds", Contradicting, "n is 0, expected at least 1"),
        ("works at the bounds of its options", Dividing, "with n=0: mutant: A drafter that knows nothing declines"),
        ("takes options by request", Dividing, "ZeroDivisionError"),
        (REJECTION, Undefined, "negative or not finite"),
        (REJECTION, Unseeded, "The same calls give the same drafts"),
        ("keeps count where it is verified by rejection", Short, "IndexError: index -3 is out of bounds"),
        (DISTRIBUTION, Pretending, "keeps the target's distribution"),
        (DISTRIBUTION, Choosy, "standard deviations from chance"),
        ("leaves output as it is in a chain", Meddling, "mutant;toy-period: The output is that of plain decoding"),
        ("leaves greedy output as it is", Meddling, "The output is that of plain decoding, to the bit. Seen: greedy on toy"),
        ("leaves greedy output as it is", Writing, "ValueError: cannot set WRITEABLE flag to True of this array, in `accept`"),
        ("leaves sampled output as it is", Short, "IndexError: index -3 is out of bounds"),
    ],
)
@pytest.mark.sample(6)
def test_a_broken_promise_is_found_out(name, drafter, told):
    with pytest.raises(ContractError, match=re.escape(told)) as found:
        check(name, drafter)
    assert str(found.value).startswith(("mutant: ", "mutant;", "Session.target.forward: "))
    assert "See " in str(found.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [REJECTION, DISTRIBUTION])
def test_what_is_drawn_as_it_says_is_no_breach(name):
    check(name, Drawing)


def test_a_drafter_that_drafts_ahead_passes():
    check(AHEAD, Ahead)


def test_a_drafter_that_keeps_its_pace_passes():
    check(PACE, Paced)


@pytest.mark.parametrize("drafter", [HonestPool, HonestlyRemembering])
@pytest.mark.parametrize("name", ["remembers no longer than its scope", "drafts beside other slots as alone"])
def test_what_a_wider_scope_allows_is_no_breach(name, drafter):
    check(name, drafter)


def test_scripts_are_the_same_in_every_run():
    told = []
    for _ in range(2):
        with pytest.raises(ContractError) as found:
            check(ANY_SCRIPT, Long)
        told.append(str(found.value))
    assert told[0] == told[1]


def test_a_drafter_whose_name_is_taken_is_refused():
    class Taken(Honest):
        name = "suffix"

    with pytest.raises(PluginError, match="two drafter plugins are called 'suffix'"):
        drafter_subject(Taken, registry=registry_with_toys())


def test_without_hypothesis_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(OptionError, match=r"pip install .*\[testing\]"):
        check_drafter(Honest)
