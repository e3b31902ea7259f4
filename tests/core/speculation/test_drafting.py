"""Drafters by what the loop makes of them: chains, trees, plans and verdicts."""

from collections import Counter
from threading import Event

import attrs
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.toys import Gate, ScriptedDrafter, planner_of, toy_engine

from augury.engine.context import EngineContext
from augury.engine.engine import Engine
from augury.engine.sequence import RunningSequence
from augury.interfaces import Drafter, DrafterTraits
from augury.plugins.memory.contiguous import Contiguous
from augury.speculation.constants import CONSTANTS
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafting import Drafting
from augury.speculation.drafts import CostlyAsk, SlotProposals
from augury.speculation.planner import DraftPlanner
from augury.speculation.verification import RULES, Synthetic
from augury.testing.toy_model import ToyModel
from augury.types import Draft

GREEDY = {"temperature": 0.0}
WAYS = [GREEDY, {"temperature": 0.8, "seed": 4, "top_k": 4}, {"temperature": 0.9, "seed": 5, "repeat_penalty": 1.3}]
scripts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4)


def named(name, script, **facts):
    """A maker of scripted drafters of another name."""
    kind = type(name, (ScriptedDrafter,), {"name": name, "traits": DrafterTraits(**facts)})
    return lambda model: kind(model, script)


class TreeDrafter(Drafter):
    """Draws trees that hold a right path, wrong branches beside it, and wrong tokens after it, in random order."""

    name = "tree"

    def __init__(self, model, seed=0):
        super().__init__(None, None)
        self.model = model
        self.rng = np.random.default_rng(seed)

    def draft(self, history, limit):
        tokens, parents = [], []
        right = -1  # the last right node
        text = history.tolist()
        for i in range(int(self.rng.integers(0, 9))):
            parent = int(self.rng.integers(-1, i)) if self.rng.random() < 0.5 else right
            if parent == right and self.rng.random() < 0.7:
                best = int(np.argmax(self.model.logits(np.array(text))))
                right = i
                text.append(best)
                tokens.append(best)
            else:
                tokens.append(int(self.rng.integers(0, 16)))
            parents.append(parent)
        return Draft(tokens, parents)


def constant(n_drafters, is_costly=None, per_token=0.02, kind=DraftPlanner):
    costs = PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 1.0 + 8 * per_token)], 64)
    return planner_of(costs, *(is_costly or [False] * n_drafters), kind=kind)


def own_nodes(slot, index, k):
    """The first k nodes of a drafter's proposal in a slot's tree."""
    proposal = slot.by_drafter.get(slot.drafters.every[index])
    return [] if proposal is None else sorted(set(proposal.nodes[:k]))


class Replaying(Contiguous):
    """Has the last tokens that a slot keeps computed again, as a manager does that restored a checkpoint before them."""

    replays_accepted = True

    def prepare(self, slot, n_certain, n_drafted):
        step = super().prepare(slot, n_certain, n_drafted)
        n = min(2, step.mark)
        replay = tuple(self._slots[slot].tokens[step.mark - n : step.mark].tolist())
        return attrs.evolve(step, mark=step.mark - n, replay=replay)


@pytest.mark.parametrize("memory", [Contiguous, Replaying])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("slots", [1, 3])
def test_trees_give_the_tokens_of_plain_decoding(slots, way, memory):
    prompts = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 1]]
    with toy_engine() as plain, toy_engine(slots=slots, drafter=TreeDrafter, n_max=8, memory=memory) as engine:
        expected = plain.generate(prompts, max_tokens=40, logprobs=1, **way)
        results = engine.generate(prompts, max_tokens=40, logprobs=1, **way)
    for result, one in zip(results, expected, strict=True):
        assert result.tokens == one.tokens
        assert [piece.logprob for piece in result.pieces] == [piece.logprob for piece in one.pieces]
        assert result.stats.n_drafted > result.stats.n_accepted > 0


def test_a_tree_s_path_stays_in_the_memory_when_the_request_is_continued():
    with toy_engine(drafter=TreeDrafter, n_max=8) as engine:
        first = engine.generate([1, 2, 3], max_tokens=30, **GREEDY)
        text = [1, 2, 3, *first.tokens]
        again = engine.generate(text, max_tokens=10, **GREEDY)
    assert again.stats.n_reused > 3
    assert list(again.tokens) == ToyModel().plain(text, 10)


def test_of_a_fixed_chain_the_first_that_has_something_is_used():
    first, second = named("first", [(2, 0), (0, 0), (0, 0)]), named("second", [(1, 1)])
    with toy_engine(drafter=[first, second], n_max=4) as engine:
        result = engine.generate([1, 2], max_tokens=20, **GREEDY)
        one, other = engine._drafters
    assert list(result.tokens) == ToyModel().plain([1, 2], 20)
    stats = result.stats.drafters
    assert stats["first"].calls > stats["second"].calls > 0
    assert stats["second"].used == stats["second"].drafts
    assert {piece.drafter for piece in result.pieces} == {"first", "second", None}
    accepts = [[event[1] for event in drafter.events if event[0] == "accept"] for drafter in (one, other)]
    assert len(accepts[0]) == len(accepts[1]) == result.stats.n_rounds - 1, "both are told of every round"
    assert [a.is_used and b.is_used for a, b in zip(*accepts, strict=True)] == [False] * len(accepts[0])
    assert [a.n_emitted for a in accepts[0]] == [b.n_emitted for b in accepts[1]]


def test_a_request_may_choose_among_the_drafters_that_are_loaded():
    with toy_engine(drafter=[named("first", [(1, 0)]), named("second", [(2, 0)])]) as engine:
        both = engine.generate([1], max_tokens=9, **GREEDY)
        one = engine.generate([1], max_tokens=9, speculative={"type": "second"}, **GREEDY)
        turned = engine.generate([1], max_tokens=9, speculative={"type": "second,first"}, **GREEDY)
        none = engine.generate([1], max_tokens=9, speculative={"type": "none"}, **GREEDY)
    assert both.stats.drafters["first"].used > 0
    assert set(one.stats.drafters) == {"second"}
    assert turned.stats.drafters["second"].used > turned.stats.drafters["first"].used == 0
    assert none.stats.drafters == {}
    assert both.tokens == one.tokens == turned.tokens == none.tokens
    assert one.stats.effective["type"] == "second"


@settings(max_examples=60)
@given(
    script=st.tuples(scripts, scripts, scripts),
    is_costly=st.lists(st.booleans(), min_size=3, max_size=3),
    n=st.integers(1, 24),
    n_max=st.integers(0, 6),
    slots=st.integers(1, 3),
    way=st.sampled_from(WAYS),
)
def test_any_plan_over_any_chain_gives_the_tokens_of_plain_decoding(script, is_costly, n, n_max, slots, way):
    chain = [named(f"d{i}", each, is_costly=costly) for i, (each, costly) in enumerate(zip(script, is_costly, strict=True))]
    prompts = [[1, 2, 3], [4], [5, 6]]
    with toy_engine() as plain:
        expected = plain.generate(prompts, max_tokens=n, **way)
    with toy_engine(drafter=chain, n_max=n_max, slots=slots, planner=constant(3, is_costly)) as engine:
        results = engine.generate(prompts, max_tokens=n, **way)
    for result, one in zip(results, expected, strict=True):
        assert result.tokens == one.tokens
        assert max(result.stats.draft_lengths, default=0) <= n_max


def test_what_was_only_scored_or_cut_is_told_as_such():
    class Script(DraftPlanner):
        def choose(self, slots, n_others=0):
            return [own_nodes(slot, 0, 2) for slot in slots]

    class Wrong(ScriptedDrafter):
        name = "scored"

        def draft(self, history, limit):
            return Draft([(token + 1) % 16 for token in super().draft(history, limit).tokens.tolist()])

    chain = [named("used", [(1, 3)]), lambda model: Wrong(model, [(4, 0)])]
    with toy_engine(drafter=chain, planner=constant(2, kind=Script)) as engine:
        engine.generate([1], max_tokens=6, **GREEDY)
        used, scored = ([event[1] for event in drafter.events if event[0] == "accept"] for drafter in engine._drafters)
    assert (used[0].n_proposed, used[0].n_offered, used[0].n_accepted, used[0].is_used, used[0].n_cut) == (4, 2, 1, True, 2)
    assert (scored[0].n_proposed, scored[0].n_offered, scored[0].is_used, scored[0].n_cut) == (4, 0, False, 0)
    assert scored[0].n_emitted == used[0].n_emitted == 2


def test_drafters_that_propose_the_same_are_told_of_it_alike():
    chain = [named("one", [(2, 0)]), named("other", [(2, 1)])]
    with toy_engine(drafter=chain, planner=constant(2)) as engine:
        result = engine.generate([1], max_tokens=30, **GREEDY)
        verdicts = [[event[1] for event in drafter.events if event[0] == "accept"] for drafter in engine._drafters]
    assert any(one.n_accepted == other.n_accepted == 2 for one, other in zip(*verdicts, strict=True))
    stats = result.stats
    assert [stats.drafters[name].accepted for name in ("one", "other")] == [stats.n_accepted] * 2
    assert stats.drafters["one"].drafted < stats.n_drafted
    assert stats.n_emitted == stats.n_rounds + stats.n_accepted
    assert sum(piece.drafter == "one" for piece in result.pieces) == stats.n_accepted, "who comes first names the token"
    assert sum(stats.accepted_by_position) == stats.n_accepted


@pytest.mark.parametrize(
    ("may_branch", "possible", "path"),
    [(True, None, [0, 2, 4]), (False, None, [0, 2, 4]), (True, [0, 2, 3], [0, 2]), (False, [0, 1], [0, 2])],
)
def test_a_drafter_is_told_which_tokens_of_its_own_tree_were_accepted_whatever_part_was_verified(
    may_branch, possible, path, monkeypatch
):
    class Bushy(ScriptedDrafter):
        def draft(self, history, limit):
            right = ToyModel().plain(history.tolist(), 3)
            return Draft([token for each in right for token in (each, (each + 1) % 16)], [-1, -1, 0, 0, 2, 2])

    monkeypatch.setattr(EngineContext, "may_branch", may_branch)
    allowed = possible or range(6)
    monkeypatch.setattr(
        RunningSequence, "possible", lambda _, tokens, parents: [node for node in allowed if node < len(tokens)]
    )
    with toy_engine(drafter=Bushy) as engine:
        result = engine.generate([1], max_tokens=8, **GREEDY)
        verdict = next(event[1] for event in engine._drafters[0].events if event[0] == "accept")
    n_verified = len(possible or (range(6) if may_branch else path))
    assert (list(verdict.path), verdict.n_accepted) == (path, len(path))
    assert (verdict.n_proposed, verdict.n_offered, verdict.n_cut) == (6, n_verified, 6 - n_verified)
    assert list(result.tokens) == ToyModel().plain([1], 8)


@pytest.mark.parametrize("n_right", [0, 1, 4])
def test_a_right_draft_that_a_stop_cuts_short_is_no_rejection(n_right):
    tokens = ToyModel().plain([1], 6)  # the prompt's pass emits the first, and the draft begins with the next
    assert tokens.index(tokens[1 + n_right]) == 1 + n_right
    with toy_engine(drafter=named("right", [(8, 0)])) as engine:
        stats = engine.generate([1], max_tokens=20, stop_token_ids=[tokens[1 + n_right]], **GREEDY).stats
        (verdict,) = (event[1] for event in engine._drafters[0].events if event[0] == "accept")
    assert (verdict.n_offered, verdict.n_accepted, verdict.n_proposed, verdict.n_emitted) == (n_right, n_right, 8, n_right + 1)
    assert (verdict.is_used, verdict.n_cut) == ((True, 8 - n_right) if n_right else (False, 0))
    assert (stats.n_drafted, stats.n_accepted, stats.n_emitted) == (8, n_right, stats.n_rounds + n_right)


@pytest.mark.parametrize("turns_costly", [False, True])
def test_a_drafter_that_turned_out_to_be_costly_is_wrong_where_it_has_nothing(turns_costly):
    class Turning(DraftPlanner):
        def observe_draft(self, drafter, k, seconds):
            super().observe_draft(drafter, k, seconds)
            drafter.profile.is_costly = turns_costly

        def asked(self, drafters):
            return drafters

    planner = constant(1, kind=Turning)
    before = planner.profiles[0].chances.typical
    with toy_engine(drafter=named("silent", [(0, 0)]), planner=planner) as engine:
        engine.generate([1], max_tokens=4, **GREEDY)
    assert (planner.profiles[0].chances.typical < before) == turns_costly


class Seeing(ScriptedDrafter):
    """Costly, and would have been right about all tokens but the last."""

    name = "seeing"
    traits = DrafterTraits(is_costly=True)
    is_blind = False

    def teacher_forced(self, history, n):
        self.events.append(("teacher_forced", n))
        return None if self.is_blind else np.append(history[-n:-1], history[-1] + 1).astype(np.int32)


class TeacherForcing(DraftPlanner):
    """Lets drafter 0 draft two tokens sometimes, and teacher-forces drafter 1 once, when there is enough text."""

    n_rounds = 0

    def asks(self, slots, n_others=0):
        self.n_rounds += 1
        return [CostlyAsk(slots[0], slots[0].drafters.every[1])] if self.n_rounds == 21 else []

    def choose(self, slots, n_others=0):
        return [own_nodes(slots[0], 0, 2 if self.n_rounds % 3 == 0 else 0)]

    def observe_teacher_forced(self, drafter, is_right, seconds):
        self.__dict__.setdefault("seen", []).append((drafter, is_right, seconds))
        super().observe_teacher_forced(drafter, is_right, seconds)


@pytest.mark.parametrize("is_blind", [False, True])
def test_a_drafter_may_be_teacher_forced_beside_another_s_draft(is_blind):
    planner, blind = constant(2, [False, True], kind=TeacherForcing), type("Blind", (Seeing,), {"is_blind": is_blind})
    with toy_engine(drafter=[named("used", [(2, 0)]), blind], planner=planner) as engine:
        result = engine.generate([1, 2], max_tokens=50, **GREEDY)
    ((drafter, is_right, seconds),) = planner.seen
    assert drafter.profile.name == blind.name
    # 33 tokens stand before: the prompt's, one of each of 20 rounds, and two that the other drafted in each of six of them
    n_own = sum(piece.drafter is None for piece in result.pieces[33 - CONSTANTS.n_teacher_forced : 33])
    assert 0 < n_own < CONSTANTS.n_teacher_forced
    assert is_right == (None if is_blind else [True] * (n_own - 1) + [False])
    own = result.stats.drafters["seeing"]
    assert own.calls == 0
    assert own.draft_s == seconds
    assert result.stats.draft_lengths[20] == 2, "the other's draft was used all the same"
    assert list(result.tokens) == ToyModel().plain([1, 2], 50)


def test_where_chance_accepts_drafts_teacher_forcing_says_nothing():
    planner = constant(2, [False, True], kind=TeacherForcing)
    with toy_engine(drafter=[named("used", [(2, 0)]), Seeing], planner=planner, rule=Synthetic((0.5,))) as engine:
        engine.generate([1, 2], max_tokens=50, **GREEDY)
        assert all(event[0] != "teacher_forced" for event in engine._drafters[1].events)
    assert [is_right for _, is_right, _ in planner.seen] == [None]


class Told(DraftPlanner):
    """Keeps the size of every pass as it is told before and after, and the depth of those in which all slots draft."""

    def __init__(self, *how):
        super().__init__(*how)
        self.planned, self.passed, self.depths = [], [], []

    def choose(self, slots, n_others=0):
        nodes = super().choose(slots, n_others)
        self.planned.append(n_others + sum(1 + len(each) for each in nodes))
        return nodes

    def observe_round(self, rounds, depth, n_others, pass_s, overhead_s):
        self.passed.append(n_others + sum(1 + len(choice.draft) for choice, _ in rounds))
        if not n_others:
            lengths = [len(choice.proposals.sequence.history) - outcome.n_emitted for choice, outcome in rounds]
            self.depths.append((depth, lengths))


def test_the_planner_is_told_of_all_tokens_in_a_pass_and_of_its_depth():
    planner = constant(1, kind=Told)
    with toy_engine(slots=3, n_ctx=300, drafter=named("used", [(2, 1)]), planner=planner) as engine:
        model, gate = engine._worker._loop._context.model, Gate(engine)
        asked = [([1, 2, 3], 60, 8), ([5, 6], 5, 8), ([7], 8, 0), ([4] * 250, 40, 8)]  # the last waits for a slot
        runnings = [engine.submit(prompt, max_tokens=n, speculative={"n_max": n_max}, **GREEDY) for prompt, n, n_max in asked]
        gate.open()
        for running in runnings:
            running.result()
    sizes = [len(batch.tokens) for batch in model.batches]
    assert planner.passed == sizes[-len(planner.passed) :]
    assert set(planner.planned) <= set(sizes)
    assert max(planner.planned) > 100
    assert all(depth == np.mean(depths) for depth, depths in planner.depths)
    assert max(len(depths) for _, depths in planner.depths) > 1


@pytest.mark.parametrize(("is_costly", "draft_s"), [(False, 0.0), (True, 0.25)])
def test_a_draft_takes_the_time_of_drafters_that_are_asked_only_if_they_are_used(is_costly, draft_s, monkeypatch):
    now, seen, planner = [0.0], [], constant(1, [is_costly])
    monkeypatch.setattr("augury.speculation.drafter_guard.perf_counter", lambda: now[0])

    def observe_round(rounds, *_):
        seen.extend(choice.proposals.drafters.every[0].spent_s for choice, _ in rounds if choice.nodes)
        for choice, _ in rounds:
            choice.proposals.drafters.every[0].spent_s = 0.0

    monkeypatch.setattr(planner, "observe_round", observe_round)

    class Slow(ScriptedDrafter):
        def draft(self, history, limit):
            now[0] += 0.25
            return super().draft(history, limit)

    Slow.traits = DrafterTraits(is_costly=is_costly)
    with toy_engine(drafter=lambda model: Slow(model, [(2, 0)]), planner=planner) as engine:
        engine.generate([1], max_tokens=9, **GREEDY)
    assert set(seen) == {draft_s}


@pytest.fixture
def taking(monkeypatch):
    """A maker of methods that take so many seconds by the clock of drafting, which stands still otherwise."""
    now = [0.0]
    for name in ("drafting", "drafter_guard"):
        monkeypatch.setattr(f"augury.speculation.{name}.perf_counter", lambda: now[0])

    def taken(seconds, method):
        def timed(*arguments, **options):
            now[0] += seconds
            return method(*arguments, **options)

        return timed

    return taken


@pytest.mark.parametrize("n_slots", [1, 2])
def test_drafters_that_give_nothing_rest_and_are_told_of_the_rounds_since_then_together(taking, monkeypatch, n_slots):
    chosen_for = []
    propose = Drafting.propose
    monkeypatch.setattr(Drafting, "propose", lambda *a: chosen_for.append(len(a[1])) or propose(*a))

    class Idle(ScriptedDrafter):
        draft = taking(0.05, ScriptedDrafter.draft)

    drafters = []
    kinds = [lambda model: drafters.append(Idle(model, [(0, 0)])) or drafters[-1]]
    plain = texts_of(toy_engine(slots=n_slots), n_slots)
    assert texts_of(toy_engine(drafter=kinds, planner=constant(1), slots=n_slots), n_slots) == plain
    assert len(chosen_for) < 30, "rounds in which somebody is asked, of 50 and more"
    for drafter in drafters:
        accepted = [facts[0].n_emitted for event, *facts in drafter.events if event == "accept"]
        assert sum(accepted) == 49, "all but the first token, which its prompt gave"
        assert max(accepted) > 1
        assert drafter.events[-3][0] == "accept", "the last tokens, before the request is over"
        assert drafter.events[-2:] == [("end",), ("close",)]
        assert drafter.n_calls <= 15


def texts_of(engine, n_slots):
    """The tokens of answers of fifty tokens each in all slots of an engine, which is closed."""
    with engine:
        gate = Gate(engine)
        answers = [engine.submit([token], max_tokens=50, **GREEDY) for token in range(1, 1 + n_slots)]
        gate.open()
        return [answer.result().tokens for answer in answers]


def test_the_time_around_drafters_is_that_of_proposals_and_of_what_is_learnt_from_them(taking, monkeypatch):
    seen = []

    class Watched(DraftPlanner):
        choose = taking(0.5, DraftPlanner.choose)

        def asked(self, drafters):
            return drafters  # in both slots, however long it takes

        def observe_round(self, rounds, depth, n_others, pass_s, overhead_s):
            super().observe_round(rounds, depth, n_others, pass_s)
            if overhead_s is not None:
                seen.append(overhead_s)

    both_wait = Event()

    class Slow(ScriptedDrafter):
        draft, accept = taking(8.0, ScriptedDrafter.draft), taking(4.0, ScriptedDrafter.accept)

        def begin(self, history, n_reused):
            both_wait.wait()
            super().begin(history, n_reused)

    monkeypatch.setattr(SlotProposals, "score", taking(0.25, SlotProposals.score))
    with toy_engine(drafter=lambda model: Slow(model, [(2, 0)]), planner=constant(1, kind=Watched), slots=2) as engine:
        answers = [engine.submit([token], max_tokens=40, **GREEDY) for token in (1, 2)]
        both_wait.set()
        for answer in answers:
            answer.result()
    usual, _ = Counter(seen).most_common(1)[0]  # other than where the second begins, or the first has ended
    assert usual == 0.5 / 2 + 0.25, "one choice for two slots, and what each learns"


def test_a_tree_that_was_only_scored_is_judged_by_the_path_that_the_text_took():
    class Bushy(Drafter):
        name = "bushy"

        def draft(self, history, limit):
            text, tokens = history.tolist(), []
            for _ in range(3):
                text.append(int(np.argmax(ToyModel().logits(np.array(text)))))
                tokens += [(text[-1] + 1) % 16, text[-1]]  # wrong, and right beside it
            return Draft(tokens, [-1, -1, 1, 1, 3, 3])

    class Plain(DraftPlanner):
        def choose(self, slots, n_others=0):
            self.runs = [slot.drafters.every[0].run for slot in slots]
            return [[] for _ in slots]

    planner = constant(1, kind=Plain)
    with toy_engine(drafter=lambda _: Bushy(None, None), planner=planner) as engine:
        engine.generate([1], max_tokens=12, **GREEDY)
    assert planner.runs[0] >= 8  # of ten rounds each of which emitted the first token of a right path


@pytest.mark.parametrize(("has_child", "run"), [(False, 4), (True, 0)])
def test_a_tree_shorter_than_what_was_emitted_is_wrong_only_where_it_went_on(has_child, run):
    class Tree(Drafter):
        name = "tree"

        def draft(self, history, limit):
            right = int(np.argmax(ToyModel().logits(history)))
            wrong = (int(np.argmax(ToyModel().logits(np.append(history, right)))) + 1) % 16
            return Draft([right, wrong], [-1, 0]) if has_child else Draft([right], [-1])

    class First(DraftPlanner):
        def choose(self, slots, n_others=0):
            self.runs = [slot.drafters.every[1].run for slot in slots]
            return [own_nodes(slot, 0, 3) for slot in slots]

    planner = constant(2, kind=First)
    with toy_engine(drafter=[named("used", [(3, 0)]), lambda _: Tree(None, None)], planner=planner) as engine:
        engine.generate([1], max_tokens=1 + 5 * 4, **GREEDY)
    assert planner.runs == [run]  # before the last of five rounds


@pytest.mark.parametrize("n_wanted", [3, 99])
def test_a_drafter_that_wants_them_is_told_the_best_tokens_after_every_verified_one(n_wanted):
    class Drawing(TreeDrafter):
        def draft(self, history, limit):
            self.last = super().draft(history, limit)
            return self.last

        def accept(self, history, verdict):
            assert verdict.top_after is verdict.top_ids is verdict.top_logits is None, "it did not ask for them"

    class Watching(Drafter):
        name = "watching"
        traits = DrafterTraits(n_top=n_wanted)
        n_seen = 0

        def __init__(self, model):
            super().__init__(None, None)
            self.model = model

        def draft(self, history, limit):
            return Draft()

        def accept(self, history, verdict):
            text, after = history[: -verdict.n_emitted].tolist(), verdict.top_after.tolist()
            assert after[0] == text[-1]
            assert after[1:] == drawing[0].last.tokens[: len(after) - 1].tolist()
            paths = [text]
            for token, parent in zip(after[1:], drawing[0].last.parents.tolist(), strict=False):
                paths.append([*paths[parent + 1], token])
            assert verdict.top_parents.tolist() == [-1, *(drawing[0].last.parents[: len(after) - 1] + 1)]
            for path, ids, logits in zip(paths, verdict.top_ids, verdict.top_logits, strict=True):
                expected = self.model.logits(np.array(path)).astype(np.float32)
                best = np.lexsort((np.arange(16), -expected))[:n_wanted]
                assert ids.tolist() == best.tolist()
                assert logits.tolist() == expected[best].tolist()
                self.n_seen += 1

    drawing = []
    chain = [lambda model: drawing.append(Drawing(model)) or drawing[0], Watching]
    with toy_engine(drafter=chain, n_max=8) as engine:
        stats = engine.generate([1, 2, 3], max_tokens=40, **GREEDY).stats
        watching = engine._drafters[1]
    assert watching.n_seen == stats.n_drafted + stats.n_rounds - 1


@pytest.mark.parametrize(("held", "n_reused"), [(2, 2), (0, 0), (99, 6), (-1, 6), ("all", 6)])
def test_no_more_of_a_prompt_is_reused_than_each_drafter_can_do_without(held, n_reused):
    class Holding(ScriptedDrafter):
        def n_held(self, history):
            self.events.append(("n_held", history.tolist()))
            return held

    text = [1, 2, 3, 4, 5, 6]
    with toy_engine(drafter=[Holding, named("other", [(1, 0)])], kind=Engine) as engine:
        first, again = (engine.generate(prompt, max_tokens=8, **GREEDY) for prompt in (text, [*text, 7]))
        events = engine._drafters[0].events
    assert again.stats.n_reused == n_reused
    assert list(again.tokens) == ToyModel().plain([*text, 7], 8)
    asked = [event for event in events if event[0] == "n_held"]
    assert asked == [("n_held", [*text, 7])], "nothing was held before the first request"
    is_wrong = held in (-1, "all")
    assert (again.stats.drafters["scripted"].failed is not None) == is_wrong
    assert [event[2] for event in events if event[0] == "begin"] == ([0] if is_wrong else [0, n_reused])
    assert first.stats.n_reused == 0


def test_a_costly_drafter_is_asked_for_as_much_as_is_used_and_no_cheap_one_is_left_out():
    chain = [named("cheap", [(1, 1)]), named("costly", [(8, 0)], is_costly=True)]
    with toy_engine(drafter=chain, planner=constant(2, [False, True])) as engine:
        result = engine.generate([1], max_tokens=40, **GREEDY)
        cheap, costly = engine._drafters
    asked = [event for event in costly.events if event[0] == "draft"]
    stats = result.stats.drafters
    assert stats["costly"].calls == len(asked) <= stats["cheap"].calls
    assert stats["costly"].calls >= stats["costly"].used > 0
    assert len([event for event in cheap.events if event[0] == "draft"]) == stats["cheap"].calls


@pytest.mark.sample(0)
@pytest.mark.parametrize("is_planned", [False, True])
def test_rejection_keeps_the_distribution_of_the_target(is_planned):
    """The second token of many requests, whose draft is drawn from something else than the target."""

    class Guess(Drafter):
        name = "guess"

        def __init__(self, model):
            super().__init__(None, None)
            self.rng = np.random.default_rng(1)

        def draft(self, history, limit):
            q = np.array([[0.4, 0.3, 0.2, 0.1]], np.float32)
            return Draft([int(self.rng.choice(4, p=[0.4, 0.3, 0.2, 0.1]))], probabilities=q)

    counts = np.zeros(4)
    lookup = lambda _: ScriptedDrafter(ToyModel(n_vocab=4))  # which makes a tree of it, where it guesses something else
    how = {"drafter": [lookup, Guess], "planner": constant(2)} if is_planned else {"drafter": Guess}
    with toy_engine(n_vocab=4, rule=RULES["rejection"], **how) as engine:
        logits = ToyModel(n_vocab=4).logits(np.array([1, 2]))
        for seed in range(3000):
            result = engine.generate([1], max_tokens=3, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
            if result.tokens[0] == 2:
                counts[result.tokens[1]] += 1
    p = np.exp(logits - logits.max())
    expected = counts.sum() * p / p.sum()
    assert counts.sum() > 300
    assert ((counts - expected) ** 2 / expected).sum() < 16.27  # of 3 degrees of freedom: one time in a thousand


def test_rejection_at_temperature_0_is_plain_decoding():
    with toy_engine(drafter=lambda model: ScriptedDrafter(model, [(2, 1)]), rule=RULES["rejection"]) as engine:
        result = engine.generate([1, 2, 3], max_tokens=20, **GREEDY)
    assert list(result.tokens) == ToyModel().plain([1, 2, 3], 20)
    assert result.stats.n_accepted > 0


def test_each_of_several_drafters_hears_which_of_its_own_nodes_are_on_the_path():
    found = {}

    class Listening(TreeDrafter):
        def draft(self, history, limit):
            self.drafted = super().draft(history, limit)
            return self.drafted

        def accept(self, history, verdict):
            path, above = list(verdict.path), self.drafted.above.tolist()
            emitted = history[len(history) - verdict.n_emitted :].tolist()
            assert [above[node] for node in path] == [-1, *path][: len(path)]
            assert self.drafted.tokens[path].tolist() == emitted[: len(path)]
            assert len(path) == verdict.n_accepted
            found.setdefault(self.name, []).append(path)

    kinds = [type(name, (Listening,), {"name": name}) for name in ("one", "other")]
    drafters = [lambda model, kind=kind, seed=seed: kind(model, seed) for seed, kind in enumerate(kinds)]
    with toy_engine(drafter=drafters, planner=constant(2), n_ctx=256) as engine:
        result = engine.generate([1, 2, 3], max_tokens=200, **GREEDY)
    assert list(result.tokens) == ToyModel().plain([1, 2, 3], 200)
    assert all(sum(len(path) > 1 for path in paths) > 9 for paths in found.values())
    assert any(path != [*range(len(path))] for paths in found.values() for path in paths), "nodes come in any order"
    pairs = zip(*found.values(), strict=True)
    assert any(one and other and one != other for one, other in pairs), "both were right, by nodes of different places"
