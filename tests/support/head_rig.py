"""Drafters with the tiny models of `oracles.drafts`, and their targets' features, without an engine."""

import itertools

import attrs
import numpy as np
from oracles.drafts import MTP, draft_file, mtp_file, runs, target_of
from oracles.models import nmse, tiny_model
from support.toys import as_history

from augury import Registry
from augury.batch import Batch
from augury.drafters.model.mtp_runner import MtpRunner
from augury.drafters.model.written_draft import DraftRequest
from augury.engine.checked_context import EngineTarget
from augury.engine.session import EngineSession
from augury.interfaces import Progress
from augury.loader import Loader, make_backend, plan_of
from augury.types import Draft, ModelOptions

REGISTRY = Registry.discover()
OPTIONS = ModelOptions(n_slots=2, n_ctx=128, threads=2, cache_type_k="f32", cache_type_v="f32")
HALVES = attrs.evolve(OPTIONS, cache_type_k="f16", cache_type_v="f16")
N_CTX, N_VOCAB = 256, 128  # of targets with layers of their own


class Rig:
    """The drafters of two slots, and a target's features of a text, or of its first `n` tokens.

    `target` is the target's backend, if it is another one.
    """

    def __init__(self, name, backend="numba-cpu", model=None, loaded=OPTIONS, n=None, target=None, **options):
        self.loader = Loader(REGISTRY, make_backend(REGISTRY, target or backend), Progress())
        context = self.loader.load(tiny_model(target_of(name)), loaded, purpose="target")
        options |= {} if target is None else {"backend": backend}
        path = str(model or draft_file(name))
        (kind,) = (each for each in REGISTRY.drafters.values() if each.drafts_with(self.loader.open(path)))
        options = kind.options_class(model=path, **options)
        sessions = [EngineSession(i, context.info, loaded, None, self.loader, EngineTarget(context)) for i in range(2)]
        self.drafters = [kind(options, session) for session in sessions]
        self.runner, self.text, self._model = self.drafters[0].runner, runs(name)[0].text[:n], context.model
        self.fed = self.features(self.text)

    def features(self, text):
        names = self.drafters[0].traits.features
        passed = self._model.forward(Batch.chain(text, features=names))
        return {name: passed.features(name) for name in names}

    def feed(self, start, end, slot=0, text=None):
        fed = self.fed if text is None else self.features(text)
        text = self.text if text is None else text
        self.drafters[slot].feed(start, text[start:end], {name: rows[start:end] for name, rows in fed.items()})

    def drafted(self, n, k):
        """The draft of k tokens after n that are fed, and one more."""
        self.feed(0, n)
        return self.draft(self.text[: n + 1], k)

    def begin(self, history, slot=0):
        for _ in self.drafters[slot].begin(as_history(history), 0):
            pass

    def replayed(self, run):
        """The drafts of all rounds."""
        fed = 0
        for last in run.last.tolist():
            if last > fed:
                self.feed(fed, last)
            if not fed:
                self.begin(run.text[: last + 1])
            fed = last
            yield self.draft(run.text[: last + 1], run.k)

    def draft(self, history, k, slot=0):
        return self.drafters[slot].draft(as_history(history), k).tokens.tolist()


class Told:
    """A target whose slots are told of texts, and the runner that is told with them.

    A backend `target` computes hidden states in the place of `backend`, if layers for further tokens keep all that they read.
    """

    def __init__(self, name, backend="numba-cpu", *, n_slots=1, change=None, cache_type="f32", target=None):
        self.loader = Loader(REGISTRY, make_backend(REGISTRY, backend), Progress())
        path = draft_file(name)
        self.loader._files[str(path)] = mtp_file(name) if change is None else change(mtp_file(name))
        options = ModelOptions(n_slots, N_CTX, 1, cache_type, cache_type, 8)
        self.context = self.loader.load(path, options, purpose="target", wants_mtp=True)
        if target is not None and next(iter(self.context.info.heads.values())).caches:
            file, of_mtp = self.loader.open(path), self.context.model.forward
            of_hidden = make_backend(REGISTRY, target).load(file, plan_of(file, REGISTRY), options, Progress()).forward
            self.context.model.forward = lambda batch: (of_hidden if batch.hidden is None else of_mtp)(batch)
        self.target = EngineTarget(self.context)
        self.runner = MtpRunner(self.target, N_CTX, n_vocab=N_VOCAB, n_first=0)
        self.passes = []  # through the layers that predict further tokens: which, and over how many tokens
        forward, parts = self.target.forward_part, [*self.target.heads]
        self.names = self.target.heads[parts[0]].input

        def counted(part, feeds, vocabulary=None, n_more=0):
            self.passed = forward(part, feeds, vocabulary, n_more)
            self.passes.append((parts.index(part), sum(len(feed.tokens) for feed in feeds)))
            return self.passed

        self.target.forward_part = counted

    def open(self, slot=0):
        assert self.context.open(np.zeros(1, np.int32), may_reuse=False, slot=slot).slot == slot

    def tell(self, tokens, draft=(), n_accepted=0, slot=0):
        """Compute tokens and a draft, of which the first are accepted."""
        start = N_CTX - self.context.room(slot)
        tokens, path = np.array(tokens, np.int32), list(range(n_accepted))
        feed = self.context.prepare(slot, tokens, 0, Draft(np.array(draft, np.int32)) if len(draft) else None)
        (name,) = self.names
        hidden = self.context.forward([feed], (name,)).features(name).copy()
        self.context.commit(feed, path)
        kept = np.concatenate([tokens, np.array(draft, np.int32)[path]])
        self.runner.feed(slot, start, kept, {name: hidden[: len(kept)]})

    def features_of(self, text):
        """The hidden states of a text that are fed."""
        passed = self.context.model.forward(Batch.chain(text, features=self.names))
        return {name: passed.features(name).copy() for name in self.names}

    def request(self, text, k, slot=0, **more):
        return DraftRequest(slot, np.array(text, np.int32), k, 0.0, **more)

    def draft(self, text, k, slot=0, **more):
        return self.runner.draft([self.request(text, k, slot, **more)])[0].tokens

    def replayed(self, run, cuts=()):
        """The drafts of all rounds, and the logits of each one's last token."""
        text, wrong = run.text, (run.text + 1) % N_VOCAB
        self.open()
        first = int(run.last[0])
        for start, end in itertools.pairwise([0, *cuts, first]):
            self.tell(text[start:end])
        self.runner.begin(0, text[: first + 1])
        for last, following in itertools.pairwise([*run.last.tolist(), None]):
            drafts = self.draft(text[: last + 1], run.k)
            yield drafts, self.passed.rows()[-1].copy()
            if following is not None:
                n = following - last - 1
                self.tell(text[last : last + 1], [*text[last + 1 : last + 1 + n], *wrong[last + 1 + n : last + 1 + run.k]], n)


def rounds(name, backend, wanted=slice(None), target=None):
    """What each wanted round of an oracle's last run drafts with caches of halves, what is right, and the error of logits.

    What llama.cpp drafted is right, whose caches were of floats, or what the reference drafts with caches of halves: these
    decide where two tokens are nearly as good. The logits are those of the last token, by layers that predict further tokens.
    The target is on a backend `target`, if that is given.
    """
    run = runs(name)[-1]
    logits = None if run.logits is None else run.logits[wanted]
    run = attrs.evolve(run, last=run.last[wanted], drafts=run.drafts[wanted], logits=logits)
    if name not in MTP:
        fed = run.last[-1]
        drafted = Rig(name, backend, loaded=HALVES, n=fed, target=target).replayed(run)
        for i, (found, of_floats) in enumerate(zip(drafted, run.drafts.tolist(), strict=True)):
            of_halves = Rig(name, "reference", loaded=HALVES, n=fed).replayed(run) if found != of_floats else ()
            yield found, next(itertools.islice(of_halves, i, None), of_floats), 0.0
        return
    told = Told(name, backend, cache_type="f16", target=target).replayed(run)
    for (found, logits), right, right_logits in zip(told, run.drafts.tolist(), run.logits, strict=True):
        yield found, right, nmse(logits, right_logits)
