"""Drafters with the tiny heads of `oracles.drafts`, and their targets' features."""

from oracles.drafts import draft_file, runs, target_of
from oracles.models import tiny_model
from toys import as_history

from augury import Registry
from augury.batch import Batch
from augury.drafters.model.load_options import LoadOptions
from augury.engine.context import EngineTarget
from augury.engine.session import EngineSession
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import Loader, make_backend
from augury.types import ModelOptions

REGISTRY = Registry.discover()
OPTIONS = ModelOptions(n_slots=2, n_ctx=128, threads=2, cache_type_k="f32", cache_type_v="f32")


class Rig:
    """The drafters of two slots, and a target's features of a text."""

    def __init__(self, name, backend="numba-cpu", model=None, **options):
        self.loader = Loader(REGISTRY, make_backend(REGISTRY, backend), Progress())
        context = self.loader.load(tiny_model(target_of(name)), OPTIONS, purpose="target")
        options = LoadOptions(model=str(model or draft_file(name)), **options)
        file = ModelFile.open(options.model)
        (kind,) = (each for each in REGISTRY.drafters.values() if each.drafts_with(file))
        sessions = [EngineSession(i, context.info, OPTIONS, None, self.loader, EngineTarget(context)) for i in range(2)]
        self.drafters = [kind(options, session) for session in sessions]
        self.runner, self.text, self._model = self.drafters[0].runner, runs(name)[0].text, context.model
        self.fed = self.features(self.text)

    def features(self, text):
        names = self.drafters[0].features
        passed = self._model.forward(Batch.chain(text, features=names))
        return {name: passed.features(name) for name in names}

    def feed(self, start, end, slot=0, text=None):
        fed = self.fed if text is None else self.features(text)
        text = self.text if text is None else text
        self.drafters[slot].feed(start, text[start:end], {name: rows[start:end] for name, rows in fed.items()})

    def begin(self, history, slot=0):
        for _ in self.drafters[slot].begin(as_history(history), 0):
            pass

    def draft(self, history, k, slot=0):
        return self.drafters[slot].draft(as_history(history), k).tokens.tolist()
