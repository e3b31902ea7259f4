"""Texts that are continued: `Generation` has an engine's methods for requests, which any thread may call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, overload

import numpy as np

from augury.engine.adapters import Adapters
from augury.engine.channel import Channel
from augury.engine.params import Message, Prompt, Prompts, RequestParams
from augury.engine.request import Request, checked_tokens, is_several
from augury.engine.running import Running, Stream
from augury.engine.sequence import RunningSequence
from augury.engine.worker import Worker
from augury.errors import OptionError, UnsupportedError
from augury.loader import Loader
from augury.notebook import shown_progress
from augury.options import check_count
from augury.text.chat_template import ChatTemplate, prompt_ids
from augury.text.tokenizer import Tokenizer
from augury.types import Result

_OF_FIRST = ("on_prompt", "hidden_states", "on_hidden_states")  # of several answers to a prompt


class Generation(ABC):
    """Requests, which write texts."""

    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    config: Mapping[str, Any]
    _loader: Loader
    _make_request: Callable[..., Request]
    adapters: Adapters
    _n_ctx: int
    _n_vocab: int
    _sequence: Callable[[Request, Channel], RunningSequence]
    _worker: Worker

    @abstractmethod
    def _with_receipt(self, params: dict[str, Any]) -> dict[str, Any]:
        """A request's parameters with what its receipt begins with."""

    @overload
    def submit(self, prompt: Prompt | None = None, *, n: None = None, **params: Unpack[RequestParams]) -> Running: ...

    @overload
    def submit(self, prompt: Prompt | None = None, *, n: int, **params: Unpack[RequestParams]) -> list[Running]: ...

    def submit(
        self, prompt: Prompt | None = None, *, n: int | None = None, **params: Unpack[RequestParams]
    ) -> Running | list[Running]:
        """Start a request and return at once; beyond the slots it waits for its turn.

        Args:
            prompt: A text, token ids, or what `ChatTemplate.prompt` wrote.
            n: How many answers, as a list, with the seeds `seed`, `seed + 1`, ...; the prompt is processed once.
            **params: See `augury.RequestParams`; `messages` in place of a prompt.

        Raises OptionError: an argument is unknown or out of range. PromptTooLongError: the prompt does not fit into the
        context. QueueFullError: `max_queue` requests wait already. AuguryError: the engine is closed, or was loaded before a
        fork.
        """
        self._worker.check_queue()  # before a template is rendered for nothing
        given: dict[str, Any] = {**params}
        messages, tools, kwargs = (given.pop(name, None) for name in ("messages", "tools", "chat_template_kwargs"))
        given = self._with_receipt(given)
        tokens = self._tokens(prompt, messages, tools=tools, kwargs=kwargs)
        runnings, text, prompt_owner = list[Running](), prompt if isinstance(prompt, str) else None, None
        try:
            for request in self._requests(tokens, given, 1 if n is None else check_count("n", n), text):
                channel = Channel()
                runnings.append(Running(channel, self._worker, request.id))
                sequence = self._sequence(request, channel)
                sequence.prompt_owner, prompt_owner = prompt_owner, prompt_owner or sequence
                self._worker.submit(sequence)
        except BaseException:  # Ctrl-C among others: nobody will hold the requests
            for running in runnings:
                running.cancel()
            raise
        return runnings[0] if n is None else runnings

    def _requests(self, tokens: np.ndarray, params: dict[str, Any], n: int, text: str | None) -> list[Request]:
        """Requests for n answers to one prompt: a seed that is given is followed by the next ones."""
        first: Request = self._make_request(tokens, params, text=text)
        seed, later = first.sampling.seed, params | dict.fromkeys(_OF_FIRST)  # the prompt is processed for it
        seeds = [{} if seed is None else {"seed": (seed + i) % 2**64} for i in range(1, n)]
        return [first, *(self._make_request(tokens, later | each, text=text) for each in seeds)]

    def _tokens(self, prompt: Any, messages: Any, *, tools: Any = None, kwargs: Any = None) -> np.ndarray:
        why = self._loader.no_tokenizer.get(self.config.get("model", ""))
        ids = prompt_ids(
            prompt, messages, self.tokenizer, self.chat_template, tools=tools, kwargs=kwargs, why=why, n_ctx=self._n_ctx
        )
        return checked_tokens(ids, self._n_vocab, n_ctx=self._n_ctx)

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text, as a prompt has them; it may be longer than the context.

        Raises OptionError: it is no text. UnsupportedError: the model has no tokenizer.
        """
        if not isinstance(text, str):
            raise OptionError(f"text is {text!r:.80}, expected a str")
        why = self._loader.no_tokenizer.get(self.config.get("model", ""))
        ids: list[int] = prompt_ids(text, None, self.tokenizer, None, tools=None, kwargs=None, why=why)
        return ids

    def detokenize(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids, without control tokens unless `skip_special` is False.

        Raises AuguryError: the model has no tokenizer, or a token is outside its vocabulary.
        """
        if self.tokenizer is None:
            raise UnsupportedError("the model has no tokenizer, so its tokens have no text")
        return self.tokenizer.decode(tokens, skip_special=skip_special)

    @overload
    def generate(self, prompt: Prompts, *, n: None = None, **params: Unpack[RequestParams]) -> list[Result]: ...

    @overload
    def generate(self, prompt: Prompt | None = None, *, n: None = None, **params: Unpack[RequestParams]) -> Result: ...

    @overload
    def generate(self, prompt: Prompts, *, n: int, **params: Unpack[RequestParams]) -> list[list[Result]]: ...

    @overload
    def generate(self, prompt: Prompt | None = None, *, n: int, **params: Unpack[RequestParams]) -> list[Result]: ...

    def generate(self, prompt: Any = None, *, n: int | None = None, **params: Unpack[RequestParams]) -> Any:
        """Answer one prompt, or several at once: a list of texts or of token lists gives a list of results in its order.

        Arguments and errors are those of `submit`; with `n` there is a list of results for each prompt.
        """
        self._worker.check_may_wait()
        several = params.get("messages") is None and is_several(prompt)
        runnings: list[Running] = []
        progress = shown_progress()
        try:
            for each in prompt if several else [prompt]:
                runnings += self.submit(each, n=1 if n is None else n, **params)
            results: list[Any] = []
            for running in runnings:
                progress("answers", len(results), len(runnings))
                results.append(running.result())
            progress("answers", len(results), len(runnings))
        except BaseException:
            for running in runnings:
                running.cancel()
            raise
        if n is not None:
            results = [results[i : i + n] for i in range(0, len(results), n)]
        return results if several else results[0]

    @overload
    def chat(self, messages: Sequence[Message], /, *, n: None = None, **params: Unpack[RequestParams]) -> Result: ...

    @overload
    def chat(self, messages: Sequence[Message], /, *, n: int, **params: Unpack[RequestParams]) -> list[Result]: ...

    def chat(self, messages: Sequence[Message], /, *, n: int | None = None, **params: Unpack[RequestParams]) -> Any:
        """`generate(messages=messages)`: the next answer of a conversation."""
        params["messages"] = messages
        return self.generate(**params) if n is None else self.generate(n=n, **params)

    def stream(self, prompt: Prompt | None = None, **params: Unpack[RequestParams]) -> Stream:
        """Answer token by token; an iterator that is given up cancels the request. Arguments as in `submit`, without `n`."""
        if "n" in params:
            raise OptionError("a stream is one answer; submit(n=...) gives several, each of which can be iterated")
        return iter(self.submit(prompt, **params))

    def astream(self, prompt: Prompt | None = None, **params: Unpack[RequestParams]) -> Stream:
        """`stream` for `async for`: the event loop goes on meanwhile. For whole results: `await engine.submit(...)`.

        A slow reader holds up no other request. A task that is cancelled cancels its request.
        """
        return self.stream(prompt, **params)
