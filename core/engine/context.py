"""`EngineContext`: a model and its memory, and the one place where a pass is put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import attrs
import numpy as np

from augury.batch import Batch, PartInput, SlotInput
from augury.engine.adapters import Adapters, Scales
from augury.engine.mtp_states import MtpStates
from augury.engine.prompt_cache import PromptCache
from augury.errors import AuguryError
from augury.interfaces import CompiledPass, MemoryManager, Model, Opened
from augury.passes import Context, Pass
from augury.slot_states import join_parts, split_parts
from augury.types import NO_DRAFT, Draft, tokens_array

_NO_TOKENS = np.empty(0, np.int32)


class EngineContext(Context):
    """See `augury.passes.Context`."""

    def __init__(self, model: Model, memory: MemoryManager, mtp: MtpStates | None = None, lack_of_heads: str = "") -> None:
        self.model = model
        self.memory = memory
        self.mtp = mtp  # how far its layers that predict further tokens have come; None where it has none
        self.lack_of_heads = lack_of_heads  # why it has none
        # models that draft from its hidden states, in slots of the same numbers, which are saved with its own
        self.head_models: list[EngineContext] = []
        self.prompt_cache: PromptCache | None = None  # of texts that its slots held; None: there is none
        # that of the model whose hidden states it reads, in slots of the same numbers; None of others
        self.target: EngineContext | None = None
        self.adapters = Adapters()
        self._variants: dict[int, str] = {}  # by slot, of the states that it holds, see `Adapters.variant`
        self.info = model.info
        self.spec = model.state_spec
        self.is_asynchronous = model.is_asynchronous
        self.thread: ThreadPoolExecutor | None = None  # that passes begin on; None: they begin here
        self.is_busy = False  # whether a pass was begun whose logits are still to be read: another one would write over them
        self._has_sequence_state = self.spec.n_bytes_per_sequence > 0
        self.chain_rows = 0 if self._has_sequence_state else model.chain_rows  # such a state could not be cut back
        # by slot: mark, layers and tokens of its last pass of `forward_drafts`
        self._last_drafts: dict[int, tuple[int, int, np.ndarray]] = {}
        self._unknown: set[int] = set()  # slots of unknown contents
        self._restored: dict[int, tuple[int, int]] = {}  # by slot, since it was opened: restored states, replayed tokens

    @property
    def may_branch(self) -> bool:
        """Whether drafts may be trees."""
        return not (self._has_sequence_state and self.memory.replays_accepted)

    def close(self) -> None:
        """Close the model, and write what its prompt cache has yet to write."""
        if self.prompt_cache is not None:
            self.prompt_cache.close()
        if self.thread is not None:
            self.thread.shutdown()
        self.model.close()

    @property
    def trip_s(self) -> float:
        return self.model.trip_s

    @property
    def is_lost(self) -> bool:
        return self.model.is_lost

    def regain(self, wait_s: float, in_use: Collection[int] = ()) -> bool:
        """See `Model.regain`: all slots hold nothing then, and what those `in_use` should hold is not known."""
        if is_back := self.model.regain(wait_s):
            for slot in range(self.spec.n_slots):
                self.memory.truncate(slot, 0)
                self._forget_heads(slot)
            self._last_drafts.clear()
            self._unknown.update(in_use)
        return is_back

    def open(
        self, tokens: np.ndarray, *, may_reuse: bool = True, slot: int | None = None, scales: Scales | None = None
    ) -> Opened | None:
        """See `Context.open`; adapters count as `scales` says, or as they do by default."""
        adapters = self.adapters
        scales = adapters.scales if scales is None else scales
        variant = adapters.variant(scales) if self.target is None or slot is None else self.target.variant(slot)
        more = {"variant": variant} if variant else {}
        opened = self.memory.open(tokens, may_reuse=may_reuse, slot=slot, **more)
        if opened is not None:
            self._last_drafts.pop(opened.slot, None)
            self._unknown.discard(opened.slot)
            self._restored.pop(opened.slot, None)
            if self.variant(opened.slot) != variant:
                self._forget_heads(opened.slot)
            self._variants[opened.slot] = variant
            if adapters.of_slots is not None:
                adapters.of_slots[opened.slot] = scales
            if self.prompt_cache is not None and may_reuse:
                opened = self.prompt_cache.open(opened, tokens, variant)
        return opened

    def variant(self, slot: int) -> str:
        """The variant of the states that a slot holds; see `Adapters.variant`."""
        return self._variants.get(slot, "")

    def restored(self, slot: int) -> tuple[int, int]:
        """How many passes since a slot was opened set its state back first, and how many tokens they computed again."""
        return self._restored.get(slot, (0, 0))

    def room(self, slot: int) -> int:
        return self.memory.room(slot)

    def chunk(self, slot: int, n: int, n_left: int) -> int:
        """See `MemoryManager.chunk`."""
        return min(max(self.memory.chunk(slot, n, n_left), 1), n)

    def truncate(self, slot: int, n: int) -> int:
        return self.memory.truncate(slot, n)

    def end(self, slot: int) -> None:
        self.memory.end(slot)
        if self.mtp is not None and self.memory.room(slot) == self.spec.n_ctx:  # nothing of it is to be found again
            self._forget_heads(slot)
        if self.prompt_cache is not None:
            self.prompt_cache.keep(slot, self.variant(slot))

    def _forget_heads(self, slot: int) -> None:
        if self.mtp is not None:
            for part in self.info.heads:
                self.mtp.forget(part, slot, 0)

    def save(self, slot: int) -> bytes:
        """All that a slot holds, and its heads of it; a pass first repairs a state that has taken in rejected tokens."""
        if self.memory.replays_accepted:
            feed = self.prepare(slot, _NO_TOKENS)
            if feed.reservation.restore:
                self._forward_draft([feed], self._batch([feed]))
            self.commit(feed)
        return join_parts([self.memory.save(slot), *(head.save(slot) for head in self.head_models)])

    def restore(self, slot: int, data: bytes) -> int:
        """Restore saved contents to a free slot; see `MemoryManager.restore`.

        A head that was another one then, or is busy, has the text computed again for it.
        """
        held, *of_heads = split_parts(data) or [b""]
        n = self.memory.restore(slot, held)
        if self.adapters.loaded:
            self._variants[slot] = "unknown"
        for head, part in zip(self.head_models, of_heads, strict=False):
            with suppress(AuguryError):
                head.restore(slot, part)
        return n

    def prepare(
        self, slot: int, tokens: np.ndarray, rows: int | np.ndarray = 0, draft: Draft | None = None, n_more: int = 0
    ) -> SlotInput:
        if slot in self._unknown:
            raise AuguryError(f"a pass failed, and what slot {slot} holds since is not known; ask again")
        draft = NO_DRAFT if draft is None else draft
        reservation = self.memory.prepare(slot, len(tokens) + n_more, len(draft.tokens))
        return SlotInput(slot, reservation, tokens, rows, draft, n_more=n_more)

    def forward(self, feeds: Sequence[SlotInput], features: tuple[str, ...] = (), vocabulary: np.ndarray | None = None) -> Pass:
        batch = self._batch(feeds)
        if features or vocabulary is not None or feeds[0].hidden is not None:
            part = "inject" if feeds[0].hidden is not None and "inject" in self.info.parts else "main"
            batch = attrs.evolve(batch, features=features, vocabulary=vocabulary, hidden=_hidden(feeds), part=part)
        if n_more := feeds[0].n_more:
            return self.model.forward_chain(batch, 1 + n_more)
        return self.model.forward(batch)

    def compiled_pass(
        self, slot: int, room: int, k: int, features: tuple[str, ...] = (), *, is_given: bool = False
    ) -> CompiledPass | None:
        return self.model.compiled_pass(slot, room, k, self.info.n_vocab, features, is_given=is_given)

    def begin_on_thread(self) -> None:
        """Let passes begin on a thread, so that drafters can draft ahead while this machine or another one computes."""
        if not self.is_asynchronous:
            self.is_asynchronous, self.thread = True, ThreadPoolExecutor(1, "augury-pass")

    def commit(self, feed: SlotInput, path: Sequence[int] = ()) -> None:
        reservation, tokens, draft, places = feed.reservation, feed.tokens, feed.draft, None
        if len(path) or reservation.replay:
            drafted = draft.tokens.tolist()
            tokens = tokens_array([*reservation.replay, *tokens.tolist(), *[drafted[node] for node in path]])
        if draft.parents is not None:
            n = len(tokens) - len(path)
            places = tokens_array([*range(n), *[n + node for node in path]])
        self.memory.commit(feed.slot, reservation, tokens, places)

    def forward_drafts(self, written: Mapping[int, np.ndarray], n_layers: int, vocabulary: np.ndarray | None = None) -> Pass:
        """See `Target.forward`. The effect of a failed pass on accepted tokens or a recurrent state is unknown."""
        feeds = [self.prepare(slot, _NO_TOKENS) for slot in written] if self.memory.replays_accepted else []
        if feeds := [feed for feed in feeds if feed.reservation.replay]:
            self._forward_draft(feeds, self._batch(feeds))  # through all layers, because replayed tokens stay
            for feed in feeds:
                self.commit(feed)
        feeds = []
        for slot, tokens in written.items():
            feed = self.prepare(slot, _NO_TOKENS, 1, Draft(tokens))
            feeds.append(feed if self._has_sequence_state else self._not_yet_computed(feed, n_layers))
        logits = self._forward_draft(feeds, attrs.evolve(self._batch(feeds, (0, n_layers)), vocabulary=vocabulary))
        for feed in feeds:
            self.commit(feed)
            self._last_drafts[feed.slot] = (feed.reservation.mark, n_layers, written[feed.slot])
        return logits

    def forward_part(
        self, name: str, feeds: Sequence[PartInput], vocabulary: np.ndarray | None = None, n_more: int = 0
    ) -> Pass:
        """See `Target.forward_part`."""
        part = self.info.parts[name]
        sizes, seen, starts = [len(feed.tokens) for feed in feeds], list[SlotInput](), [feed.start for feed in feeds]
        ends = np.cumsum(sizes)
        if not part.caches:
            starts = [start - 1 for start in starts]
            seen = [self.prepare(feed.slot, _NO_TOKENS) for feed in feeds]  # accepted tokens come to their places first
        accepted = [(each.slot, *pair) for each in seen for pair in each.reservation.accepted]
        batch = Batch(
            np.concatenate([feed.tokens for feed in feeds]),
            np.repeat(np.array([feed.slot for feed in feeds], np.int32), sizes),
            np.concatenate([np.arange(start, start + n, dtype=np.int32) for start, n in zip(starts, sizes, strict=True)]),
            np.concatenate([np.arange(end - feed.n_rows, end, dtype=np.int32) for feed, end in zip(feeds, ends, strict=True)]),
            accepted=np.array(accepted, np.int32) if accepted else None,
            part=name,
            hidden=np.concatenate([feed.hidden for feed in feeds]),
            features=(part.output,) if any(feed.n_rows for feed in feeds) else (),  # nobody reads features of a prompt's tokens
            vocabulary=vocabulary,
            scales=self.adapters.of_slots,
        )
        marked = [] if self.mtp is None else [(self.mtp, feed) for feed in feeds]
        for marks, feed in marked:
            marks.forget(name, feed.slot, feed.start)
        passed = self._forward_draft(seen, batch, n_more)
        for each in seen:
            self.commit(each)
        for marks, feed in marked:
            marks.keep(name, feed.slot, feed.start, feed.tokens[: feed.n_certain])
        return passed

    def _forward_draft(self, feeds: Sequence[SlotInput], batch: Batch, n_more: int = 0) -> Pass:
        """A pass of a drafter, which reserves for its feeds; if it fails, the contents of these slots are unknown."""
        try:
            return self.model.forward_chain(batch, 1 + n_more) if n_more else self.model.forward(batch)
        except BaseException:
            self._unknown.update(feed.slot for feed in feeds if self._has_sequence_state or feed.reservation.accepted)
            raise

    def _not_yet_computed(self, feed: SlotInput, n_layers: int) -> SlotInput:
        """The part of a feed, a draft alone, that the slot's last pass over a draft did not compute."""
        mark, n_layers_then, known = self._last_drafts.pop(feed.slot, (-1, 0, _NO_TOKENS))
        if (mark, n_layers_then) != (feed.reservation.mark, n_layers) or feed.reservation.replay:
            return feed
        tokens = feed.draft.tokens
        n = min(len(known), len(tokens) - 1)
        differs = known[:n] != tokens[:n]
        n = int(differs.argmax()) if differs.any() else n
        return SlotInput(feed.slot, feed.reservation, feed.tokens, feed.rows, Draft(tokens[n:]), n)

    def _batch(self, feeds: Sequence[SlotInput], layers: tuple[int, int] | None = None) -> Batch:
        """One pass over everything."""
        tokens: list[int] = []  # NumPy's calls for each feed would take far longer
        slots: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        parents: list[int] = []
        accepted: list[tuple[int, ...]] = []
        is_chain = True
        for feed in feeds:
            reservation, draft, first = feed.reservation, feed.draft, len(tokens)
            if reservation.restore:
                n_restores, n_replayed = self.restored(feed.slot)
                self._restored[feed.slot] = n_restores + 1, n_replayed + len(reservation.replay)
            tokens += [*reservation.replay, *feed.tokens.tolist(), *draft.tokens.tolist()]
            m = len(tokens) - first
            slots += [feed.slot] * m
            start, n_chain = reservation.mark + feed.n_before, m
            if draft.parents is not None:
                is_chain, n_chain = False, m - len(draft.tokens)
            positions += range(start, start + n_chain)
            parents += [-1, *range(first, first + n_chain - 1)][:n_chain]
            for parent in () if draft.parents is None else draft.parents.tolist():
                above = first + n_chain + parent  # of -1, the history, the chain's last token
                positions.append(positions[above] + 1 if above >= first else start)
                parents.append(above if above >= first else -1)
            if isinstance(feed.rows, int):
                rows += range(first + m - feed.rows, first + m)
            else:
                rows += (feed.rows + (first + len(reservation.replay))).tolist()
            if reservation.accepted:
                accepted += [(feed.slot, *pair) for pair in reservation.accepted]
        columns = (
            tokens_array(tokens),
            tokens_array(slots),
            tokens_array(positions),
            tokens_array(rows),
            None if is_chain else tokens_array(parents),
            np.array(accepted, np.int32) if accepted else None,
            layers,
        )
        of_sequences = _of_sequences(feeds) if self._has_sequence_state else (None, None, None)
        return Batch(*columns, *of_sequences, scales=self.adapters.of_slots)


def _hidden(feeds: Sequence[SlotInput]) -> np.ndarray | None:
    """The rows that the feeds give in place of the embedding; the model refuses rows that do not fit the pass."""
    given = [feed.hidden for feed in feeds if feed.hidden is not None]
    return np.concatenate(given) if given else None


def _of_sequences(feeds: Sequence[SlotInput]) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """`is_drafted`, `restores` and `saves` of a pass."""
    is_drafted = np.concatenate([np.arange(feed.n_tokens) >= feed.n_tokens - len(feed.draft) for feed in feeds])
    keeps_aside = np.concatenate([np.full(feed.n_tokens, feed.reservation.keeps_aside) for feed in feeds])
    restores = np.array([feed.slot for feed in feeds if feed.reservation.restore], np.int32)
    saves = np.array([(feed.slot, feed.reservation.save) for feed in feeds if feed.reservation.save is not None], np.int32)
    aside = is_drafted & keeps_aside
    return aside if aside.any() else None, restores if len(restores) else None, saves if len(saves) else None
