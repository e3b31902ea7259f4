"""Times at load, on a model that refuses what no text could have led to."""

import pytest

from augury.speculation.calibration import measure_passes
from augury.testing.toy_model import ToyModel


@pytest.mark.parametrize("n_ctx", [1, 2, 16, 17, 511, 512, 513, 1024, 4096])
def test_a_model_that_knows_which_positions_hold_something_can_be_timed(n_ctx):
    model = ToyModel(n_ctx=n_ctx)
    costs = measure_passes(model, 17)
    assert 0 < costs.seconds(1, 0) <= costs.seconds(17, 0)
    depths = {int(batch.positions[0]) for batch in model.batches}
    assert depths == {0} if n_ctx < 512 else max(depths) >= 511


def test_drafts_of_any_length_have_a_cost_and_take_no_memory_for_it():
    costs = measure_passes(ToyModel(), 1_000_000)  # a table of so many passes by so many would be 8 TB
    assert 0 < costs.seconds(1000, 0) < costs.seconds(1_000_000, 0)
