"""`/completion`'s fields, as llama.cpp's server names them, and what they are to `Engine.submit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AliasChoices, Field, model_validator

from augury.errors import OptionError
from augury.plugins.server.fields import EngineFields
from augury.text.tokenizer import Tokenizer

__all__ = ["CompletionFields", "biases"]

_LETTERS = {  # of llama.cpp
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
}
# What augury does not do: it may be asked for by the value that leaves it undone, and by no other.
_UNDONE: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("n_indent", "n_discard", "n_cache_reuse"), lambda value: value == 0),
    **dict.fromkeys(("adaptive_target", "reasoning_budget_tokens"), lambda value: value < 0),
    **dict.fromkeys(("n_keep", "t_max_prompt_ms", "sse_ping_interval"), lambda value: value in {0, -1}),
    **dict.fromkeys(("lora", "grammar_triggers", "preserved_tokens"), lambda value: value == []),
    **dict.fromkeys(("verbose", "return_progress", "post_sampling_probs", "grammar_lazy"), lambda value: value is False),
    **dict.fromkeys(("backend_sampling", "reasoning_control"), lambda value: value is False),
    "min_keep": lambda value: value in {0, 1},
    "adaptive_decay": lambda _: True,  # it tunes what is off
}
_OFF_SAMPLER = "adaptive_p"  # which does nothing unless adaptive_target says so

_Bias = Annotated[list[int | float | bool | str], Field(min_length=2, max_length=2)]


class CompletionFields(EngineFields):
    """What a completion can be asked for, beside its prompt. A field that is null is one that is left out."""

    model: str | None = Field(None, description="any: the server has one model")
    stream: bool = False
    n_predict: int | None = Field(
        None, ge=-2, validation_alias=AliasChoices("n_predict", "max_tokens", "max_completion_tokens")
    )
    n_cmpl: int = Field(1, ge=1, le=128, validation_alias=AliasChoices("n_cmpl", "n"))
    n_probs: int = Field(0, ge=0, le=1000, validation_alias=AliasChoices("n_probs", "logprobs"))
    temperature: float | None = Field(None, le=1e6, description="0 and all below is greedy")
    top_k: int | None = Field(None, description="0 and all below keeps all")
    seed: int | None = Field(None, ge=-1, le=2**64 - 1, description="-1: another one for every request")
    logit_bias: list[_Bias] | dict[str, float | bool] | None = None
    samplers: list[str] | None = Field(None, description="names in order, or a text of llama.cpp's letters")
    id_slot: int = Field(-1, ge=-1, description="the slot to wait for; -1: any")
    t_max_predict_ms: int = Field(
        0, ge=-1, description="after so long, counted from the first token, a new line ends the answer"
    )
    return_tokens: bool = False
    timings_per_token: bool = False
    response_fields: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_undone(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            is_known = name in cls.model_fields
            if value is None or (name == "grammar" and value == ""):
                continue
            if name == "samplers" and isinstance(value, str):
                kept[name] = [_LETTERS.get(letter, letter) for letter in value]
            elif is_known or name not in _UNDONE:
                kept[name] = value
            elif not _is_off(_UNDONE[name], value):
                raise ValueError(f"{name} is {value!r}, which augury does not do; leave it out")
        return kept

    def answers(self, tokenizer: Tokenizer | None, prompts: list[list[int]], name: str) -> list[dict[str, Any]]:
        """The arguments of `Engine.submit` for each prompt, with `n` answers.

        Raises:
            OptionError: A field is wrong in a way that is only known now.
        """
        params = self.engine_params() | {"id": name, "echo": True}
        if self.seed == -1:
            params["seed"] = None
        if self.temperature is not None:
            params["temperature"] = max(self.temperature, 0.0)
        if self.top_k is not None:
            params["top_k"] = max(self.top_k, 0)
        if self.n_predict is not None:  # none at all: one is asked for, so that the prompt is processed, and not told
            params["max_tokens"] = None if self.n_predict < 0 else max(self.n_predict, 1)
        if self.stop is not None:
            params["stop"] = self.stops
        if self.samplers is not None:
            names = dict.fromkeys(self.samplers)
            params["samplers"] = [name for name in names if name != _OFF_SAMPLER]
        if self.logit_bias:
            params["logit_bias"] = biases(self.logit_bias, tokenizer)
        params |= {"logprobs": self.n_probs} if self.n_probs else {}
        params |= {"slot": self.id_slot} if self.id_slot >= 0 else {}
        return [{"prompt": prompt, "n": self.n_cmpl, **params} for prompt in prompts]

    @property
    def stops(self) -> list[str]:
        """The stop texts."""
        return [each for each in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if each]


def biases(given: list[Any] | dict[str, Any], tokenizer: Tokenizer | None) -> dict[int, float]:
    """What is added to tokens' logits: a text stands for each of its tokens, false forbids them.

    Raises:
        OptionError: There is a text, but no tokenizer, or a bias is true.
    """
    found: dict[int, float] = {}
    for key, bias in given.items() if isinstance(given, dict) else given:
        if bias is True or isinstance(bias, str) or isinstance(key, float | bool):
            raise OptionError(f"logit_bias holds {[key, bias]}, expected a token or text, and a number, or false to forbid it")
        token = int(key) if isinstance(given, dict) and key.isdecimal() else key
        if isinstance(token, int):
            tokens = [token]
        elif tokenizer is None:
            raise OptionError("logit_bias names a text, but this model has no tokenizer that augury can read; give token ids")
        else:
            tokens = tokenizer.encode(token, add_special=False)
        found |= dict.fromkeys(tokens, float("-inf") if bias is False else float(bias))
    return found


def _is_off(check: Callable[[Any], bool], value: Any) -> bool:
    try:
        return check(value)
    except TypeError:  # of another type altogether
        return False
