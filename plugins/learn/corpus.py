"""The texts that a head is trained on: a user's own, or the model's answers to prompts."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.cli import Prompt, prompts_of_lines, read_text, say
from augury.errors import AuguryError, OptionError, UnsupportedError
from augury.interfaces import Progress
from augury.plugins.learn.hidden_states import STATES, HiddenStates, Piece, cut, read_rows
from augury.plugins.learn.recorded import Recorded

if TYPE_CHECKING:
    from augury import Engine, Running

_N_PIECE = 1024  # tokens of a text that are recorded together
_N_QUEUED = 4  # prompts for each slot that are asked at once: hardly one waits for the longest answer of others
_N_LEAST = 8  # tokens of a piece: in shorter ones there is nothing to draft


def read_texts(paths: Iterable[Path]) -> list[Prompt]:
    """The texts of files and folders; a `.jsonl` file has a text in each line. Other files than text are left out.

    Raises:
        AuguryError: A file cannot be read, or there is no text.
    """
    found = list[Prompt]()
    for path in paths:
        if not path.is_dir():
            found += _read(path)
            continue
        for inner in sorted(path.rglob("*")):
            if not inner.is_file() or any(part.startswith(".") for part in inner.relative_to(path).parts):
                continue
            try:
                found += _read(inner)
            except AuguryError as error:
                say(f"left out: {error}")
    return _checked(found, "-f")


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file of JSON lines. Raises AuguryError: it cannot be read, a line is no prompt, or there is none."""
    return _checked(prompts_of_lines(read_text(path), str(path)), "--prompts")


def digest(prompts: Iterable[Prompt], known: Mapping[str, Path]) -> str:
    """A hash of texts or prompts, and of what is `collected` of them, to know them again."""
    states = [(name, path.stat().st_size) for name, path in sorted(known.items())]
    content = json.dumps([*[each.arguments() for each in prompts], *states], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def most_tokens(prompts: Iterable[Prompt], max_tokens: int) -> int:
    """How many tokens texts have at most, or prompts with answers of `max_tokens`: a token is a byte or more."""
    return sum(len(json.dumps(each.arguments(), default=str)) + max_tokens for each in prompts)


def encoded(engine: Engine, texts: Iterable[Prompt]) -> Iterator[np.ndarray]:
    """Texts as tokens (T,) int32. Raises AuguryError: the model has no tokenizer or template for one, or no such token."""
    for text in texts:
        try:
            ids = _ids(engine, text)
        except OptionError as error:
            raise OptionError(f"{text.where}: {error}" if text.where else str(error)) from None
        if ids and not 0 <= min(ids) <= max(ids) < engine.info.n_vocab:
            raise OptionError(f"{text.where}: tokens from {min(ids)} to {max(ids)}, expected ids below {engine.info.n_vocab}")
        yield np.array(ids, np.int32)


def _ids(engine: Engine, text: Prompt) -> Sequence[int]:
    if text.messages is not None:
        if engine.chat_template is None:
            raise UnsupportedError(f"{text.where}: this model has no chat template; give texts in place of conversations")
        of_template = {"tools": text.params.get("tools"), "kwargs": text.params.get("chat_template_kwargs")}
        return engine.chat_template.encode(text.messages, add_generation_prompt=False, **of_template)
    if text.tokens is not None:
        return text.tokens
    if engine.tokenizer is None:
        raise UnsupportedError('this model has no tokenizer; give token ids, as JSON lines such as {"tokens": [1, 2, 3]}')
    return engine.tokenizer.encode(text.text or "")


def answered(
    engine: Engine,
    prompts: Sequence[Prompt],
    params: Mapping[str, Any],
    recorded: Recorded,
    is_enough: Callable[[int], bool],
    progress: Progress,
) -> list[np.ndarray]:
    """Prompts with the model's own answers, (T,) int32 each; those written earlier are taken up. What they are made of is kept.

    A prompt's own parameters go before `params`. No further prompt is answered once there are so many tokens that `is_enough`.
    """
    texts, made = recorded.answers(), list[np.ndarray]()
    asked: deque[tuple[Running, HiddenStates]] = deque()
    left, n_slots, n = iter(prompts[len(texts) :]), engine.config["n_slots"], sum(map(len, texts))
    while not is_enough(n):
        for prompt in islice(left, _N_QUEUED * n_slots - len(asked)):
            states = HiddenStates(recorded.sizes.columns, recorded.sizes.n_embd)
            own: dict[str, Any] = {**params, **prompt.arguments(), **states.asked, "echo": True, "cache_prompt": False}
            asked.append((engine.submit(**own), states))
        if not asked:
            break
        progress("answering", len(texts) + len(made), len(prompts))
        running, states = asked.popleft()
        result = running.result()
        made.append(np.array([*(result.prompt or ()), *result.tokens], np.int32))
        for piece in cut(made[-1], n_piece_of(engine)):
            if (rows := states.of(piece.text, piece.start)) is not None:
                recorded.add_rows(piece, rows)
        n += len(made[-1])
        if len(made) == n_slots:
            recorded.add_answers(made)
            texts, made = texts + made, []
    recorded.add_answers(made)
    return texts + made


def collected(paths: Iterable[Path]) -> dict[str, Path]:
    """The files of hidden states that a server has collected beside texts, by the names of the texts."""
    folders = {path if path.is_dir() else path.parent for path in paths}
    return {file.stem: file for folder in sorted(folders) for file in folder.glob(f"**/{STATES}/[!.]*.npy")}


def cut_texts(
    texts: Iterable[np.ndarray], n_piece: int, known: Mapping[str, Path], width: int
) -> tuple[list[list[Piece]], dict[str, tuple[Path, slice]]]:
    """Pieces of texts (T,) int32, of `n_piece` tokens at most, and where the hidden states of some are.

    Of a text whose hidden states are known (see `collected`) these tokens are taken, of others all. A piece of the latter is a
    text of its own.

    Returns:
        The pieces of each text, and by a piece's name a file and the rows in it.
    """
    wholes, files = list[Piece](), dict[str, Path]()
    for text in texts:
        rows = None if (path := known.get(name := Piece(text).name)) is None else read_rows(path, width)
        if path is not None and rows is not None and 0 < len(rows) < len(text):
            wholes.append(Piece(text, len(text) - 1 - len(rows)))
            files[name] = path
        else:
            wholes.append(Piece(text))
    cuts, places = list[list[Piece]](), dict[str, tuple[Path, slice]]()
    for whole, end in distinct(wholes):
        if (path := files.get(Piece(whole.text).name)) is None:
            cuts.append([Piece(whole.text[at : min(at + n_piece, end)]) for at in range(0, end, n_piece)])
        else:
            cuts.append(cut(whole.text[:end], n_piece, whole.start))
            for piece in cuts[-1]:
                places[piece.name] = path, slice(piece.start - whole.start, len(piece.text) - 1 - whole.start)
    return cuts, places


def distinct(wholes: Iterable[Piece]) -> list[tuple[Piece, int]]:
    """Texts, each from `Piece.start` on, and where they end without what longer texts have of them.

    What two have would be learnt from and held out at once: each turn of a conversation begins with those before.
    """
    found, after, covered = list[tuple[Piece, int]](), b"", 0
    for whole in sorted(wholes, key=lambda whole: whole.text.tobytes(), reverse=True):
        content = whole.text.tobytes()
        if not after.startswith(content):
            covered = len(whole.text)
        if whole.start < covered:
            found.append((whole, min(covered + 1, len(whole.text))))  # the last token's hidden states are the longer text's
        after, covered = content, min(covered, whole.start)
    return found


def n_piece_of(engine: Engine) -> int:
    """The tokens of a piece at most: none is longer than the context."""
    return min(_N_PIECE, engine.config["n_ctx"])


def mixed(texts: Sequence[Sequence[Piece]], seed: int, n_most: int) -> list[Piece]:
    """The pieces of texts, in random order of the texts, as many as have `n_most` tokens together.

    Raises:
        AuguryError: There is too little text to hold some of it out.
    """
    pieces, n = list[Piece](), 0
    for number in np.random.default_rng(seed).permutation(len(texts)):
        for piece in texts[number]:
            if len(piece.tokens) >= _N_LEAST and n + len(piece.tokens) <= n_most:
                pieces.append(piece)
                n += len(piece.tokens)
    if len(pieces) < 2:
        raise AuguryError(
            f"there are {n} tokens in {len(pieces)} pieces, expected at least 2, one of which is held out; give more text, or "
            "raise --disk"
        )
    return pieces


def _read(path: Path) -> list[Prompt]:
    text = read_text(path)
    if path.suffix in {".jsonl", ".ndjson"}:
        return prompts_of_lines(text, str(path))
    return [Prompt(text=text, where=str(path))] if text.strip() else []


def _checked(prompts: list[Prompt], flag: str) -> list[Prompt]:
    for prompt in prompts:
        prompt.arguments()
    if not prompts:
        raise AuguryError(f"{flag}: there is no text in it; name files with text, or folders of such")
    return prompts
