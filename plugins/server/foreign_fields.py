"""Fields of other servers' requests: what they mean here, if anything, and what a client is told where they cannot be honoured.

Source: the request models of vLLM, SGLang, llama.cpp, Ollama, LM Studio and text-generation-webui, of late 2026.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

IGNORED = (
    "access_programs",
    "client_metadata",
    "diagnostics",
    "inference_geo",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
    "user_profile_id",
    "workspace_id",
)
"""Fields that clients send unasked and that mean nothing to a server of one's own: they are left out, whatever they say."""

FOREIGN_NAMES = {
    "repetition_penalty": "'repeat_penalty' with 'repeat_last_n' -1",
    "chat_template": "the server's flag --chat-template-file, or 'chat_template_kwargs'",
    "functions": "'tools' in a chat",
    "function_call": "'tool_choice' in a chat",
    "enable_thinking": "'chat_template_kwargs'",
    "num_draft_tokens": "'speculative.n_max'",
}
"""Fields of other servers that have other names here, as a message writes them."""


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


_KEEP_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}  # Claude Code sends it unasked
_OWN: dict[str, Callable[[Any], bool]] = {  # llama.cpp's, and Anthropic's last: --strict-fields takes them, too
    "n_cache_reuse": _is(0),
    **dict.fromkeys(("adaptive_target", "reasoning_budget_tokens"), lambda value: value < 0),
    **dict.fromkeys(("lora", "grammar_triggers", "preserved_tokens"), _is([])),
    **dict.fromkeys(("grammar_lazy", "reasoning_control"), _is(False)),
    "verbose": _of(bool),  # which tells more in OpenAI's answers alone
    "backend_sampling": _of(bool),  # where tokens are drawn, not which
    "min_keep": _is(0, 1),
    "adaptive_decay": lambda _: True,  # it tunes a feature that is off
    "speed": _is("standard"),
    "context_management": _is({"edits": []}, {"edits": [_KEEP_THINKING]}),
}
_FOREIGN: dict[str, Callable[[Any], bool]] = {
    # vLLM's and SGLang's
    **dict.fromkeys(("skip_special_tokens", "detokenize", "include_reasoning"), _is(True)),
    **dict.fromkeys(("separate_reasoning", "stream_reasoning"), _is(True)),
    **dict.fromkeys(("include_stop_str_in_output", "use_beam_search", "early_stopping", "echo"), _is(False)),
    **dict.fromkeys(("return_tokens_as_token_ids", "return_token_ids", "return_hidden_states", "no_stop_trim"), _is(False)),
    **dict.fromkeys(("best_of", "length_penalty", "repetition_penalty"), _is(1)),
    **dict.fromkeys(("bad_words", "logits_processors"), _is([])),
    **dict.fromkeys(("mm_processor_kwargs", "media_io_kwargs", "vllm_xargs"), _is({})),
    "spaces_between_special_tokens": _of(bool),  # which are skipped
    "add_special_tokens": _is(True),  # in front of a text; templates write their own
    "truncate_prompt_tokens": _is(-1),  # as many as the context holds; more are a 400
    "truncation": _is("auto", "disabled"),  # likewise
    "priority": _of(int),  # of requests that wait
    **dict.fromkeys(("request_id", "rid"), _of(str)),
    "guided_decoding_backend": _of(str),  # what enforces a form
    # Ollama's and LM Studio's
    "tfs_z": _is(1),
    "penalize_newline": _is(True),
    "n_probs": _is(0),
    "num_ctx": _of(int),  # the server's flag -c has chosen it
    "ttl": _of(int),  # how long the model stays loaded
    "draft_model": _of(str),  # which changes no answer
    # text-generation-webui's
    **dict.fromkeys(("top_a", "epsilon_cutoff", "eta_cutoff", "penalty_alpha", "no_repeat_ngram_size"), _is(0)),
    **dict.fromkeys(("smoothing_factor", "mirostat_mode"), _is(0)),
    **dict.fromkeys(("tfs", "guidance_scale", "encoder_repetition_penalty"), _is(1)),
    "ban_eos_token": _is(False),
    "add_bos_token": _is(True),
}
_FORMS = {"json": "json_schema", "json_object": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
_GUIDED = [f"guided_{form}" for form in _FORMS]
_OF_CHATS = ("functions", "function_call", "think", "enable_thinking", "thinking", "documents")

NEUTRAL = _OWN | _FOREIGN
"""Fields that augury does not do: they may be sent with a value that leaves them undone, and with no other."""


def without_neutral(data: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The fields without those that mean nothing; `known` ones are the form's own.

    Raises:
        ValueError: One asks for what augury does not do.
    """
    kept = {}
    for name, value in data.items():
        if name in known or not (name in NEUTRAL or name in IGNORED):
            kept[name] = value
        elif name in NEUTRAL and not _is_off(NEUTRAL[name], value):
            instead = f"send {FOREIGN_NAMES[name]}" if name in FOREIGN_NAMES else "leave it out"
            raise ValueError(f"{name} is {shown(value)}, which augury does not do; {instead}")
    return kept


def with_forms(data: dict[str, Any]) -> dict[str, Any]:
    """Read vLLM's `guided_json` and `structured_outputs`, and the like, as the forms of the whole output that they are.

    Raises:
        ValueError: There are two forms, or one that is not known.
    """
    names = [name for name in data if name == "structured_outputs" or name in _GUIDED]
    found = {name: value for name, value in data.items() if name not in names}
    for name in names:
        value = data[name]
        if name in _GUIDED:
            forms = {name.removeprefix("guided_"): value}
        elif isinstance(value, dict):
            forms = {form: each for form, each in value.items() if each is not None and each is not False}
        else:
            raise ValueError(f"structured_outputs is {shown(value)}, expected an object")
        for form, each in forms.items():
            if form not in _FORMS:
                raise ValueError(f"structured_outputs has {form!r}, expected {', '.join(_FORMS)}")
            if _FORMS[form] in found:
                raise ValueError(f"{name} and {_FORMS[form]} both say how the output is to be; leave one of them out")
            found[_FORMS[form]] = {"type": "object"} if form == "json_object" else each
    return found


def of_chat(data: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """A chat's fields: OpenAI's older names are the newer ones, and the chat template's variables are together."""
    found = dict(data)
    if isinstance(found.get("add_special_tokens"), bool) and "add_special_tokens" not in known:
        del found["add_special_tokens"]  # templates write their own
    if isinstance(functions := found.get("functions"), list) and "tools" not in found:
        found["tools"] = [{"type": "function", "function": each} for each in functions]
        del found["functions"]
    if (choice := found.get("function_call")) in ("auto", "none") and "tool_choice" not in found:
        found["tool_choice"] = found.pop("function_call")
    elif isinstance(choice, dict) and "tool_choice" not in found:
        found["tool_choice"] = {"type": "function", "function": found.pop("function_call")}
    variables: dict[str, Any] = {}
    if isinstance(found.get("documents"), list):
        variables["documents"] = found.pop("documents")
    for name in ("think", "enable_thinking"):
        if isinstance(found.get(name), bool):
            variables["enable_thinking"] = found.pop(name)
    if isinstance(found.get("think"), str) and "reasoning_effort" not in found:  # as Ollama has it for gpt-oss
        variables["enable_thinking"], found["reasoning_effort"] = True, found.pop("think")
    if isinstance(found.get("thinking"), dict) and found["thinking"].keys() == {
        "type"
    }:  # as DeepSeek's and GLM's servers have it
        variables["enable_thinking"] = found.pop("thinking")["type"] != "disabled"
    if variables:
        kwargs = found.get("chat_template_kwargs")
        found["chat_template_kwargs"] = variables | (kwargs if isinstance(kwargs, dict) else {})
    return found


def first_foreign(data: Iterable[str], known: Iterable[str]) -> str | None:
    """The first field that is another server's alone, which --strict-fields refuses."""
    foreign = {*_FOREIGN, *_GUIDED, *_OF_CHATS, "structured_outputs"} - {*known}
    return next((name for name in data if name in foreign), None)


def _is_off(check: Callable[[Any], bool], value: Any) -> bool:
    try:
        return check(value)
    except TypeError:  # of another type altogether
        return False


def shown(value: Any) -> str:
    """A wrong value, as a message writes it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return str(value).lower() if isinstance(value, bool) else reprlib.repr(value)
