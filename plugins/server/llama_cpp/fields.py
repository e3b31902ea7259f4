"""`/completion`'s fields, as llama.cpp's server names them, as arguments of `Engine.submit`."""

from __future__ import annotations

from sys import float_info
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from augury.errors import OptionError
from augury.plugins.server.fields import EngineFields
from augury.text.tokenizer import Tokenizer

_MOST_OF_BIAS = 1000  # characters of a text whose tokens have a bias
_Bias = Annotated[list[int | float | bool | str], Field(min_length=2, max_length=2)]


class CompletionFields(EngineFields):
    """The fields of a completion beside its prompt."""

    temperature: float | None = Field(None, le=1e6, description="0 and all below is greedy, as in llama.cpp")
    stream: bool = False
    n_predict: int | None = Field(
        None, ge=-2, validation_alias=AliasChoices("n_predict", "max_tokens", "max_completion_tokens")
    )
    n_cmpl: int = Field(1, ge=1, le=128, validation_alias=AliasChoices("n_cmpl", "n"))
    n_probs: int = Field(0, ge=0, le=1000, validation_alias=AliasChoices("n_probs", "logprobs"))
    logit_bias: list[_Bias] | dict[str, float | bool] | None = None
    t_max_predict_ms: int = Field(
        0, ge=-1, description="after so long, counted from the first token, a new line ends the answer"
    )
    n_indent: int = Field(
        0, ge=0, description="a line but the first that begins with fewer spaces and tabs ends the answer before its text"
    )
    return_tokens: bool = False
    response_fields: list[str] | None = None

    def answers(self, tokenizer: Tokenizer | None, prompts: list[list[int]], name: str) -> list[dict[str, Any]]:
        """The arguments of `Engine.submit` for each prompt, with `n` answers.

        Raises:
            OptionError: A field is wrong in a way that only the model shows.
        """
        params = self.engine_params() | {"id": name, "echo": True}
        if self.temperature is not None:
            params["temperature"] = max(self.temperature, 0.0)
        if not self.grammar:  # an empty one is none
            params.pop("grammar", None)
        if self.n_predict is not None:  # none at all: one is asked for, so that the prompt is processed, and not told
            params["max_tokens"] = None if self.n_predict < 0 else max(self.n_predict, 1)
        if self.stop is not None:
            params["stop"] = self.stops
        if self.logit_bias:
            params["logit_bias"] = biases(self.logit_bias, tokenizer)
        params |= {"logprobs": self.n_probs} if self.n_probs else {}
        return [{"prompt": prompt, "n": self.n_cmpl, **params} for prompt in prompts]

    @property
    def stops(self) -> list[str]:
        """The stop texts."""
        return [each for each in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if each]


def biases(given: list[Any] | dict[str, Any], tokenizer: Tokenizer | None) -> dict[int, float]:
    """Numbers added to tokens' logits: a text stands for each of its tokens, false forbids them.

    Raises:
        OptionError: There is a text, but no tokenizer, or a bias is true.
    """
    found: dict[int, float] = {}
    for key, bias in given.items() if isinstance(given, dict) else given:
        if bias is True or isinstance(bias, str) or abs(bias) > float_info.max or isinstance(key, float | bool):
            raise OptionError(f"logit_bias holds {[key, bias]}, expected a token or text, and a number, or false to forbid it")
        token = int(key) if isinstance(given, dict) and key.isdecimal() else key
        if isinstance(token, int):
            tokens = [token]
        elif tokenizer is None:
            raise OptionError("logit_bias names a text, but this model has no tokenizer that augury can read; give token ids")
        else:
            if len(token) > _MOST_OF_BIAS:
                raise OptionError(f"logit_bias names a text of {len(token)} characters, expected {_MOST_OF_BIAS} at most")
            tokens = tokenizer.encode(token, add_special=False)
        found |= dict.fromkeys(tokens, float("-inf") if bias is False else float(bias))
    return found
