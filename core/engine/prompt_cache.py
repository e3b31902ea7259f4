"""`PromptCache`: states of texts that perhaps no slot holds any longer, by their tokens, in memory and in files.

A text is kept in blocks of 256 tokens, each named by a digest of all tokens up to its end: texts that begin alike share blocks,
and a longer text adds those of its own tokens alone. The rest of a text is a *tail*, which nothing follows::

    text     0 ... 255 | 256 ... 511 | 512 ... 700
             block       block         tail

A prompt goes on after the blocks that begin it, and after the tokens that it shares with one more. A recurrent state cannot be
cut: there each tail has a copy of it, and a prompt goes on after a whole tail. What is cheap to compute again for its size, and
was not used for long, gives way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter
from time import time

import numpy as np
from attrs import evolve

from augury.engine.prompt_files import KeptBlock, PromptFiles, block_name, blocks_of
from augury.errors import AuguryError, LostDeviceError, ModelFileError
from augury.guard import on_error, warn
from augury.interfaces import MemoryManager, Opened
from augury.log import get_logger
from augury.slot_states import join_parts, split_parts

_BLOCK = 256
_N_COPIES = 2  # restored states of a sequence: a drafter may want to compute the last token of a prompt again
_DEEPER_S = 1e-3  # how much longer ago a block counts as used than the one before it: of a text, the end gives way first


class PromptCache:
    """Keeps what a model's slots hold when requests end, and restores it to any slot. The engine's thread alone calls it."""

    def __init__(self, memory: MemoryManager, n_bytes: int, files: PromptFiles | None = None) -> None:
        """Keep so many bytes in memory at most, and files if there are to be some."""
        self._memory, self._n_most, self._files = memory, n_bytes, files
        self._is_recurrent = memory.spec.n_bytes_per_sequence > 0
        self._blocks: dict[str, KeptBlock] = {}
        self._children: defaultdict[str, dict[str, KeptBlock]] = defaultdict(dict)  # of a block, by name
        self._n_held = 0  # bytes in memory
        self._root = ""  # the parent of the first blocks of texts of the variant in hand
        self._is_able = True  # whether the manager and the backend can save slots; known once they were asked to
        self._log = get_logger("augury.engine.prompt_cache")

    def close(self) -> None:
        """Write what is still to be written."""
        if self._files is not None:
            self._files.close()

    def open(self, opened: Opened, prompt: np.ndarray, variant: str = "") -> Opened:
        """A slot was given to a prompt (n,) int32: let it hold more of that, if more is kept of this variant."""
        if not self._is_able:
            return opened
        self._root = _root_of(variant)
        with on_error(self._give_up):
            return self._restore(opened, prompt[:-1])  # the last token's logits are needed
        return opened

    def keep(self, slot: int, variant: str = "") -> None:
        """A slot was freed: keep what it holds, in memory at once, in files a little later."""
        self._root = _root_of(variant)
        if self._is_able:
            with on_error(self._give_up):
                self._keep(slot)

    # To a slot

    def _restore(self, opened: Opened, prompt: np.ndarray) -> Opened:
        self._look_at_files()
        n, path, tails = self._longest(prompt)
        self._use(path)
        if n <= opened.n_reused:
            return opened
        memory, slot, done, copies = self._memory, opened.slot, -1, dict[int, bytes]()
        first, block = len(memory.text(slot)) // _BLOCK, path[0]
        try:
            for i, block in enumerate(path[first:], first):
                memory.states.restore(slot, self._parts(block)[1])
                done = min(i * _BLOCK + block.n, n)
            for at, block in tails:  # each of them, because that checks it; the last one stays
                memory.states.restore(slot, state := self._parts(block)[2])
                copies[at] = state
        except LostDeviceError:  # which the pass finds out
            pass
        except AuguryError as error:
            self._dismiss(block, error)
        if done < 0:  # nothing was changed
            return opened
        done = max(copies, default=0) if self._is_recurrent else done
        memory.adopt(slot, prompt[:done], copies)
        return evolve(opened, n_reused=done, n_shared=max(opened.n_shared, n))

    def _longest(self, prompt: np.ndarray) -> tuple[int, list[KeptBlock], list[tuple[int, KeptBlock]]]:
        """How much of a prompt is kept, in which blocks, and how much of it the last tails with a state have, with these."""
        blocks = list(self._whole_blocks(prompt))
        if not self._is_recurrent:
            n, last = max(self._beginnings(prompt, blocks), key=itemgetter(0), default=(0, None))
            return len(blocks) * _BLOCK + n, blocks if last is None else [*blocks, last], []
        ends = list[tuple[int, KeptBlock]]()
        for depth in range(len(blocks), -1, -1):
            found = [(depth * _BLOCK + n, tail) for n, tail in self._beginnings(prompt, blocks[:depth])]
            ends += sorted(found, key=itemgetter(0), reverse=True)
            if len(ends) >= _N_COPIES:
                break
        if not ends:
            return 0, [], []
        n, last = ends[0]
        return n, [*blocks[: n // _BLOCK], last], ends[_N_COPIES - 1 :: -1]

    def _whole_blocks(self, prompt: np.ndarray) -> Iterator[KeptBlock]:
        name = self._root
        for start in range(0, len(prompt) - _BLOCK + 1, _BLOCK):
            tokens = prompt[start : start + _BLOCK]
            name = block_name(name, tokens.tobytes())
            if name not in self._blocks:
                return
            yield self._blocks[name]

    def _beginnings(self, prompt: np.ndarray, blocks: list[KeptBlock]) -> Iterator[tuple[int, KeptBlock]]:
        """What follows some blocks of a prompt: blocks that it can go on in or after, and how many of their tokens it has."""
        parent, rest = blocks[-1].name if blocks else self._root, prompt[len(blocks) * _BLOCK :]
        for block in tuple(self._children.get(parent, {}).values()):
            if self._is_recurrent and (block.n == _BLOCK or block.n > len(rest)):
                continue
            n = _n_common(self._tokens(block), rest)
            if n == block.n if self._is_recurrent else n:
                yield n, block

    def _parts(self, block: KeptBlock) -> list[bytes]:
        """A block's tokens, the states of their positions, and that of the sequence. Raises ModelFileError: its file is bad."""
        if block.data is not None:
            return split_parts(block.data)
        assert self._files is not None
        return self._files.read(block)

    def _tokens(self, block: KeptBlock) -> np.ndarray:
        if block.tokens is None:
            assert self._files is not None
            try:
                block.tokens = self._files.read_tokens(block)
            except ModelFileError as error:
                self._dismiss(block, error)
                return np.empty(0, np.int32)
        return block.tokens

    # From a slot

    def _keep(self, slot: int) -> None:
        """Keep the whole blocks of a slot's text, and its end; of a recurrent state a tail for each copy of it."""
        self._look_at_files()
        text = self._memory.text(slot).copy()
        copies = self._memory.copies(slot) if self._is_recurrent else {len(text): b""}
        path, ends = list[KeptBlock](), sorted((n, state) for n, state in copies.items() if 0 < n <= len(text))
        for start in range(0, max((n for n, _ in ends), default=0) - _BLOCK + 1, _BLOCK):
            path.append(self._keep_block(slot, text, path, start + _BLOCK, _BLOCK))
        self._use(path)
        before = 0
        for n, state in ends:
            if state or n % _BLOCK:
                above = path[: n // _BLOCK]
                self._use([*above, self._keep_block(slot, text, above, n, n - before if state else n % _BLOCK, state)])
            before = n

    def _keep_block(
        self, slot: int, text: np.ndarray, above: list[KeptBlock], stop: int, cost: int, state: bytes = b""
    ) -> KeptBlock:
        """Keep the tokens of a text up to one, after the blocks above, unless they are kept; `state` is there of a tail."""
        parent, start = above[-1].name if above else self._root, len(above) * _BLOCK
        tokens = text[start:stop]
        name = block_name(parent, tokens.tobytes())
        if name in self._blocks:
            return self._blocks[name]
        for other in () if self._is_recurrent else tuple(self._children.get(parent, {}).values()):
            n = _n_common(self._tokens(other), tokens)
            if n == len(tokens):  # it has them all
                return other
            if n == other.n:  # this one will have them all
                self._forget(other, is_file=True)
        data = join_parts([tokens.tobytes(), self._memory.states.save(slot, stop, start), state])
        block = KeptBlock(name, parent, len(tokens), cost, len(data), time(), tokens, data)
        self._insert(block)
        self._n_held += len(data)
        if self._files is not None:
            self._files.write(block, data)
        self._make_room(block)
        return block

    # All that is kept

    def _give_up(self, error: BaseException) -> None:
        self._is_able = False
        warn("augury.engine.prompt_cache", "prompts are no longer kept", error)

    def _look_at_files(self) -> None:
        there = None if self._files is None else self._files.listing()
        if there is None:
            return
        for block in blocks_of(path for name, path in there.items() if name not in self._blocks):
            self._insert(block)
        for block in [each for name, each in self._blocks.items() if each.data is None and name not in there]:
            self._forget(block)

    def _use(self, path: list[KeptBlock]) -> None:
        now = time()
        for depth, block in enumerate(path):
            block.used = now - depth * _DEEPER_S
            if self._files is not None:
                self._files.touch(block)

    def _make_room(self, newest: KeptBlock) -> None:
        now = time()
        while self._n_held > self._n_most:
            held = [each for each in self._blocks.values() if each.data is not None]
            least = min(held, key=lambda each: (each is newest and len(held) > 1, each.worth(now)))
            self._n_held -= least.n_bytes
            least.data = None
            if self._files is None or not self._files.has(least):
                self._forget(least)

    def _insert(self, block: KeptBlock) -> None:
        self._blocks[block.name] = self._children[block.parent][block.name] = block

    def _dismiss(self, block: KeptBlock, error: AuguryError) -> None:
        """Say why a block cannot be used, unless its file is gone, and forget it, its file included if that is bad."""
        if block.data is not None or self._files is None or self._files.has(block):
            self._log.warning("a kept prompt cannot be used, and is computed again", reason=str(error))
        self._forget(block, is_file=isinstance(error, ModelFileError))

    def _forget(self, block: KeptBlock, *, is_file: bool = False) -> None:
        self._n_held -= 0 if block.data is None else block.n_bytes
        self._blocks.pop(block.name, None)
        siblings = self._children[block.parent]
        siblings.pop(block.name, None)
        if not siblings:
            del self._children[block.parent]
        if is_file and self._files is not None:
            self._files.remove(block)


def _root_of(variant: str) -> str:
    """What stands for the block before the first of a text; see `Adapters.variant`."""
    return block_name("", variant.encode()) if variant else ""


def _n_common(one: np.ndarray, other: np.ndarray) -> int:
    n = min(len(one), len(other))
    differs = one[:n] != other[:n]
    return int(differs.argmax()) if differs.any() else n
