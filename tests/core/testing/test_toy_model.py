import attrs
import numpy as np
import pytest
from oracles.passes import run_of

from augury.batch import Batch
from augury.errors import AuguryError, CapacityError, OptionError
from augury.testing.toy_model import ToyModel, ToyRecurrentModel


def batch(tokens, *, start=0, slot=0, positions=None, **more):
    n = len(tokens)
    places = np.arange(start, start + n) if positions is None else np.array(positions)
    more = {key: value if isinstance(value, int) else np.array(value, np.int32) for key, value in more.items()}
    return Batch(np.array(tokens, np.int32), np.full(n, slot, np.int32), places.astype(np.int32), np.arange(n), **more)


def after(*tokens):
    return ToyModel().logits(np.array(tokens)).astype(np.float32)


def test_logits_are_those_of_the_text_however_it_was_fed():
    at_once, split = ToyModel(), ToyModel()
    rows = at_once.forward(batch([1, 2, 3, 4])).rows()
    split.forward(batch([1, 9, 9]))
    split.forward(batch([2, 3], start=1))
    assert np.array_equal(split.forward(batch([4], start=3)).rows()[0], rows[3])
    assert np.array_equal(rows[3], after(1, 2, 3, 4))


def test_every_path_of_a_tree_is_a_text_of_its_own():
    model = ToyModel()
    model.forward(batch([1, 2]))
    tree = batch([3, 4, 5, 6, 7], positions=[2, 3, 3, 4, 3], parents=[-1, 0, 0, 2, 0])
    rows = model.forward(tree).rows()
    for row, text in zip(rows, [(3,), (3, 4), (3, 5), (3, 5, 6), (3, 7)], strict=True):
        assert np.array_equal(row, after(1, 2, *text))


def test_moves_bring_a_trees_path_together():
    model = ToyModel()
    model.forward(batch([1, 2]))
    model.forward(batch([3, 4, 5, 6], positions=[2, 3, 3, 4], parents=[-1, 0, 0, 2]))
    row = model.forward(batch([8], start=5, accepted=[(0, 4, 3), (0, 5, 4)])).rows()[0]
    assert np.array_equal(row, after(1, 2, 3, 5, 6, 8))


def test_a_gap_and_what_is_outside_are_errors():
    model = ToyModel()
    with pytest.raises(AuguryError, match="positions that hold nothing"):
        model.forward(batch([1], start=1))
    with pytest.raises(CapacityError, match="position 64 does not fit into a slot of 64"):
        model.forward(batch([1], start=64))
    with pytest.raises(CapacityError, match="slot 1 does not exist"):
        model.forward(batch([1], slot=1))
    with pytest.raises(OptionError, match="tokens from 16"):
        model.forward(batch([16]))


def test_text_repeats_itself_after_a_period_but_for_its_surprises():
    prompt = [1, 2, 3, 4]
    assert ToyModel(period=4, surprises=0.0).plain(prompt, 40) == prompt * 10
    text = prompt + ToyModel(period=4).plain(prompt, 400)
    repeated = np.mean([text[i] == text[i - 4] for i in range(4, len(text))])
    assert 0.7 < repeated < 0.95


def test_a_model_with_errors_is_often_but_not_always_of_the_same_mind():
    right, wrong = ToyModel(), ToyModel(errors=0.25)
    same = [right.plain([token, other], 1) == wrong.plain([token, other], 1) for token in range(16) for other in range(16)]
    assert 0.6 < np.mean(same) < 0.9
    early = [np.argmax(right.logits(np.array([1, other]), n_layers=0)) == right.plain([1, other], 1)[0] for other in range(64)]
    assert 0.6 < np.mean(early) < 0.9


@pytest.mark.parametrize("kind", [ToyModel, ToyRecurrentModel])
def test_its_features_depend_on_a_tokens_whole_text(kind):
    model, batch = kind(n_slots=2), attrs.evolve(run_of([1, 2, 3]), features=("output",))
    right = model.forward(batch).features("output").copy()
    assert right.shape == (3, model.features["output"])
    again = model.forward(attrs.evolve(run_of([1, 2, 3], slot=1, rows=[]), features=("output",))).features("output")
    other = model.forward(attrs.evolve(run_of([7, 2, 3]), features=("output",))).features("output")
    assert np.array_equal(again, right)
    assert not (other == right).any()
    with pytest.raises(OptionError, match=r"'layer\.9'"):
        model.forward(attrs.evolve(batch, features=("layer.9",)))
