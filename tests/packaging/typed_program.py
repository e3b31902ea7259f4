"""A user's program: mypy accepts it, and each error that a comment names is one."""

from collections.abc import Sequence
from typing import Any, Unpack, assert_type

import numpy as np
from attrs import frozen

from augury import Draft, Drafter, Engine, RequestParams, Result, Running, Token, option
from augury.drafter import Ask
from augury.model import Attention, Linear, Multiply
from augury.plugin import align_rows


def ask(engine: Engine, texts: list[str], ids: list[list[int]], **params: Unpack[RequestParams]) -> None:
    assert_type(engine.generate("a", temperature=0.5, max_tokens=3, stop=None), Result)
    assert_type(engine.generate([1, 2, 3], **params), Result)
    assert_type(engine.generate(messages=[{"role": "user", "content": "a"}]), Result)
    assert_type(engine.generate("a", n=2), list[Result])
    assert_type(engine.generate(texts), list[Result])
    assert_type(engine.generate(ids, n=2), list[list[Result]])
    assert_type(engine.chat([{"role": "user", "content": "a"}], seed=1), Result)
    assert_type(engine.chat([{"role": "user", "content": "a"}], n=2), list[Result])
    assert_type(engine.submit("a"), Running)
    assert_type(engine.submit("a", n=2), list[Running])
    for piece in engine.stream("a", **params):
        assert_type(piece, Token)


def build(ask: Ask, attention: Attention, multiply: Multiply) -> None:
    assert_type(ask.limit, int)
    assert_type(attention.o, Linear)
    assert_type(multiply.linears, tuple[Linear, ...])
    assert_type(align_rows([["a", "b"]]), list[str])


async def ask_asynchronously(engine: Engine) -> None:
    assert_type(await engine.submit("a"), Result)
    async for piece in engine.astream("a"):
        assert_type(piece, Token)


def ask_wrongly(engine: Engine, history: Sequence[Any]) -> None:
    engine.generate("a", max_tokns=3)  # type: ignore[call-overload]
    engine.generate("a", temperature="hot")  # type: ignore[call-overload]
    engine.submit("a", max_tokns=3)  # type: ignore[call-overload]
    engine.submit("a", temperature="hot")  # type: ignore[call-overload]
    engine.chat(history, max_tokns=3)  # type: ignore[call-overload]
    engine.stream("a", max_tokns=3)  # type: ignore[call-arg]
    engine.stream("a", temperature="hot")  # type: ignore[arg-type]
    engine.stream("a", n=2)  # type: ignore[call-arg]
    engine.astream("a", max_tokns=3)  # type: ignore[call-arg]
    engine.astream("a", temperature="hot")  # type: ignore[arg-type]


@frozen
class RepeatOptions:
    length: int = option(4, help="length of a draft")


class Repeat(Drafter):
    name = "repeat"
    options_class = RepeatOptions
    options: RepeatOptions

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        assert_type(self.options.length, int)
        length = self.options.lenght  # type: ignore[attr-defined]
        return Draft([history[-1]] * min(limit, length))
