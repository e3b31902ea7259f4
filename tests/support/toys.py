"""What drafters are given in tests, one that drafts by a script, and an engine around the toy model that augury ships."""

from __future__ import annotations

import threading

import numpy as np

from augury.engine.context import EngineContext
from augury.interfaces import Drafter, Progress
from augury.loader import Loader
from augury.options import NoOptions
from augury.plugins.memory.contiguous import Contiguous
from augury.registry import Registry
from augury.speculation.config import Member, Speculation
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import DrafterProfile
from augury.speculation.verification import RULES
from augury.testing.drafter.engines import StrictEngine
from augury.testing.toy_model import ToyModel
from augury.types import Draft


def as_history(tokens):
    """Tokens as a drafter sees them."""
    history = np.array(tokens, dtype=np.int32)
    history.flags.writeable = False
    return history


def drafted(drafter, tokens, limit=10**6):
    """What a drafter drafts after a text."""
    return drafter.draft(as_history(tokens), limit).tokens.tolist()


class ScriptedDrafter(Drafter):
    """Drafts by a script of (right tokens, wrong tokens) per call, and records what it is told.

    Needs the toy model to know what is right; `wrong` tokens follow the right ones.
    """

    name = "scripted"

    def __init__(self, model, script=((2, 1), (0, 0), (3, 0), (0, 2))):
        super().__init__(None, None)
        self.model = model
        self.script = script
        self.events = []
        self.n_calls = 0
        self.past = None

    def begin(self, history, n_reused):
        self.events.append(("begin", len(history), n_reused))
        self.past = history.copy()

    def draft(self, history, limit):
        assert not history.flags.writeable
        assert limit >= 1
        assert np.array_equal(history, self.past), "the history must grow by what accept was told alone"
        self.events.append(("draft", len(history), limit))
        n_right, n_wrong = self.script[self.n_calls % len(self.script)]
        self.n_calls += 1
        tokens = history.tolist()
        for i in range(n_right + n_wrong):
            best = int(np.argmax(self.model.logits(np.array(tokens))))
            tokens.append(best if i < n_right else (best + 1) % self.model.info.n_vocab)
        return Draft(tokens[len(history) :])

    def accept(self, history, verdict):
        assert np.array_equal(history[: len(self.past)], self.past)
        assert len(history) == len(self.past) + verdict.n_emitted
        self.events.append(("accept", verdict))
        self.past = history.copy()

    def end(self):
        self.events.append(("end",))
        self.past = None

    def close(self):
        self.events.append(("close",))


class Gate:
    """Holds up the passes of an engine's toy model until it is opened; `has_begun` tells that the first is there."""

    def __init__(self, engine):
        self.has_begun, self._is_open = threading.Event(), threading.Event()
        self.open, self.is_open = self._is_open.set, self._is_open.is_set
        engine._worker._loop._context.model.on_forward = self.wait

    def wait(self):
        """Stay in a pass until it is opened."""
        self.has_begun.set()
        assert self._is_open.wait(60)


def toy_engine(
    *,
    n_ctx=64,
    slots=1,
    drafter=None,
    n_max=8,
    n_min=0,
    tokenizer=None,
    observers=(None, None),
    planner=None,
    rule=RULES["match"],
    max_queue=None,
    kind=StrictEngine,
    memory=Contiguous,
    timeout_s=30.0,
    registry=None,
    target=ToyModel,
    **model,
):
    """An engine around a toy model. `drafter(model)` makes a drafter for each slot; several such are a chain.

    Unless `kind` is `Engine`, which forgives, none of them may fail.
    """
    toy = target(n_slots=slots, n_ctx=n_ctx, **model)
    makers = [drafter] if callable(drafter) else drafter or []
    chains = [[make(toy) for make in makers] for _ in range(slots)]
    members = tuple(Member(each.name, each.options or NoOptions()) for each in chains[0])
    for profile, each in zip(planner.profiles, chains[0], strict=True) if planner else ():
        profile.name, profile.n_top, profile.features = each.name, each.traits.n_top, each.traits.features
    return kind(
        EngineContext(toy, memory(NoOptions(), toy.state_spec, toy)),
        chains,
        Loader(registry or Registry(), None, Progress()),
        tokenizer=tokenizer,
        template=None,
        speculation=Speculation(
            members,
            n_max,
            min(n_min, n_max),
            is_fixed=planner is None,
            rule=rule,
            timeout_s=timeout_s,
        ),
        planner=planner,
        config={},
        observers=observers,
        max_queue=max_queue,
    )


def planner_of(costs, *is_costly, is_certain=(), kind=DraftPlanner, **how):
    """A planner for drafters of these kinds, whose names `toy_engine` adds."""
    certain = is_certain or [False] * len(is_costly)
    return kind(costs, [DrafterProfile("", *facts) for facts in zip(is_costly, certain, strict=True)], **how)
