import numpy as np
import pytest

from augury.engine.session import EngineSession
from augury.errors import AuguryError, OptionError
from augury.interfaces import Progress
from augury.loader import Loader
from augury.options import NoOptions
from augury.testing.toys import TINY_DRAFT, ToyBackend, registry_with_toys
from augury.types import ModelOptions


def test_a_model_that_a_drafter_loads_is_checked_and_closed_with_the_engine():
    loader = Loader(registry_with_toys(), ToyBackend(NoOptions()), Progress())
    session = EngineSession(0, None, ModelOptions(), None, loader, None)
    context = session.load(TINY_DRAFT, ModelOptions())
    assert session.load(TINY_DRAFT, ModelOptions()) is context
    with pytest.raises(OptionError, match="expected 0 to 263"):
        context.feed(0, np.int32([264]))
    feed = context.feed(0, np.int32([1]))
    loader.close()
    with pytest.raises(AuguryError, match="closed"):
        context.forward([feed])
