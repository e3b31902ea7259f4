import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, strategies as st
from oracles.chances import distribution
from oracles.drawn_drafts import Text, distance, verified
from oracles.models import tiny_model

from augury import Engine
from augury.drafters.draft_model import DraftModelOptions
from augury.drafters.model.written_draft import TreeShape, WrittenDraft, branched
from augury.errors import OptionError
from augury.options import build
from augury.speculation.drafts import SlotProposals
from augury.speculation.profiles import DrafterProfile, RequestDrafter
from augury.types import Draft

WRITTEN = WrittenDraft(
    tokens=[1, 2, 3],
    confidence=[0.9, 0.5, 0.8],
    candidates=[[(1, 0.9), (9, 0.05)], [(2, 0.5), (7, 0.4), (6, 0.1)], [(3, 0.8), (5, 0.1)]],
)


def test_second_thoughts_stand_beside_what_was_written_the_likeliest_first():
    draft = branched(WRITTEN, 16, 0.0)
    assert draft.tokens.tolist() == [1, 2, 3, 7, 6, 9, 5]
    assert draft.parents.tolist() == [-1, 0, 1, 0, 0, -1, 1]
    assert draft.confidence.tolist() == np.float32([0.9, 0.5, 0.8, 0.4, 0.1, 0.05, 0.1]).tolist()


def test_in_a_lattice_what_may_follow_a_token_follows_its_alternatives_too():
    draft = branched(evolve(WRITTEN, lattice_reach=0.0), 9, 0.0)
    assert draft.tokens.tolist() == [1, 2, 3, 7, 3, 6, 3, 9, 5]
    assert draft.parents.tolist() == [-1, 0, 1, 0, 3, 0, 5, -1, 1]
    assert draft.confidence.tolist() == np.float32([0.9, 0.5, 0.8, 0.4, 0.8, 0.1, 0.8, 0.05, 0.1]).tolist()
    assert branched(evolve(WRITTEN, lattice_reach=0.3), 9, 0.0).parents.tolist() == [-1, 0, 1, 0, 3, 0, -1, 1, 3]
    drafted = evolve(WRITTEN, lattice_reach=0.0, probabilities=[np.full(10, 0.1, np.float32)] * 3)
    assert np.array_equal(branched(drafted, 9, 0.0).tokens, draft.tokens)


def test_the_planner_expects_no_less_of_what_was_written_because_of_second_thoughts():
    drafter = RequestDrafter(DrafterProfile("toy", is_costly=True), None)

    def reach(draft):
        slot = SlotProposals(None, None, 16, 100)
        slot.add(drafter, draft)
        return slot.reach()

    written = Draft(WRITTEN.tokens, confidence=[0.9, 0.5, 0.8])
    assert reach(branched(WRITTEN, 16, 0.0))[:3] == pytest.approx(reach(written), rel=0.2)


def test_second_thoughts_about_drawn_tokens_are_certain():
    rows = [np.full(10, 0.1, np.float32)] * 3
    draft = branched(evolve(WRITTEN, tokens=[1, 6, 3], probabilities=rows), 16, 0.0)
    assert draft.tokens.tolist() == [1, 6, 3, 2, 7, 9, 5]
    assert draft.parents.tolist() == [-1, 0, 1, 0, 0, -1, 1]
    assert np.array_equal(draft.probabilities, [*rows, *np.zeros((4, 10), np.float32)])


@pytest.mark.parametrize("limit", [2, 3, 4, 6])
def test_of_drawn_tokens_with_second_thoughts_the_target_s_distribution_is_emitted(limit):
    text = Text(3, 2)

    def run(chance):
        tokens, _, rows = text.chain(chance)
        befores = [tuple(tokens[:i]) for i in range(len(tokens))]
        candidates = [[(int(i), text.q[each][i]) for i in np.argsort(-text.q[each])[:2]] for each in befores]
        written = WrittenDraft(tokens, rows, [each[0][1] for each in candidates], candidates)
        draft = branched(written, limit, 0.0)
        probabilities = np.zeros((len(draft), text.n_vocab))  # in float64, unlike the draft's
        probabilities[: len(rows)] = rows
        assert np.array_equal(draft.probabilities, np.float32(probabilities))
        return verified(text, (draft.tokens.tolist(), draft.parents.tolist(), probabilities.tolist()), chance)

    assert distance(text, distribution(run)) < 1e-12


def test_a_limit_leaves_out_the_least_likely_and_never_the_chain():
    assert branched(WRITTEN, 4, 0.0).tokens.tolist() == [1, 2, 3, 7]
    assert branched(WRITTEN, 3, 0.0).tokens.tolist() == [1, 2, 3]


def test_second_thoughts_less_probable_than_p_min_are_left_out():
    assert branched(WRITTEN, 16, 0.08).tokens.tolist() == [1, 2, 3, 7, 6]
    assert branched(WRITTEN, 16, 0.9 * 0.1).tokens.tolist() == [1, 2, 3, 7, 6], "as probable is probable enough"


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 12), st.data())
def test_every_tree_is_a_chain_with_leaves(width, depth, n_more, data):
    candidates = []
    for _ in range(depth):
        tokens = data.draw(st.lists(st.integers(0, 20), min_size=width, max_size=width, unique=True))
        candidates.append([(token, 1 / (i + 2)) for i, token in enumerate(tokens)])
    best = [place[0] for place in candidates]
    written = WrittenDraft([token for token, _ in best], confidence=[p for _, p in best], candidates=candidates)
    draft = branched(written, depth + n_more, 0.0)
    assert len(draft) == min(depth * width, depth + n_more)
    assert draft.parents[:depth].tolist() == list(range(-1, depth - 1))
    assert (draft.parents < depth - 1).all()
    places = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
    assert len(set(places)) == len(places), "siblings differ"


@pytest.mark.parametrize("text", ["", "2", "x3", "0x3", "2x0", "2x-1", "axb", "2x3x4"])
def test_what_is_no_shape_is_an_error(text):
    with pytest.raises(OptionError, match="expected WIDTHxDEPTH"):
        build(DraftModelOptions, {"tree": text}, "here")  # before a model is loaded


def test_a_tree_that_no_slot_would_hold_is_refused():
    TreeShape.of("8x12").check(96)
    with pytest.raises(OptionError, match=r"tree is 99999x3, up to 299997 tokens, expected at most the 96 .* \(-c\)"):
        Engine.load(
            tiny_model("llama-dense"),
            backend="reference",
            n_ctx=96,
            spec_type="draft-model:tree=99999x3",
            draft_model=tiny_model("llama-dense-q4_0"),
        )


@pytest.mark.sample(2)
@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
def test_output_is_that_of_plain_decoding(backend, slots, sampling):
    prompts = [[1, 2, 3, 4], [9, 8, 7]]
    how = {"max_tokens": 40, "ignore_eos": True, "logprobs": 1, **sampling}
    small = tiny_model("llama-dense-q4_0")
    spec = f"draft-model:model={small},tree={{}}"
    with Engine.load(tiny_model("llama-dense"), backend=backend, n_ctx=96, spec_type="none") as engine:
        plain = engine.generate(prompts, **how)
    rates = {}
    for shape in ("1x3", "3x3"):
        with Engine.load(
            tiny_model("llama-dense"), backend=backend, n_ctx=96, slots=slots, spec_type=spec.format(shape), spec_fixed=True
        ) as engine:
            results = engine.generate(prompts, **how)
        for result, expected in zip(results, plain, strict=True):
            assert result.tokens == expected.tokens
            assert [piece.logprob for piece in result.pieces] == [piece.logprob for piece in expected.pieces]
        rates[shape] = sum(result.stats.n_rounds for result in results)
    assert rates["3x3"] < rates["1x3"], "second thoughts must have been right"
