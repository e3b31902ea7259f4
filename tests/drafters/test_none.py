import numpy as np

from augury.drafters.none import NoDrafter
from augury.options import NoOptions


def test_it_declines_whatever_it_is_asked():
    drafter = NoDrafter(NoOptions(), None)
    for n in (1, 2, 100):
        assert len(drafter.draft(np.arange(n, dtype=np.int32), 16)) == 0


def test_it_is_offered_under_its_name():
    assert NoDrafter.name == "none"
