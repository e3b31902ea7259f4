"""A toy model whose logits are a hash of everything its memory holds up to a token: any slip of memory or order shows."""

from __future__ import annotations

import hashlib

import numpy as np

from augury.engine import Engine
from augury.errors import CapacityError
from augury.interfaces import Drafter, Model, Progress
from augury.loader import Loader
from augury.logits import ArrayLogits
from augury.options import NoOptions
from augury.plugins.memory.contiguous import Contiguous
from augury.registry import Registry
from augury.speculation import Speculation
from augury.types import Allocation, Draft, ModelInfo, StateSpec


class ToyModel(Model):
    """Remembers tokens by (slot, position). With `period`, text tends to repeat, so that drafts are often right."""

    def __init__(self, *, n_vocab=16, n_slots=1, n_ctx=64, period=None):
        self.info = ModelInfo("toy", "toy", n_vocab, 4, 1, n_ctx, 0)
        self.state_spec = StateSpec(n_slots, n_ctx, 4)
        self.period = period
        self.cells = np.full((n_slots, n_ctx), -1, np.int64)
        self.batches = []
        self.on_forward = lambda: None  # called in every pass
        self.is_closed = False

    def forward(self, batch):
        self.batches.append(batch)
        self.on_forward()
        rows = []
        wanted = set(batch.rows.tolist())
        for i, (token, slot, position) in enumerate(zip(batch.tokens, batch.slots, batch.positions, strict=True)):
            if position >= self.state_spec.n_ctx:
                raise CapacityError("position outside the slot")
            self.cells[slot, position] = token
            if i in wanted:
                rows.append(self.logits(self.cells[slot, : position + 1]))
        return ArrayLogits(np.array(rows, np.float32).reshape(len(rows), self.info.n_vocab))

    def logits(self, tokens):
        """What follows `tokens`, all of which must be there."""
        assert (tokens >= 0).all(), "a position was never stored"
        digest = hashlib.sha256(tokens.astype(np.int32).tobytes()).digest()
        key = int.from_bytes(digest[:8], "little")
        values = np.random.Generator(np.random.Philox(key=key)).standard_normal(self.info.n_vocab)
        if self.period is not None and len(tokens) >= self.period and digest[8] > 40:
            values[tokens[-self.period]] += 8
        return values

    def memory_table(self):
        return [Allocation("cells", self.cells.nbytes)]

    def close(self):
        self.is_closed = True

    def plain(self, prompt, n, choose=np.argmax):
        """What plain decoding gives: n tokens after `prompt`."""
        tokens = list(prompt)
        for _ in range(n):
            tokens.append(int(choose(self.logits(np.array(tokens)))))
        return tokens[len(prompt) :]


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


def toy_engine(*, n_ctx=64, slots=1, drafter=None, n_max=8, n_min=0, tokenizer=None, observers=(None, None), **model):
    """An engine around a toy model. `drafter(model)` makes a drafter for each slot."""
    toy = ToyModel(n_slots=slots, n_ctx=n_ctx, **model)
    drafters = [drafter(toy) for _ in range(slots)] if drafter is not None else []
    name = drafters[0].name if drafters else "none"
    return Engine(
        toy,
        Contiguous(NoOptions(), toy.state_spec),
        drafters,
        Loader(Registry(), None, Progress()),
        tokenizer=tokenizer,
        template=None,
        speculation=Speculation(name, NoOptions(), n_max, n_min),
        config={},
        observers=observers,
    )
