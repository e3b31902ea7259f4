import attrs
import numpy as np
import pytest
from oracles.models import tiny_model

from augury.backends.reference import Reference
from augury.batch import Batch
from augury.engine.session import EngineSession
from augury.errors import AuguryError, OptionError, PluginError
from augury.hookspecs import hookimpl
from augury.interfaces import Progress
from augury.loader import Loader
from augury.options import NoOptions
from augury.plugins.architectures.llama import Llama
from augury.plugins.memory.contiguous import Contiguous
from augury.plugins.sources.local import PathSource
from augury.registry import Registry
from augury.speculation.config import Member
from augury.testing.toys import TINY_DRAFT, ToyBackend, ToyDrafter, registry_with_toys
from augury.types import ModelOptions


def test_a_model_that_a_drafter_loads_is_checked_and_closed_with_the_engine():
    loader = Loader(registry_with_toys(), ToyBackend(NoOptions()), Progress())
    session = EngineSession(0, None, ModelOptions(), None, loader, None)
    context = session.load(TINY_DRAFT, ModelOptions())
    assert session.load(TINY_DRAFT, ModelOptions()) is context
    with pytest.raises(OptionError, match="expected 0 to 263"):
        context.prepare(0, np.int32([264]))
    feed = context.prepare(0, np.int32([1]))
    loader.close()
    with pytest.raises(AuguryError, match="closed"):
        context.forward([feed])


class Unready(ToyDrafter):
    def __init__(self, options, session):
        raise ZeroDivisionError("no luck")


def test_a_drafter_that_cannot_begin_is_named():
    session = EngineSession(
        0, None, ModelOptions(), None, Loader(registry_with_toys(), ToyBackend(NoOptions()), Progress()), None
    )
    told = (
        "drafter 'toy-period' cannot begin: ZeroDivisionError: no luck; leave it out .--spec-type., or ask the authors of ..*"
    )
    with pytest.raises(PluginError, match=told) as found:
        session.make_drafters([(Unready, Member("toy-period", NoOptions()))], [])
    assert isinstance(found.value.__cause__, ZeroDivisionError)


class TwoPlans(Llama):
    @classmethod
    def plans(cls, file):
        (main,) = super().plans(file).values()
        return {"main": main, "half": attrs.evolve(main, layers=main.layers[:1])}


class Plugins:
    @hookimpl
    def augury_architectures(self):
        return [TwoPlans]

    @hookimpl
    def augury_sources(self):
        return [PathSource]

    @hookimpl
    def augury_memory_managers(self):
        return [Contiguous]


def test_a_drafter_loads_another_plan_of_a_file():
    registry = Registry()
    registry.register(Plugins(), name="plugins")
    loader = Loader(registry, Reference(NoOptions()), Progress())
    session = EngineSession(0, None, ModelOptions(), None, loader, None)
    path, options = str(tiny_model("llama-dense")), ModelOptions(n_ctx=64)
    half, main = session.load(path, options, plan="half"), session.load(path, options)
    assert (half.info.n_layers, main.info.n_layers) == (1, 2)
    text = np.int32([1, 2, 3])
    batch = Batch.chain(text, rows=np.int32([2]), layers=(0, 1))
    assert np.array_equal(half.forward([half.prepare(0, text, 1)]).rows(), loader.models[1].forward(batch).rows())
    with pytest.raises(OptionError, match="'llama' has no plan 'mtp', only main, half"):
        session.load(path, options, plan="mtp")
    loader.close()
