import itertools
import logging
import threading
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.more_toys import registry_with_toys
from support.toys import as_history

from augury.drafters.draft_model import DraftModel, DraftModelOptions
from augury.drafters.model.written_draft import DraftRequest
from augury.engine.context import EngineContext
from augury.engine.engine import Engine
from augury.errors import OptionError, UnsupportedError
from augury.interfaces import Ask, Model, Pace, Session
from augury.options import options_of
from augury.passes import ArrayPass
from augury.plugins.memory.checkpoints import Checkpoints
from augury.plugins.memory.contiguous import Contiguous
from augury.sampling import SamplingParams
from augury.testing.drafter.suite import DRAFTER_CHECKS, drafter_subject
from augury.testing.toy_model import ToyRecurrentModel
from augury.testing.toys import TINY_DRAFT, TINY_TARGET
from augury.types import ModelInfo, ModelOptions, StateSpec

N_VOCAB = 11


def row_after(prefix, n_vocab=N_VOCAB):
    """Logits that depend on every token before, so that one wrong state in the cache shows."""
    key = int(np.sum((np.asarray(prefix, dtype=np.int64) + 1) * (np.arange(len(prefix)) * 7919 + 31)))
    return np.random.default_rng(key).normal(scale=2, size=n_vocab).astype(np.float32)


class CheckedModel(Model):
    """Keeps what it is fed, and objects to gaps, to disorder and to whatever is fed twice."""

    def __init__(self, n_slots=1, n_ctx=64, n_vocab=N_VOCAB):
        self.info = ModelInfo("draft", "fake", n_vocab, 1, 1, n_ctx, 0)
        self.state_spec = StateSpec(n_slots, n_ctx, 1)
        self.held = [[] for _ in range(n_slots)]
        self.passes = []  # of each the numbers of tokens by slot
        self.n_again = 0  # tokens fed although they were held
        self.fails_next = False

    def forward(self, batch):
        sizes, rows = {}, []
        wanted = set(batch.rows.tolist())
        assert sorted(wanted) == batch.rows.tolist()
        assert {a.dtype for a in (batch.tokens, batch.slots, batch.positions, batch.rows)} == {np.dtype(np.int32)}
        for i, (token, slot, position) in enumerate(
            zip(batch.tokens.tolist(), batch.slots.tolist(), batch.positions.tolist(), strict=True)
        ):
            held = self.held[slot]
            assert position < self.state_spec.n_ctx, "beyond the context"
            assert position <= len(held), "a position was left out"
            assert 0 <= token < self.info.n_vocab
            if position < len(held):
                self.n_again += held[position] == token
                del held[position:]
            held.append(token)
            sizes[slot] = sizes.get(slot, 0) + 1
            if i in wanted:
                rows.append(row_after(held, self.info.n_vocab))
        if self.fails_next:
            self.fails_next = False
            raise KeyboardInterrupt
        self.passes.append(sizes)
        return ArrayPass(np.array(rows, dtype=np.float32).reshape(-1, self.info.n_vocab))

    def memory_table(self):
        return []

    def close(self):
        pass


class ChainedModel(CheckedModel):
    """Counts the passes of every chain."""

    chain_rows = 18

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.chains = []

    def forward_chain(self, batch, n_passes):
        self.chains.append(n_passes)
        return super().forward_chain(batch, n_passes)


class Tokens:
    """A tokenizer as far as vocabularies are compared."""

    def __init__(self, texts, kind="gpt2"):
        self.texts, self.kind, self.n_vocab = texts, kind, len(texts)
        self.bos, self.eos, self.special = None, None, frozenset()
        self.add_bos = self.add_eos = self.add_space_prefix = False

    def text(self, token):
        return self.texts[token]


class FakeSession(Session):
    def __init__(self, slot, model, common, *, n_vocab=N_VOCAB, tokenizer=None, draft_tokenizer=None):
        self.slot, self.n_slots = slot, model.state_spec.n_slots
        self.model = ModelInfo("target", "fake", n_vocab, 1, 1, 64, 0)
        self.options = ModelOptions(self.n_slots, model.state_spec.n_ctx, 3, "f32", "f16")
        self.tokenizer, self._draft_tokenizer = tokenizer, draft_tokenizer
        memory = Checkpoints if model.state_spec.n_bytes_per_sequence else Contiguous
        self._context = EngineContext(model, memory(memory.options_class(), model.state_spec, model))
        self._common = common

    def load(self, reference, options, backend=None):
        self._common.setdefault("loads", []).append((reference, options, backend))
        return self._context

    def load_tokenizer(self, reference):
        return self._draft_tokenizer

    def drafters(self, text):
        raise NotImplementedError

    def shared(self, key, make):
        if key not in self._common:
            self._common[key] = make()
        return self._common[key]


def drafters_of(model, *, common=None, n_vocab=N_VOCAB, **options):
    common = {} if common is None else common
    options = DraftModelOptions(**{"model": "small.gguf"} | options)
    return [DraftModel(options, FakeSession(i, model, common, n_vocab=n_vocab)) for i in range(model.state_spec.n_slots)]


def prefill(drafter, history, n_reused):
    """Begin with a request, to the end."""
    for _ in drafter.begin(as_history(history), n_reused):
        pass


def begun(history, n_ctx=64, **options):
    """A model, and its drafter that has begun with a text; of the passes only those after that are kept."""
    model = CheckedModel(n_ctx=n_ctx)
    (drafter,) = drafters_of(model, **options)
    prefill(drafter, history, 0)
    model.passes.clear()
    return model, drafter


def ahead(options):
    """Check that drafting ahead keeps its promise."""
    (check,) = (check for check in DRAFTER_CHECKS if check.name == "drafts ahead without a trace")
    check.run(drafter_subject(DraftModel, options, backends=("toy",), registry=registry_with_toys()))


def written(history, limit, *, n_ctx=64, p_min=0.0, n_vocab=N_VOCAB):
    """What the draft model would write after `history`, computed from nothing."""
    text = list(history)
    while len(text) - len(history) < limit and len(text) <= n_ctx:
        row = row_after(text)
        token = int(row.argmax())
        probabilities = np.exp(row.astype(np.float64))
        if token >= n_vocab or probabilities[token] / probabilities.sum() < p_min:
            break
        text.append(token)
    return text[len(history) :]


def test_a_draft_is_what_the_model_writes_greedily():
    history = [1, 2, 3, 4]
    _, drafter = begun(history)
    assert drafter.draft(as_history(history), 6).tokens.tolist() == written(history, 6)


@pytest.mark.parametrize(("n_equal", "p_min", "n_drafted"), [(1, 1.0, 3), (2, 0.5, 3), (2, 0.500001, 0)])
def test_a_model_that_is_just_as_sure_as_asked_for_drafts(n_equal, p_min, n_drafted, monkeypatch):
    row = np.where(np.arange(N_VOCAB) < n_equal, 0.0, -np.inf).astype(np.float32)
    monkeypatch.setitem(globals(), "row_after", lambda prefix, n_vocab: row)
    (drafter,) = drafters_of(CheckedModel(), p_min=p_min)
    assert drafter.draft(as_history([1, 2]), 3).tokens.tolist() == [0] * n_drafted


@pytest.mark.parametrize(("n_vocab", "n_drafted"), [(N_VOCAB, 3), (N_VOCAB - 1, 0)])
def test_the_first_token_that_the_target_lacks_is_not_drafted(n_vocab, n_drafted, monkeypatch):
    row = np.arange(N_VOCAB, dtype=np.float32)  # its best token is its last one
    monkeypatch.setitem(globals(), "row_after", lambda prefix, n_vocab: row)
    (drafter,) = drafters_of(CheckedModel(), n_vocab=n_vocab)
    assert drafter.draft(as_history([1, 2]), 3).tokens.tolist() == [N_VOCAB - 1] * n_drafted


def test_the_prompt_is_fed_in_chunks_and_a_draft_takes_a_pass_for_each_token():
    model = CheckedModel(n_ctx=30_000)
    (drafter,) = drafters_of(model)
    history = np.random.default_rng(0).integers(0, N_VOCAB, 20_001)
    for n_passes, _ in enumerate(drafter.begin(as_history(history), 0), start=1):
        assert len(model.passes) == n_passes, "others may go on after each"
    assert model.passes == [{0: 256}] * 78 + [{0: 32}]
    draft = drafter.draft(as_history(history), 3).tokens.tolist()
    assert model.passes[79:] == [{0: 1}] * 3
    assert len(draft) == 3


@pytest.mark.parametrize("make", [CheckedModel, lambda: ToyRecurrentModel(n_vocab=N_VOCAB, period=3)], ids=["cache", "state"])
@pytest.mark.parametrize("is_right", [True, False])
def test_what_follows_a_guess_is_drafted_without_computing_anything_again(make, is_right):
    history, model = [1, 2, 3, 4], make()
    (drafter,), (other,) = drafters_of(model), drafters_of(make())
    prefill(drafter, history, 0)
    assert drafter.traits.drafts_ahead
    draft = drafter.draft(as_history(history), 3).tokens
    (ahead,) = DraftModel.draft_together([Ask(drafter, as_history(history), 3, draft)])
    guess = [*draft.tolist(), int(ahead.tokens[0])]
    history += guess if is_right else [*guess[:1], (guess[1] + 1) % N_VOCAB]
    prefill(other, history, 0)
    expected = other.draft(as_history(history), 2).tokens.tolist()
    assert drafter.draft(as_history(history), 2).tokens.tolist() == expected
    if is_right:
        assert ahead.tokens[1:].tolist() == expected
    if isinstance(model, CheckedModel):
        assert model.n_again == int(is_right), "the last token, for its logits"
    else:
        is_drafted = [batch.is_drafted for batch in model.batches]
        n_certain = sum(len(each.tokens) for each in model.batches) - sum(each.sum() for each in is_drafted if each is not None)
        assert n_certain == len(history), "what was guessed stays out of the state"


@pytest.mark.parametrize("backend", ["toy-recurrent:is_hybrid=true", "toy-recurrent:keeps_aside=false"])
def test_what_a_draft_model_drafts_ahead_leaves_no_trace(backend):
    ahead({"model": TINY_DRAFT, "backend": backend})


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ({"tree": "2x2"}, {}),
        ({}, {"verify": "rejection", "sampling": SamplingParams(temperature=1.0)}),
        ({}, {"is_asynchronous": True}),
    ],
    ids=["trees", "draws", "computes on a device"],
)
def test_a_draft_model_does_not_draft_ahead_if_it(how, options):
    model = CheckedModel()
    model.is_asynchronous = options.pop("is_asynchronous", False)
    (drafter,) = drafters_of(model, **how)
    for name, value in options.items():
        setattr(drafter.session, name, value)
    prefill(drafter, [1, 2], 0)
    assert not drafter.traits.drafts_ahead


def test_a_prompt_of_which_a_chunk_is_missing_takes_no_second_step():
    model = CheckedModel(n_ctx=1000)
    (drafter,) = drafters_of(model)
    history = np.random.default_rng(0).integers(0, N_VOCAB, 600)
    assert list(drafter.begin(as_history(history[:257]), 0)) == []
    assert list(drafter.begin(as_history(history[:513]), 256)) == []
    assert list(drafter.begin(as_history(history), 599)) == []
    assert model.passes == [{0: 256}, {0: 256}, {0: 87}]


@pytest.mark.parametrize("n_steps", range(5))
def test_a_prompt_that_was_left_half_fed_is_taken_up_by_whoever_comes_next(n_steps):
    model = CheckedModel(n_ctx=2000)
    (drafter,) = drafters_of(model)
    first, second = np.random.default_rng(0).integers(0, N_VOCAB, (2, 1000))
    list(itertools.islice(drafter.begin(as_history(first), 0), n_steps))
    drafter.end()
    heir = [*first[:400], *second[:300]]
    prefill(drafter, heir, 0)
    assert drafter.draft(as_history(heir), 4).tokens.tolist() == written(heir, 4, n_ctx=2000)
    assert model.n_again == 0


@pytest.mark.parametrize("n_accepted", range(5))
def test_after_a_round_only_what_was_missed_is_fed(n_accepted):
    history = [1, 2, 3]
    model, drafter = begun(history)
    draft = drafter.draft(as_history(history), 4).tokens.tolist()
    other = ([*draft, 0][n_accepted] + 1) % N_VOCAB
    history += [*draft[:n_accepted], other]
    model.passes.clear()
    assert drafter.draft(as_history(history), 4).tokens.tolist() == written(history, 4)
    # the last drafted token was never fed: where it was accepted it comes with the target's own
    assert model.passes == [{0: 2 if n_accepted == 4 else 1}, {0: 1}, {0: 1}, {0: 1}]
    assert model.n_again == 0


def test_rounds_that_were_drafted_by_nobody_are_caught_up_in_one_pass():
    history = [1, 2, 3]
    model, drafter = begun(history)
    history += [4, 5, 6, 7, 8]
    assert drafter.draft(as_history(history), 1).tokens.tolist() == written(history, 1)
    assert model.passes == [{0: 6}]


def guesses(text, n):
    """What the draft model would write in place of the last n tokens of a text, each after those before it."""
    return [int(row_after(text[:end]).argmax()) for end in range(len(text) - n, len(text))]


@pytest.mark.parametrize("n_missed", [0, 1, 5, 8])
def test_teacher_forced_is_what_it_would_have_drafted_and_catches_up(n_missed):
    history = np.random.default_rng(1).integers(0, N_VOCAB, 30).tolist()
    model, drafter = begun(history[: 30 - n_missed])
    assert drafter.teacher_forced(as_history(history), 8).tolist() == guesses(history, 8)
    assert model.passes == [{0: max(n_missed, 8)}]
    assert drafter.draft(as_history(history), 3).tokens.tolist() == written(history, 3)
    assert model.passes[1:] == [{0: 1}] * 3


def test_what_was_long_missed_is_left_out_until_the_next_request():
    rng = np.random.default_rng(2)
    history = rng.integers(0, N_VOCAB, 10).tolist()
    model, drafter = begun(history, n_ctx=128)
    for n_new in (20, 2, 15, 10):  # nine are what is held, the tenth is fed when it is drafted
        history += rng.integers(0, N_VOCAB, n_new).tolist()
        model.passes.clear()
        seen = drafter.teacher_forced(as_history(history), 8).tolist()
        if n_new != 2:  # which is caught up with
            kept = [*history[:9], *history[-9:]]
        else:
            kept += history[-2:]
        assert seen == guesses(kept, 8)
        assert model.passes == [{0: 8}]
        assert drafter.draft(as_history(history), 2).tokens.tolist() == written(kept, 2, n_ctx=128)
        drafted = written(kept, 2, n_ctx=128)
        history += [*drafted, 3]
        kept += [*drafted, 3]
        assert drafter.draft(as_history(history), 2).tokens.tolist() == written(kept, 2, n_ctx=128)
        assert sum(sizes[0] for sizes in model.passes) <= 8 + 2 + 3
    drafter.end()
    prefill(drafter, history, 0)
    assert drafter.draft(as_history(history), 2).tokens.tolist() == written(history, 2, n_ctx=128)


def test_of_a_text_that_it_cannot_follow_it_would_have_drafted_nothing():
    _, drafter = begun([1, 2, 3], n_ctx=20, n_vocab=N_VOCAB + 5)
    assert drafter.teacher_forced(as_history([1, 2, 3]), 2).tolist() == guesses([1, 2, 3], 2)
    assert drafter.teacher_forced(as_history([1, 2, 3]), 3).tolist() == [-1] * 3, "nothing stands before the first of three"
    assert drafter.teacher_forced(as_history([1, 2, N_VOCAB + 1, 4]), 3).tolist() == [-1] * 3
    prefill(drafter, [1, 2, 3], 0)
    assert drafter.teacher_forced(as_history(list(range(10)) * 5), 30).tolist() == [-1] * 30


def test_a_request_feeds_only_what_its_slot_does_not_hold_from_the_one_before():
    model, drafter = begun([1, 2, 3, 4, 5, 6])
    drafter.end()
    prefill(drafter, [1, 2, 3, 9, 9, 9, 9], 3)
    assert model.passes == [{0: 3}]
    drafter.end()
    prefill(drafter, [1, 2, 3], 2)
    assert model.passes == [{0: 3}]
    assert model.n_again == 0


def test_all_slots_are_drafted_for_in_the_same_passes():
    model = CheckedModel(n_slots=3)
    drafters = drafters_of(model)
    histories = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    for drafter, history in zip(drafters, histories, strict=True):
        prefill(drafter, history, 0)
    model.passes.clear()
    asks = [Ask(d, as_history(h), n) for d, h, n in zip(drafters, histories, (4, 1, 2), strict=True)]
    drafts = DraftModel.draft_together(asks)
    assert [draft.tokens.tolist() for draft in drafts] == [written(h, n) for h, n in zip(histories, (4, 1, 2), strict=True)]
    assert model.passes == [{0: 1, 1: 1, 2: 1}, {0: 1, 2: 1}, {0: 1}, {0: 1}]


# by limits: probability asked for, context, chains of passes
CHAINS = [
    ((6,), 0.0, 64, [6]),
    ((1,), 0.0, 64, []),
    ((16,), 1e-9, 64, [2, 2, 4, 8]),
    ((9,), 0.5, 64, [2, 2]),
    ((16,), 0.0, 7, [4]),
    ((30,), 0.0, 64, [18, 12]),
    ((4, 1, 2), 0.0, 64, [4]),
    ((8, 3, 2), 0.0, 64, [6, 2]),
]


@pytest.mark.parametrize(("limits", "p_min", "n_ctx", "chains"), CHAINS)
def test_a_device_that_chooses_by_itself_is_waited_for_once(limits, p_min, n_ctx, chains):
    model, texts = ChainedModel(len(limits), n_ctx), [[1, 2, 3, 4], [4, 5], [6, 7, 8]][: len(limits)]
    drafters = drafters_of(model, p_min=p_min)
    for drafter, text in zip(drafters, texts, strict=True):
        prefill(drafter, text, 0)
    for n_round in range(2):
        model.passes.clear()
        model.chains.clear()
        asks = [Ask(d, as_history(text), n) for d, text, n in zip(drafters, texts, limits, strict=True)]
        drafts = [draft.tokens.tolist() for draft in DraftModel.draft_together(asks)]
        assert drafts == [written(text, n, n_ctx=n_ctx, p_min=p_min) for text, n in zip(texts, limits, strict=True)]
        if not n_round:
            assert model.chains == chains
            assert len(model.passes) == (sum(chains) or 1)
        texts = [[*text, *draft[:1], 0] for text, draft in zip(texts, drafts, strict=True)]
    assert model.n_again == 0


def test_what_the_device_cannot_choose_is_waited_for_token_by_token():
    model, draws = ChainedModel(), iter([(4, np.ones(N_VOCAB)), (5, np.ones(N_VOCAB))])
    (drafter,) = drafters_of(model)
    sampler = SimpleNamespace(draw=lambda *_: next(draws))
    assert drafter.runner.draft([DraftRequest(0, as_history([1, 2]), 2, 0.0, 1, sampler)])[0].tokens == [4, 5]
    assert model.chains == []
    recurrent = ToyRecurrentModel(n_vocab=N_VOCAB)
    recurrent.chain_rows = 18
    (drafter,) = drafters_of(recurrent)
    assert len(drafter.draft(as_history([1, 2]), 3).tokens) == len(recurrent.batches) == 3


def test_after_a_row_that_holds_no_number_a_chain_is_not_trusted(monkeypatch):
    ordinary, none, model = row_after, np.full(N_VOCAB, np.nan), ChainedModel()
    monkeypatch.setitem(globals(), "row_after", lambda prefix, n: none if len(prefix) == 6 else ordinary(prefix, n))
    (drafter,) = drafters_of(model)
    history = [1, 2, 3, 4]
    draft = drafter.draft(as_history(history), 5).tokens.tolist()
    assert len(draft) == 2
    assert drafter.runner._texts[0].n == len([*history, *draft])
    assert model.chains == [5]


GREEDY = {"temperature": 0.0, "ignore_eos": True}


def passed(model):
    """How many tokens the pass that goes on is over, and of which slots."""
    batch = model.batches[-1]
    return len(batch.tokens), set(batch.slots.tolist())


def toy_engine_with_draft_model(*, is_fixed, n_ctx):
    return Engine.load(
        TINY_TARGET,
        backend="toy",
        spec_type="draft-model",
        spec_options={"draft-model": {"model": TINY_DRAFT}},
        spec_fixed=is_fixed,
        slots=2,
        n_ctx=n_ctx,
        registry=registry_with_toys(),
    )


def held(drafter):
    """What the draft model's slot for a drafter holds."""
    return drafter.runner._context.model.held[drafter.runner._texts[drafter.session.slot].slot]


tokens = st.integers(0, N_VOCAB - 1)


@settings(max_examples=150)
@given(st.data())
def test_any_script_of_requests_and_verdicts_leaves_drafts_and_cache_as_they_should_be(data):
    n_slots = data.draw(st.integers(1, 3))
    n_ctx = data.draw(st.sampled_from([8, 20, 64]))
    model = CheckedModel(n_slots, n_ctx)
    model.chain_rows = data.draw(st.sampled_from([0, 6, 42]))
    drafters = drafters_of(model)
    histories = [None] * n_slots
    earlier = [[] for _ in range(n_slots)]
    for _ in range(data.draw(st.integers(1, 25))):
        slot = data.draw(st.integers(0, n_slots - 1))
        if histories[slot] is None:
            n_shared = data.draw(st.integers(0, len(earlier[slot])))
            histories[slot] = earlier[slot][:n_shared] + data.draw(st.lists(tokens, min_size=1, max_size=8))
            prefill(drafters[slot], histories[slot], n_shared)
        elif data.draw(st.integers(0, 4)) == 0:
            drafters[slot].end()
            earlier[slot], histories[slot] = histories[slot], None
        asking = [i for i in range(n_slots) if histories[i] is not None and data.draw(st.booleans())]
        limits = [data.draw(st.integers(0, 6)) for _ in asking]
        n_passes = len(model.passes)
        drafts = DraftModel.draft_together(
            [Ask(drafters[i], as_history(histories[i]), limit) for i, limit in zip(asking, limits, strict=True)]
        )
        for i, limit, draft in zip(asking, limits, (draft.tokens.tolist() for draft in drafts), strict=True):
            assert draft == written(histories[i], limit, n_ctx=n_ctx)
            if draft:
                fed = (histories[i] + draft)[:-1]
                assert held(drafters[i])[: len(fed) if model.chain_rows else None] == fed
            n_accepted = data.draw(st.integers(0, len(draft)))
            histories[i] = [*histories[i], *draft[:n_accepted], data.draw(tokens)]
        assert len(model.passes) - n_passes == max(map(len, drafts), default=0), "a chain makes no pass that nobody wants"


@settings(max_examples=50)
@given(st.lists(tokens, min_size=1, max_size=20), st.floats(0.05, 0.9), st.integers(0, 8))
def test_a_draft_ends_before_the_first_token_that_is_less_probable_than_p_min(history, p_min, limit):
    (drafter,) = drafters_of(CheckedModel(), p_min=p_min)
    assert drafter.draft(as_history(history), limit).tokens.tolist() == written(history, limit, p_min=p_min)


def test_a_request_may_bring_a_p_min_of_its_own():
    (drafter,) = drafters_of(CheckedModel())
    assert options_of(DraftModelOptions)["p_min"].is_per_request
    drafter.options = attrs.evolve(drafter.options, p_min=1.0)
    assert len(drafter.draft(as_history([1, 2]), 4)) == 0


def test_a_slot_that_stops_early_leaves_the_passes_to_the_others():
    model = CheckedModel(n_slots=2)
    drafters = drafters_of(model)
    drafters[0].options = attrs.evolve(drafters[0].options, p_min=1.0)
    asks = [Ask(drafter, as_history([1, 2, 3]), 3) for drafter in drafters]
    assert [draft.tokens.tolist() for draft in DraftModel.draft_together(asks)] == [[], written([1, 2, 3], 3)]
    assert model.passes == [{0: 3, 1: 3}, {1: 1}, {1: 1}]


@given(st.lists(tokens, min_size=1, max_size=10))
def test_a_token_that_the_target_does_not_have_ends_the_draft(history):
    (drafter,) = drafters_of(CheckedModel(), n_vocab=4)
    draft = drafter.draft(as_history(history), 6).tokens.tolist()
    assert draft == written(history, 6, n_vocab=4)
    assert all(token < 4 for token in draft)


def test_a_text_that_outgrows_the_draft_context_goes_on_without_drafts_and_one_warning(caplog):
    model = CheckedModel(n_ctx=6)
    (drafter,) = drafters_of(model)
    with caplog.at_level(logging.WARNING, logger="augury"):
        for _ in range(2):
            history = [1, 2, 3, 4]
            prefill(drafter, history, 0)
            for expected in (3, 2, 1, 0, 0):
                draft = drafter.draft(as_history(history), 16).tokens.tolist()
                assert draft == written(history, 16, n_ctx=6)
                assert len(draft) == expected
                history.append(0)
            drafter.end()
        prefill(drafter, range(9), 0)
        assert len(drafter.draft(as_history(range(9)), 4)) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "context of 6 tokens" in caplog.text
    assert "-cd" in caplog.text


@pytest.mark.parametrize("token", [N_VOCAB, 15])
def test_a_token_that_the_draft_model_does_not_have_parks_the_request_and_not_the_next(caplog, token):
    _, drafter = begun([1, token, 2], n_vocab=20)
    assert len(drafter.draft(as_history([1, token, 2]), 4)) == 0
    drafter.end()
    assert f"token {token}" in caplog.text
    prefill(drafter, [1, 5, 2], 0)
    assert drafter.draft(as_history([1, 5, 2]), 4).tokens.tolist() == written([1, 5, 2], 4)


def test_an_interrupted_pass_leaves_nothing_that_is_trusted():
    model, drafter = begun([1, 2, 3])
    drafter.draft(as_history([1, 2, 3]), 4)
    drafter.end()
    model.fails_next = True
    with pytest.raises(KeyboardInterrupt):
        prefill(drafter, [1, 5, 6, 7], 1)
    prefill(drafter, [1, 5, 6, 7], 1)
    assert drafter.draft(as_history([1, 5, 6, 7]), 4).tokens.tolist() == written([1, 5, 6, 7], 4)


def test_after_an_interrupted_draft_nothing_is_known_of_the_slot():
    model, drafter = begun([1, 2, 3])
    model.fails_next = True
    with pytest.raises(KeyboardInterrupt):
        drafter.draft(as_history([1, 2, 3]), 4)
    assert not drafter.runner._texts
    assert drafter.draft(as_history([1, 2, 3]), 4).tokens.tolist() == written([1, 2, 3], 4)


def wrote(**wish):
    """What the model wrote after a text, up to six tokens."""
    _, drafter = begun([1, 2, 3])
    return drafter.runner.draft([DraftRequest(0, as_history([1, 2, 3]), 6, **{"p_min": 0.0, **wish})])[0]


@pytest.mark.parametrize(("n_asked", "n_told"), [(1, 0), (2, 2), (3, 3)])
def test_of_several_candidates_for_a_place_it_tells_the_best_and_how_probable_they_are(n_asked, n_told):
    found = wrote(n_candidates=n_asked)
    assert [len(each) for each in found.candidates] == ([n_told] * 6 if n_told else [])
    assert [each[0][0] for each in found.candidates] == (found.tokens if n_told else [])


def test_how_probable_tokens_are_is_told_where_it_was_computed():
    assert wrote().confidence == []
    found = wrote(p_min=1e-6, n_candidates=2)
    assert found.confidence == pytest.approx([each[0][1] for each in found.candidates])


@pytest.mark.parametrize("n_candidates", [1, 3])
def test_a_draft_ends_after_the_token_that_makes_it_too_unlikely(n_candidates):
    reach = np.cumprod(wrote(p_min=1e-9).confidence)
    for n in range(1, 6):
        found = wrote(min_path_probability=float(reach[n - 1]) * 1.001, n_candidates=n_candidates)
        assert len(found.tokens) == n
        assert found.reach == pytest.approx(reach[n - 1])


def test_where_a_planner_asks_drafts_branch_and_end_where_they_no_longer_pay():
    _, drafter = begun([1, 2, 3])
    history = as_history([1, 2, 3])
    (plain,) = drafter.draft_together([Ask(drafter, history, 6)])
    assert plain.parents is plain.confidence is None
    (found,) = drafter.draft_together([Ask(drafter, history, 8, pace=Pace(2))])
    assert found.tokens[:2].tolist() == plain.tokens[:2].tolist()
    assert (found.depth, len(found), len(found.confidence)) == (2, 8, 8)
    (one,) = drafter.draft_together([Ask(drafter, history, 8, pace=Pace(6, 1.0))])
    assert (one.depth, one.tokens[0]) == (1, plain.tokens[0])
    assert set(one.parents) == {-1}


def test_a_draft_that_is_drawn_ends_where_nothing_can_be_drawn():
    draws = iter([(4, np.zeros(N_VOCAB)), (5, np.ones(N_VOCAB)), None])
    found = wrote(sampler=SimpleNamespace(draw=lambda *_: next(draws)))
    assert found.tokens == [4, 5]
    assert [each.sum() for each in found.probabilities] == [0, N_VOCAB]


@pytest.mark.parametrize(("is_fixed", "n_prompt", "chunks"), [(True, 900, (256, 256, 256, 132)), (False, 400, (256, 144))])
def test_others_decode_between_the_chunks_of_a_draft_model_s_prompt(is_fixed, n_prompt, chunks):
    prompt = np.random.default_rng(3).integers(0, 250, n_prompt).tolist()
    order = []
    with toy_engine_with_draft_model(is_fixed=is_fixed, n_ctx=n_prompt + 60) as engine:
        target, draft = engine._loader.models
        both = threading.Event()
        target.on_forward = lambda: both.wait() and order.append(("target", *passed(target)))
        draft.on_forward = lambda: order.append(("draft", *passed(draft)))
        other = engine.submit([1, 2], max_tokens=60, speculative={"n_max": 0}, **GREEDY)
        running = engine.submit(prompt, max_tokens=30, **GREEDY)
        both.set()
        result = running.result()
        assert list(result.tokens) == target.plain(prompt, 30)
        assert list(other.result().tokens) == target.plain([1, 2], 60)
    start = next(i for i, (model, _, _) in enumerate(order) if model == "draft")
    expected = [each for n in chunks for each in (("draft", n, {0}), ("target", 1, {0}))]
    assert order[start : start + len(expected) - 1] == expected[:-1]


def test_what_a_slot_of_the_target_holds_and_the_draft_model_does_not_is_fed_in_chunks_too():
    prompt = np.random.default_rng(3).integers(0, 250, 600).tolist()
    with toy_engine_with_draft_model(is_fixed=True, n_ctx=2000) as engine:
        target, draft = engine._loader.models
        first = engine.generate(prompt, max_tokens=300, speculative={"n_max": 0}, **GREEDY)
        assert draft.batches == []
        text = [*prompt, *first.tokens, 7]
        result = engine.generate(text, max_tokens=30, **GREEDY)
    assert result.stats.n_reused == 899
    assert [len(batch.tokens) for batch in draft.batches[:4]] == [256, 256, 256, 901 - 768]
    assert list(result.tokens) == target.plain(text, 30)
    assert result.stats.n_accepted > 0


def test_all_slots_share_one_model_that_is_loaded_as_the_target_unless_told_otherwise():
    common = {}
    model = CheckedModel(n_slots=2, n_ctx=64)
    drafters_of(model, common=common)
    drafters_of(model, common=common, ctx=32, threads=1, cache_type_k="f16", cache_type_v="f32", backend="other")
    assert common["loads"] == [
        ("small.gguf", ModelOptions(2, 64, 3, "f32", "f16"), None),
        ("small.gguf", ModelOptions(2, 32, 1, "f16", "f32"), "other"),
    ]


def test_without_a_model_the_message_says_how_to_give_one():
    with pytest.raises(OptionError, match=r"-md MODEL or --spec-type draft-model:model=MODEL"):
        DraftModel(DraftModelOptions(), FakeSession(0, CheckedModel(), {}))


def test_a_model_of_another_vocabulary_is_spoken_to_by_text(caplog):
    texts = [f"t{i}" for i in range(N_VOCAB)]
    other = Tokens([*texts[:7], "other", *texts[8:]])
    session = FakeSession(0, CheckedModel(), {}, tokenizer=Tokens(texts), draft_tokenizer=other)
    assert DraftModel(DraftModelOptions(model="small.gguf"), session)._translation is not None
    assert "drafts go through text" in caplog.text
    assert "token 7 is 't7' to the target and 'other' to the draft model" in caplog.text


def test_a_model_of_the_same_vocabulary_is_spoken_to_by_tokens(caplog):
    texts = [f"t{i}" for i in range(N_VOCAB)]
    session = FakeSession(0, CheckedModel(), {}, tokenizer=Tokens(texts), draft_tokenizer=Tokens(texts))
    with caplog.at_level(logging.INFO, logger="augury"):
        assert DraftModel(DraftModelOptions(model="small.gguf"), session)._translation is None
    assert "drafts in its tokens" in caplog.text


def test_without_tokenizers_the_sizes_are_compared():
    with pytest.raises(UnsupportedError, match=r"200 tokens and the draft model 11.* without a tokenizer of both"):
        drafters_of(CheckedModel(), n_vocab=200)


def test_it_is_offered_under_its_name_and_those_of_others():
    assert (DraftModel.name, DraftModel.aliases) == ("draft-model", ("draft-simple", "draft"))
