import attrs
import numpy as np
import pytest
from oracles.passes import run_of

from augury.batch import Batch
from augury.engine.session import EngineSession, EngineTarget, SecondModel
from augury.errors import AuguryError, CapacityError, OptionError
from augury.interfaces import Progress
from augury.loader import Loader
from augury.options import NoOptions
from augury.plugins.memory.contiguous import Contiguous
from augury.testing.toy_model import ToyModel
from augury.testing.toys import TINY_DRAFT, ToyBackend, registry_with_toys
from augury.types import ModelInfo, ModelOptions

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


def ints(*values, dtype=np.int32):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"tokens": ints(9, 16)}, OptionError, "tokens from 9 to 16, expected 0 to 15"),
        ({"tokens": ints(-1, 9)}, OptionError, "tokens from -1 to 9"),
        ({"tokens": ints(9, 2**32 + 9, dtype=np.int64)}, OptionError, "tokens from 9 to 4294967305"),
        ({"tokens": ints(9, 2**64 - 1, dtype=np.uint64)}, OptionError, "tokens from 9 to 18446744073709551615"),
        (
            {"tokens": ints(9.0, 9.5, dtype=np.float32)},
            OptionError,
            r"tokens of float32 in shape \(2,\), expected \(n,\) int32",
        ),
        ({"tokens": ["a", "b"]}, OptionError, "tokens of <U1"),
        ({"tokens": [[9], [9, 9]]}, OptionError, "tokens that are no array"),
        ({"tokens": ints(9, 9).reshape(1, 2)}, OptionError, r"tokens of int32 in shape \(1, 2\)"),
        ({"tokens": None}, OptionError, "tokens of object"),
        ({"tokens": ints()}, OptionError, "a pass over no tokens"),
        ({"slots": ints(0, 2)}, OptionError, "slots from 0 to 2, expected 0 to 1"),
        ({"slots": ints(0, -1)}, OptionError, "slots from -1 to 0"),
        ({"slots": ints(0)}, OptionError, r"slots of int32 in shape \(1,\), expected \(2,\) int32"),
        ({"positions": ints(5, 64)}, CapacityError, "positions from 5 to 64, expected 0 to 63"),
        ({"positions": ints(-5, 6)}, OptionError, "positions from -5 to 6"),
        ({"positions": ints(6, 5)}, OptionError, "positions that do not rise within a slot"),
        ({"positions": ints(5, 5)}, OptionError, "positions that do not rise within a slot"),
        ({"positions": ints(5, 6, 7)}, OptionError, r"positions of int32 in shape \(3,\)"),
        ({"rows": ints(0, 2)}, OptionError, "rows from 0 to 2, expected 0 to 1"),
        ({"rows": ints(-1)}, OptionError, "rows from -1 to -1"),
        ({"rows": ints(1, 0)}, OptionError, r"rows \[1, 0\], expected rising ones"),
        ({"rows": ints(1, 1)}, OptionError, r"rows \[1, 1\]"),
        ({"parents": ints(-1, 1)}, OptionError, "has parent 1"),
        ({"parents": ints(-2, 0)}, OptionError, "parents from -2 to 0"),
        ({"parents": ints(-1)}, OptionError, r"parents of int32 in shape \(1,\)"),
        ({"positions": ints(62, 63), "parents": ints(-1, -1)}, OptionError, "has parent -1"),
        ({"n_layers": 0}, OptionError, "a pass through 0 layers, expected 1 to 4"),
        ({"n_layers": 5}, OptionError, "a pass through 5 layers"),
        ({"n_layers": 1.0}, OptionError, "a pass through 1.0 layers"),
    ],
)
@pytest.mark.parametrize("is_second", [False, True])
def test_a_batch_that_kernels_would_read_beside_arrays_for_is_refused(parts, is_second, changes, error, told):
    model, _, target = parts
    n_passes, batch = len(model.batches), attrs.evolve(shallow(run_of([9, 9], start=5)), **changes)
    with pytest.raises(error, match=told):
        (SecondModel(model) if is_second else target).forward(batch)
    assert len(model.batches) == n_passes


@pytest.mark.parametrize("moves", [[[0, 5, 64]], [[2, 5, 6]], [[0, -1, 5]], [[0.5, 1, 2]], [[0, 5], [6, 0], [5, 6]], [0, 5, 6]])
def test_moves_are_the_engine_s_and_stay_within_a_second_model_s_slots(parts, moves):
    model, _, target = parts
    with pytest.raises(OptionError, match="expected no moves"):
        target.forward(attrs.evolve(shallow(run_of([9], start=5)), moves=ints([0, 5, 6])))
    with pytest.raises((OptionError, CapacityError), match="move"):
        SecondModel(model).forward(attrs.evolve(run_of([9], start=5), moves=np.array(moves)))
    with pytest.raises(OptionError, match="a pass over a list, expected a Batch"):
        SecondModel(model).forward([1])


def test_numbers_of_other_types_are_taken_as_they_are_meant_and_copied(parts):
    model, _, _ = parts
    tokens = ints(9, 8, dtype=np.uint8)
    SecondModel(model).forward(Batch(tokens, [0, 0], ints(5, 6, dtype=np.int64), rows=[]))
    tokens[:] = 0
    assert [model.batches[-1].tokens.tolist(), model.batches[-1].tokens.dtype] == [[9, 8], np.int32]
    assert model.cells[0, 5:7].tolist() == [9, 8]


def test_a_model_that_a_drafter_loads_is_checked_and_closed_with_the_engine():
    loader = Loader(registry_with_toys(), ToyBackend(NoOptions()), Progress())
    session = EngineSession(0, None, ModelOptions(), None, loader, None)
    model = session.load(TINY_DRAFT, ModelOptions())
    assert session.load(TINY_DRAFT, ModelOptions()) is model
    with pytest.raises(OptionError, match="expected 0 to 263"):
        model.forward(run_of([264], start=0))
    loader.close()
    with pytest.raises(AuguryError, match="closed"):
        model.forward(run_of([1], start=0))
