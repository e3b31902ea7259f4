"""Chat templates: a conversation → the text that a model was trained to go on from.

Templates are Jinja2 programs that come with a model file, so they run as strangers' code, in a process of its own with limits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from augury.errors import CapacityError, ModelFileError, OptionError, UnsupportedError
from augury.renderer import Failure, Refusal, Renderer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from augury.tokenizer import Tokenizer

__all__ = ["ChatTemplate"]

_KEY = "tokenizer.chat_template"
_ADVICE = "give a prompt instead of messages, or use another conversion of the model"


class ChatTemplate:
    """A model's chat template.

    Args:
        source: the Jinja2 template.
        tokenizer: of the same model; its texts of bos and eos are known to the template as `bos_token` and `eos_token`.
        now: tells the time to templates that write the date.

    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hi"}])
    '<user>Hi'
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer | None = None,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now().astimezone(),
    ) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._now = now
        self._renderer = Renderer()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], tokenizer: Tokenizer | None) -> ChatTemplate | None:
        """The chat template of a model file, or None if it has none.

        Raises:
            ModelFileError: what should be the template is not text.
        """
        source = metadata.get(_KEY)
        if source is None:
            return None
        if not isinstance(source, str):
            raise ModelFileError(f"{_KEY} is of type {type(source).__name__}, expected a string")
        return cls(source, tokenizer)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Write a conversation as the model expects it.

        Args:
            messages: mappings with `role` ("system", "user", "assistant" or what else the model knows) and `content`, text.
            add_generation_prompt: end with what begins the model's answer. Where the last message is the assistant's, it is the
                answer's beginning: the text ends with it, and nothing closes it.

        Raises:
            OptionError: the messages are malformed, or the template refuses them, or to have the last one continued.
            ModelFileError: the template is broken, does what it may not, or takes too much time or memory.
            CapacityError: the process that renders cannot be started.
        """
        checked = _checked(messages)
        if not add_generation_prompt or checked[-1]["role"] != "assistant":
            return self._write(checked, add_generation_prompt=add_generation_prompt)
        mark = "ContinuesHere0"  # where the last message ends, in the text
        while any(mark in message["content"] for message in checked):
            mark += "0"
        before = self._write(checked[:-1], add_generation_prompt=False) if len(checked) > 1 else ""
        checked[-1]["content"] += mark
        text, *rest = self._write(checked, add_generation_prompt=False).split(mark)
        # some write a system prompt only where an answer is still to come
        if len(rest) != 1 or not text.startswith(before):
            raise OptionError(
                "the model's chat template does not write a last message of the assistant once, as it is, after the others, so "
                "it cannot be continued; end the messages with one of the user, or give a prompt instead"
            )
        return text

    def _write(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        names = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._special_text("bos"),
            "eos_token": self._special_text("eos"),
        }
        try:
            return self._renderer.render(self.source, names, self._now())
        except ValueError as error:
            raise OptionError(f"messages hold what JSON cannot write: {error}") from error
        except OSError as error:
            raise CapacityError(f"the process that renders chat templates cannot be started: {error}") from error
        except Refusal as error:
            raise OptionError(f"the model's chat template refuses these messages: {error}") from error
        except Failure as error:
            raise ModelFileError(f"{_KEY} {error}; {_ADVICE}") from error

    def close(self) -> None:
        """End the process that renders; the next rendering starts another. May be called twice."""
        self._renderer.close()

    def encode(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """Write a conversation and encode it: control tokens are read as such, and there is one bos where the model wants one.

        Raises:
            OptionError: as `render`.
            ModelFileError, CapacityError: as `render`.
            UnsupportedError: the model has no tokenizer.
        """
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise UnsupportedError("this model has no tokenizer, so a conversation cannot be encoded; give token ids instead")
        text = self.render(messages, add_generation_prompt=add_generation_prompt)
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        return ids

    def _special_text(self, name: Literal["bos", "eos"]) -> str:
        """The text of a special token, or nothing."""
        if self._tokenizer is None:
            return ""
        token = self._tokenizer.bos if name == "bos" else self._tokenizer.eos
        return "" if token is None else self._tokenizer.text(token)


def _checked(messages: object) -> list[dict[str, Any]]:
    """Check a conversation, and copy it so that a template cannot change the caller's."""
    expected = 'expected a list of {"role": ..., "content": ...}'
    if not isinstance(messages, list | tuple):
        raise OptionError(f"messages is {type(messages).__name__}, {expected}")
    if not messages:
        raise OptionError(f"messages is empty, {expected} with at least one message")
    checked = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise OptionError(f"messages[{index}] is {type(message).__name__}, {expected}")
        for key in ("role", "content"):
            if key not in message:
                raise OptionError(f"messages[{index}] has no {key!r}, {expected}")
            if not isinstance(message[key], str):
                hint = "; parts such as images are not read" if isinstance(message[key], list) else ""
                raise OptionError(f"messages[{index}][{key!r}] is {type(message[key]).__name__}, expected text{hint}")
        checked.append(dict(message))
    return checked
