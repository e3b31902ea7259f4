from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from augury.engine.checked_context import CheckedContext, EngineTarget
from augury.engine.context import EngineContext
from augury.errors import AuguryError, CapacityError, OptionError
from augury.options import NoOptions
from augury.plugins.memory.contiguous import Contiguous
from augury.testing.toy_model import ToyModel
from augury.types import Draft, ModelInfo

HELD = [3, 1, 4, 1, 5]
TREE = Draft([10, 11, 12, 13], [-1, -1, 1, 2])


@pytest.fixture(params=[EngineContext, CheckedContext])
def context(request):
    """A model of four layers whose slot 0 holds five tokens."""
    model = ToyModel(n_slots=2, info=ModelInfo("toy", "toy", 16, 4, 4, 64, 0))
    context = request.param(model, Contiguous(NoOptions(), model.state_spec, model))
    assert context.open(np.int32(HELD)).slot == 0
    fed(context, HELD)
    return context


def fed(context, tokens, rows=0, draft=None, path=()):
    """The logits of a pass over a feed of slot 0."""
    feed = context.prepare(0, np.int32(tokens), rows, draft)
    logits = context.forward([feed]).rows()
    context.commit(feed, path)
    return logits


def after(context, *tokens, n_layers=None):
    return context.model.logits(np.int32([*HELD, *tokens]), n_layers=n_layers).astype(np.float32)


def test_a_pass_is_over_what_several_slots_are_fed_with_rows_in_their_order(context):
    assert context.open(np.int32([7, 8])).slot == 1
    feeds = [context.prepare(1, np.int32([7, 8]), 1), context.prepare(0, np.int32([9]), 3, Draft([6, 2]))]
    logits = context.forward(feeds).rows()
    expected = [context.model.logits(np.int32([7, 8])), *(after(context, *[9, 6, 2][:n]) for n in (1, 2, 3))]
    assert np.array_equal(logits, np.array(expected, np.float32))


def test_what_is_not_committed_or_not_in_the_path_is_undone(context):
    fed(context, [9], draft=Draft([6, 2]), path=[0])
    context.forward([context.prepare(0, np.int32([4]))])
    assert np.array_equal(fed(context, [8], 1)[0], after(context, 9, 6, 8))


def test_logits_of_any_tokens_can_be_asked_for():
    model = ToyModel(n_slots=2)
    context = EngineContext(model, Contiguous(NoOptions(), model.state_spec, model))
    feeds = [context.prepare(1, np.int32([7, 8])), context.prepare(0, np.int32([1, 2, 3, 4]), np.int32([1, 2]))]
    expected = [model.logits(np.int32([1, 2, 3])[:n]) for n in (2, 3)]
    assert np.array_equal(context.forward(feeds).rows(), np.array(expected, np.float32))


@pytest.mark.parametrize("n_kept", [0, 1, 3])
def test_of_what_a_model_writes_by_itself_as_much_is_kept_as_is_wanted(context, n_kept):
    assert context.open(np.int32([7, 8])).slot == 1
    texts = [[*HELD, 9, 2], [7, 8]]
    feeds = [context.prepare(0, np.int32([9, 2]), 1, n_more=3), context.prepare(1, np.int32([7, 8]), 1, n_more=3)]
    logits = context.forward(feeds)
    best = logits.argmax().reshape(4, 2)
    for step in range(4):
        for slot, text in enumerate(texts):
            right = context.model.logits(np.int32([*text, *best[:step, slot]])).astype(np.float32)
            assert np.array_equal(logits.row(2 * step + slot), right)
    context.commit(attrs.evolve(feeds[0], tokens=np.append(feeds[0].tokens, best[:n_kept, 0])))
    assert context.room(0) == 64 - 7 - n_kept
    assert np.array_equal(fed(context, [6], 1)[0], after(context, 9, 2, *best[:n_kept, 0], 6))


def test_what_a_model_cannot_write_by_itself_is_refused(context):
    with pytest.raises(CapacityError, match="60 more tokens do not fit"):
        context.prepare(0, np.int32([9]), 1, n_more=59)
    checked, one = CheckedContext(context.model, context.memory), np.int32([9])
    for rows, draft in ((0, None), (1, Draft([3]))):
        with pytest.raises(OptionError, match="2 more passes after a feed, expected one row, no draft"):
            checked.prepare(0, one, rows, draft, 2)
    checked._has_sequence_state = True
    with pytest.raises(OptionError, match="a model without recurrent state"):
        checked.prepare(0, one, 1, None, 2)
    checked._has_sequence_state = False
    checked.open(np.int32([7, 8]))
    feeds = [checked.prepare(0, one, 1, n_more=2), checked.prepare(1, one, 1, n_more=1)]
    with pytest.raises(OptionError, match=r"\[1, 2\] more passes, 0 features; expected one number"):
        checked.forward(feeds)
    with pytest.raises(OptionError, match=r"\[2\] more passes, 1 features"):
        checked.forward(feeds[:1], ("output",))


def test_features_are_asked_for_where_there_are_any(context):
    for features in ((), ("layer.1",)):
        context.forward([context.prepare(0, np.int32([9]), 1)], features)
        assert context.model.batches[-1].features == features


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("replays", [False, True])
def test_drafts_may_branch_unless_accepted_tokens_are_replayed_into_a_state(has_state, replays):
    spec = SimpleNamespace(n_bytes_per_sequence=8 * has_state)
    model = SimpleNamespace(info=None, state_spec=spec, is_asynchronous=False, chain_rows=0)
    context = EngineContext(model, SimpleNamespace(replays_accepted=replays))
    assert context.may_branch is not (has_state and replays)


@pytest.mark.parametrize("has_accepted", [False, True])
def test_a_slot_whose_accepted_tokens_were_to_be_moved_by_a_pass_that_failed_is_not_fed_until_it_is_opened(
    context, has_accepted
):
    fed(context, [9], 5, TREE, path=[1, 2] if has_accepted else [])
    context.model.on_forward = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        EngineTarget(context).forward({0: np.int32([6])}, 1)
    context.model.on_forward = lambda: None
    if has_accepted:
        with pytest.raises(AuguryError, match="what slot 0 holds since is not known"):
            context.prepare(0, np.int32([8]))
        context.end(0)
        assert {context.open(np.int32([1, 2])).slot for _ in range(2)} == {0, 1}
    context.prepare(0, np.int32([8]))


def test_a_path_of_a_tree_comes_to_its_place_before_the_next_pass(context):
    fed(context, [9], 5, TREE, path=[1, 2])
    assert np.array_equal(fed(context, [8], 1)[0], after(context, 9, 11, 12, 8))
    assert context.model.cells[0, :9].tolist() == [*HELD, 9, 11, 12, 8]


def test_a_pass_through_the_first_layers_goes_on_from_what_the_slot_holds_and_keeps_nothing(context):
    target = EngineTarget(context)
    assert target.n_layers == 4
    for written in ([9], [9, 8], [9, 8, 7], [6, 5]):
        logits = target.forward({0: np.int32(written)}, 1)
        assert np.array_equal(logits.rows()[0], after(context, *written, n_layers=1))
    assert context.room(0) == 64 - 5
    assert [len(batch.tokens) for batch in context.model.batches[1:]] == [1, 1, 1, 2], "what was there is not computed again"


def test_what_another_request_or_another_number_of_layers_left_is_computed_again(context):
    target = EngineTarget(context)
    target.forward({0: np.int32([9, 8])}, 1)
    target.forward({0: np.int32([9, 8, 7])}, 2)
    context.end(0)
    assert context.open(np.int32([*HELD, 1])).slot == 0
    target.forward({0: np.int32([9, 8, 7, 6])}, 2)
    assert [len(batch.tokens) for batch in context.model.batches[1:]] == [2, 3, 4]


def test_the_path_of_a_tree_comes_to_its_place_before_the_first_layers_and_once(context):
    fed(context, [9], 5, TREE, path=[1, 2])
    for written in ([6], [6, 7]):
        EngineTarget(context).forward({0: np.int32(written)}, 1)
    assert context.model.cells[0, :10].tolist() == [*HELD, 9, 11, 12, 6, 7]
    assert [batch.accepted is None for batch in context.model.batches[-2:]] == [False, True]
    assert np.array_equal(fed(context, [8], 1)[0], after(context, 9, 11, 12, 8))


def ints(*values, dtype=np.int32):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("slot", "tokens", "error", "told"),
    [
        (0, ints(9, 16), OptionError, "tokens from 9 to 16, expected 0 to 15"),
        (0, ints(-1, 9), OptionError, "tokens from -1 to 9"),
        (0, ints(9, 2**32 + 9, dtype=np.int64), OptionError, r"int64 of shape \(2,\), expected a row of numbers of int32"),
        (0, ints(9.0, 9.5, dtype=np.float32), OptionError, r"float32 of shape \(2,\)"),
        (0, ["a", "b"], OptionError, "tokens are <U1"),
        (0, [[9], [9, 9]], OptionError, "a feed of slot 0 whose"),
        (0, ints(9, 9).reshape(1, 2), OptionError, r"shape \(1, 2\)"),
        (0, None, OptionError, "tokens are object"),
        (0, ints(), OptionError, "over no tokens|a feed of 0 tokens"),
        (2, ints(9), OptionError, "slot 2, expected 0 to 1"),
        (-1, ints(9), OptionError, "slot -1"),
        (0.0, ints(9), OptionError, "slot 0.0"),
        (0, ints(*[9] * 60), CapacityError, "room for 59"),
    ],
)
@pytest.mark.parametrize("is_target", [False, True])
def test_what_kernels_would_read_beside_arrays_for_is_refused(context, is_target, slot, tokens, error, told):
    context = CheckedContext(context.model, context.memory)
    n_passes = len(context.model.batches)
    with pytest.raises(error, match=told):
        EngineTarget(context).forward({slot: tokens}, 1) if is_target else context.prepare(slot, tokens)
    assert len(context.model.batches) == n_passes


def test_drafts_and_logits_that_kernels_would_read_beside_arrays_for_are_refused(context):
    checked = CheckedContext(context.model, context.memory)
    with pytest.raises(OptionError, match="tokens from 99 to 99"):
        checked.prepare(0, ints(9), 0, Draft([99]))
    for rows in (2, -1, None, ints(0)):
        with pytest.raises(OptionError, match="a feed of 1 tokens with logits of"):
            checked.prepare(0, ints(9), rows)
    for n_layers in (0, 5, None, 1.0):
        with pytest.raises(OptionError, match=f"a pass through {n_layers} layers, expected 1 to 4"):
            EngineTarget(context).forward({0: ints(9)}, n_layers)


def test_numbers_of_other_types_are_taken_as_they_are_meant_and_copied(context):
    checked, tokens = CheckedContext(context.model, context.memory), ints(0, 15, dtype=np.uint8)
    feed = checked.prepare(0, tokens)
    tokens[:] = 1
    checked.forward([feed])
    assert not len(context.model.batches[-1].rows), "no logits were asked for"
    assert [context.model.batches[-1].tokens.tolist(), context.model.batches[-1].tokens.dtype] == [[0, 15], np.int32]
