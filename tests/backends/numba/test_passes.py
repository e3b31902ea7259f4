import numpy as np
import pytest

from augury.backends.numba.passes import passes
from augury.errors import UnsupportedError

SLOTS = np.int32([0, 0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("parents", "has_blocks", "ends"),
    [(None, False, [4, 7]), (None, True, [3, 7]), (np.int64([-1, 0, 1, -1, -1, -1, 5]), False, [3, 7])],
    ids=["of chains", "whole blocks", "whole trees"],
)
def test_a_batch_is_cut_into_passes(parents, has_blocks, ends):
    assert [span.stop for span in passes(SLOTS, parents, 4, has_blocks=has_blocks)] == ends


def test_a_block_larger_than_a_pass_is_refused():
    with pytest.raises(UnsupportedError, match="a block of 3 tokens in slot 0, expected at most 2"):
        next(passes(SLOTS, None, 2, has_blocks=True))
