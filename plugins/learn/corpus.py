"""The texts that a head is trained on: a user's own, or the model's answers to prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.cli import Prompt, prompts_of_lines, read_text, say
from augury.errors import AuguryError, OptionError, UnsupportedError
from augury.interfaces import Progress
from augury.plugins.learn.recorded import Recorded

if TYPE_CHECKING:
    from augury import Engine

_N_PIECE = 1024  # tokens of a text that are recorded together
_N_QUEUED = 8  # prompts for each slot that are asked at once: none waits for the longest answer of others but at the end
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
        for inner in sorted(each for each in path.rglob("*") if each.is_file() and not each.name.startswith(".")):
            try:
                found += _read(inner)
            except AuguryError as error:
                say(f"left out: {error}")
    return _checked(found, "-f")


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file of JSON lines.

    Raises:
        AuguryError: It cannot be read, a line is no prompt, or there is none.
    """
    return _checked(prompts_of_lines(read_text(path), str(path)), "--prompts")


def digest(prompts: Iterable[Prompt]) -> str:
    """A hash of texts or prompts, to know them again."""
    content = json.dumps([each.arguments() for each in prompts], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def most_tokens(prompts: Iterable[Prompt], max_tokens: int) -> int:
    """How many tokens texts have at most, or prompts with answers of `max_tokens`: a token is a byte or more."""
    return sum(len(json.dumps(each.arguments(), default=str)) + max_tokens for each in prompts)


def encoded(engine: Engine, texts: Iterable[Prompt]) -> Iterator[np.ndarray]:
    """Texts as tokens (T,) int32.

    Raises:
        AuguryError: The model has no tokenizer or template for one, or no such token.
    """
    for text in texts:
        if text.messages is not None:
            if engine.chat_template is None:
                raise UnsupportedError(f"{text.where}: this model has no chat template; give texts in place of conversations")
            of_template = {"tools": text.params.get("tools"), "kwargs": text.params.get("chat_template_kwargs")}
            ids: Sequence[int] = engine.chat_template.encode(text.messages, add_generation_prompt=False, **of_template)
        elif text.tokens is not None:
            ids = text.tokens
        elif engine.tokenizer is None:
            raise UnsupportedError('this model has no tokenizer; give token ids, as JSON lines such as {"tokens": [1, 2, 3]}')
        else:
            ids = engine.tokenizer.encode(text.text or "")
        if ids and not 0 <= min(ids) <= max(ids) < engine.info.n_vocab:
            raise OptionError(f"{text.where}: tokens from {min(ids)} to {max(ids)}, expected ids below {engine.info.n_vocab}")
        yield np.array(ids, np.int32)


def answered(
    engine: Engine, prompts: Sequence[Prompt], params: Mapping[str, Any], recorded: Recorded, n_most: int, progress: Progress
) -> list[np.ndarray]:
    """Prompts with the model's own answers, (T,) int32 each; those written earlier are taken up.

    Args:
        engine: Of the model.
        prompts: In order.
        params: How to sample; a prompt's own come first.
        recorded: Keeps answers.
        n_most: No prompt is answered once there are so many tokens.
        progress: Told how many are answered.
    """
    texts, n_asked = recorded.answers(), _N_QUEUED * engine.config["n_slots"]
    while len(texts) < len(prompts) and sum(map(len, texts)) < n_most:
        progress("answering", len(texts), len(prompts))
        asked = prompts[len(texts) : len(texts) + n_asked]
        runnings = [engine.submit(**{**params, **each.arguments(), "echo": True}) for each in asked]
        results = [running.result() for running in runnings]
        made = [np.array([*(result.prompt or ()), *result.tokens], np.int32) for result in results]
        recorded.add_answers(made)
        texts += made
    return texts


def pieces_of(texts: Sequence[np.ndarray], seed: int, n_most: int, n_ctx: int) -> list[np.ndarray]:
    """Pieces (T,) int32 of texts, in random order of the texts, as many as have `n_most` tokens together.

    None is longer than a context of `n_ctx` tokens. A text that another one begins with is left out, or it would be learnt from
    and held out at once: each turn of a conversation begins with those before.

    Raises:
        AuguryError: There is too little text to hold some of it out.
    """
    rising = sorted((text.tobytes(), number) for number, text in enumerate(texts))
    repeated = {number for (content, number), (after, _) in pairwise(rising) if after.startswith(content)}
    texts = [text for number, text in enumerate(texts) if number not in repeated]
    pieces, n, n_piece = list[np.ndarray](), 0, min(_N_PIECE, n_ctx)
    for number in np.random.default_rng(seed).permutation(len(texts)):
        for start in range(0, len(texts[number]), n_piece):
            piece = texts[number][start : start + n_piece]
            if len(piece) >= _N_LEAST and n + len(piece) <= n_most:
                pieces.append(piece)
                n += len(piece)
    if len(pieces) < 2:
        raise AuguryError(
            f"there are {n} tokens in {len(pieces)} pieces of at most {n_piece}, expected at least 2 pieces, one of which is "
            "held out; give more text, or raise --disk"
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
