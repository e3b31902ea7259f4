import attrs
import numpy as np
import pytest
from oracles.passes import run_of

from augury.errors import OptionError
from augury.options import NoOptions
from augury.plugins.memory.contiguous import Contiguous
from augury.session import EngineTarget
from augury.testing.toy_model import ToyModel
from augury.types import ModelInfo

HELD = np.int32([3, 1, 4, 1, 5])


def shallow(batch, n_layers=1):
    return attrs.evolve(batch, n_layers=n_layers)


@pytest.fixture
def parts():
    """A model of four layers whose slot 0 holds five tokens, its memory, and what drafters see of it."""
    model = ToyModel(n_slots=2, info=ModelInfo("toy", "toy", 16, 4, 4, 64, 0))
    memory = Contiguous(NoOptions(), model.state_spec)
    memory.open(HELD, may_reuse=False)
    model.forward(run_of(HELD, rows=[]))
    memory.commit(0, memory.prepare(0, 5), HELD)
    return model, memory, EngineTarget(model, memory)


def test_a_pass_of_a_drafter_goes_on_from_what_the_slot_holds(parts):
    model, memory, target = parts
    assert target.n_layers == 4
    logits = target.forward(shallow(run_of([9], start=5)))
    assert np.array_equal(logits.rows()[0], model.logits(np.append(HELD, 9), n_layers=1).astype(np.float32))
    assert memory.room(0) == 64 - 5


def test_a_pass_through_all_layers_by_default_is_refused(parts):
    _, _, target = parts
    with pytest.raises(OptionError, match="expected n_layers from 1 to 4"):
        target.forward(run_of([9], start=5))


@pytest.mark.parametrize("start", [0, 4])
def test_what_a_slot_holds_is_not_written_over(parts, start):
    model, _, target = parts
    with pytest.raises(OptionError, match=f"holds position {start}; expected positions from 5 on"):
        target.forward(shallow(run_of([9, 9], start=start)))
    assert model.cells[0, :6].tolist() == [*HELD, -1]


def test_the_path_of_a_tree_comes_to_its_place_first_and_once(parts):
    model, memory, target = parts
    step = memory.prepare(0, 4)
    model.cells[0, 5:9] = [10, 11, 12, 13]  # as a tree left them
    memory.commit(0, step, np.int32([10, 12, 13]), path=np.int32([0, 2, 3]))

    for position, token in ((8, 6), (9, 7)):
        target.forward(shallow(run_of([token], start=position)))

    assert model.cells[0, :10].tolist() == [*HELD, 10, 12, 13, 6, 7]
    assert memory.prepare(0, 1).moves == ()
    assert [batch.moves is None for batch in model.batches[-2:]] == [False, True]
