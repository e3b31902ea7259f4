"""Flags of requests: how a model samples, where a text ends, and what a chat template is given, or the template itself."""

from __future__ import annotations

import argparse
import json
import math
import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.cli.parser import Parser, add_flag, count, counts, expecting
from augury.cli.report import say
from augury.cli.text_file import read_text
from augury.errors import ModelFileError, OptionError
from augury.registry import Registry
from augury.sampling import OPTIONAL_SAMPLERS, SAMPLER_LETTERS, SAMPLERS, sampling_options

if TYPE_CHECKING:
    from augury.engine.engine import Engine

    Messages = Sequence[dict[str, Any]]

_SPELLINGS = {
    "temperature": "--temp",
    "typical_p": "--typical",
    "seed": "-s",
    "top_n_sigma": "--top-nsigma",
    "dynatemp_exponent": "--dynatemp-exp",
    "mirostat_tau": "--mirostat-ent",
    "mirostat_eta": "--mirostat-lr",
}
# Of llama.cpp and ik_llama.cpp: samplers that do nothing unless flags of their own say so, which are refused here; and letters.
_OFF = ("adaptive_p", "tfs_z")
_LETTERS = SAMPLER_LETTERS | dict(zip("afwn", (*_OFF, "adaptive_p", "top_n_sigma"), strict=True))
_SAMPLERS = {name.replace("_", ""): name for name in (*SAMPLERS, *OPTIONAL_SAMPLERS, *_OFF)}
_SAMPLERS |= dict.fromkeys(("typical", "typicalp", "typ"), "typ_p")
_SAMPLERS |= {"nucleus": "top_p", "temp": "temperature", "tfs": "tfs_z"}

_STOP = expecting("a text that is not empty", str, bool)
_OBJECT = expecting('a JSON object, such as {"enable_thinking": false}', json.loads, lambda found: isinstance(found, dict))
_BIAS = expecting(
    "a token id and a bias, such as 15043+1 or 15043-inf",
    lambda text: (int((match := re.fullmatch(r"(\d+)([+-]\S+)", text))[1]), float(match[2])),  # type: ignore[index]
    lambda found: found[1] < math.inf,  # nor NaN
)


def add_sampling_flags(parser: Parser, registry: Registry, *, n_predict: int = -1, has_short_stop: bool = True) -> None:
    """Add sampling, limits and stops, in llama.cpp's spelling, and the flags of constraints.

    `n_predict` is the default of `-n`. With `has_short_stop`, `-r` is a stop, which it is not in llama-bench.
    """
    group = parser.add_argument_group("sampling")
    for option in sampling_options().values():
        flags = f"{_SPELLINGS.get(option.name, '')} --{option.name.replace('_', '-')} {'N' if option.kind is int else 'P'}"
        default = "" if option.default is None else f" (default: {option.default:g})"
        group.flag(flags, option.help + default, dest=option.name, action=_SetOption, const=option)
    group.flag(
        "--samplers NAME;NAME;...",
        f"what is applied, in this order; the others are not (default: {';'.join(SAMPLERS)})",
        action=_SetSamplers,
    )
    group.flag(
        "--sampler-seq --sampling-seq LETTERS",
        f"the same by llama.cpp's letters (default: {''.join(list(_LETTERS)[: len(SAMPLERS)])})",
        action=_SetSamplers,
        dest="samplers",
    )
    group.flag(
        "--dry-sequence-breaker TEXT ...",
        "a text that no repetition spans; repeats, and replaces the default ones: line break, colon, "
        "quotation mark and asterisk; none: there is no such text",
        _STOP,
        dest="dry_sequence_breakers",
    )
    group.flag("-l --logit-bias TOKEN(+/-)BIAS ...", "add to a token's logit, such as 15043+1 or 15043-inf; repeats", _BIAS)
    group.flag("--constraint NAME:K=V", "allow only texts of a form, see the plugins of kind constraint in augury plugins")
    for constraint in registry.constraints.values():
        if constraint.keyword is not None:
            flag = f"--{constraint.keyword.replace('_', '-')}"
            of: dict[str, Any] = {"action": _SetKeyword, "dest": "keywords", "default": {}, "const": constraint.keyword}
            group.flag(f"{flag} TEXT", f"allow only {_first_line(constraint)}", **of)
            group.flag(f"{flag}-file FILE", "the same, read from a file", Path, **of)
    group = parser.add_argument_group("where a text ends")
    group.flag(
        "-n --n-predict --predict --max-tokens N",
        f"tokens to generate; -1 or -2: until an end token or a full context (default: {n_predict})",
        count(least=-2),
        default=n_predict,
    )
    stops = f"{'-r ' * has_short_stop}--stop --reverse-prompt TEXT ..."
    group.flag(stops, "end before this text; repeats", _STOP, dest="stop")
    group.flag("--ignore-eos", "go on after end tokens")
    group.flag(
        "--context-shift",
        "where the context is full, leave out the older half of the text, process the rest again, and go on",
        nargs="?",
        const="on",
        default="off",
        choices=("on", "off"),
    )
    group.flag(
        "--keep N",
        "tokens at the beginning of the text that --context-shift never leaves out; -1: the prompt (default: 0)",
        count(least=-1),
        default=0,
    )
    group.flag("--min-tokens N", "end tokens and stop texts end nothing before so many tokens", count(least=0), default=0)
    group.flag(
        "--stop-token-id --stop-token-ids ID,ID",
        "end after these tokens as well; repeats",
        counts(least=0),
        action="extend",
        default=[],
        dest="stop_token_ids",
    )
    parser.flag("--logprobs N", "report log-probabilities, and those of the N best tokens", count(least=0))
    parser.flag("--no-cache-prompt", "process every prompt in full")


def request_params(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Engine.submit` that flags gave. Raises OptionError: a value is out of range."""
    if args.n_predict == 0:
        raise OptionError(f"{args.typed['n_predict']} is 0, expected at least 1, or -1 for no limit")
    names = (*sampling_options(), "samplers", "constraint", "logprobs")
    params = {name: value for name in names if (value := getattr(args, name)) is not None}
    params |= {name: value for name in ("stop", "min_tokens", "stop_token_ids") if (value := getattr(args, name))}
    params |= {key: read_text(value) if isinstance(value, Path) else value for key, value in args.keywords.items()}
    if args.n_predict > 0:
        params["max_tokens"] = args.n_predict
    if breakers := args.dry_sequence_breakers:
        params["dry_sequence_breakers"] = [] if breakers == ["none"] else breakers
    params |= {"context_shift": True, "n_keep": args.keep} if args.context_shift == "on" else {}
    if args.logit_bias:
        params["logit_bias"] = dict(args.logit_bias)
    return params | {"ignore_eos": args.ignore_eos, "cache_prompt": not args.no_cache_prompt}


class _SetOption(argparse.Action):
    """Keeps the value of the option that is its `const`."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        setattr(namespace, self.dest, self.const.convert(values, str(flag)))


class _SetKeyword(argparse.Action):
    """Keeps the parameter of requests that is its `const`, or the file that says it."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, _flag: str | None = None) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), self.const: values})


def _first_line(plugin: type[Any]) -> str:
    line = (plugin.__doc__ or plugin.name).partition("\n")[0]
    first = line[:1] if line[1:2].isupper() else line[:1].lower()
    return (first + line[1:].removesuffix(".")).replace("%", "%%")


class _SetSamplers(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        names = []
        for text in values if self.metavar == "LETTERS" else filter(None, values.split(";")):
            known, expected = (
                (_LETTERS, _LETTERS) if self.metavar == "LETTERS" else (_SAMPLERS, (*SAMPLERS, *OPTIONAL_SAMPLERS))
            )
            if (name := known.get(re.sub("[-_ ]", "", text.lower()))) is None:
                raise OptionError(f"{flag} names {text!r}, expected some of {', '.join(expected)}")
            names.append(name)
        if off := [name for name in names if name in _OFF]:
            left_out = f"{', '.join(off)} of {flag} {'is' if len(off) == 1 else 'are'} ignored"
            say(f"{parser.prog}: {left_out}: augury knows no such sampler")
        setattr(namespace, self.dest, tuple(dict.fromkeys(name for name in names if name not in _OFF)))


def add_system_flags(parser: Parser, text: str) -> None:
    """Add `-sys` and `-sysf`; `text` is the help of the first."""
    group = parser.add_mutually_exclusive_group()
    add_flag(group, "-sys --system-prompt TEXT", text)
    add_flag(group, "-sysf -spf --system-prompt-file FILE", "the same, from a file", Path)


def add_template_flags(parser: Parser) -> None:
    """Add the flags of the chat template and of its variables."""
    parser.flag("--chat-template-kwargs JSON", 'variables for the chat template, such as {"enable_thinking": false}', _OBJECT)
    group = parser.add_mutually_exclusive_group()
    text = "a chat template in place of the model's own: Jinja, or a name of llama.cpp's such as chatml"
    add_flag(group, "--chat-template JINJA", text)
    add_flag(group, "--chat-template-file FILE", "the same, from a file", Path)


def system_prompt_of(args: argparse.Namespace) -> str | None:
    """The system prompt of the flags, None without them."""
    return args.system_prompt if args.system_prompt_file is None else read_text(args.system_prompt_file).removesuffix("\n")


def has_system(messages: Messages) -> bool:
    """Whether a conversation begins with a system prompt."""
    return bool(messages) and messages[0].get("role") == "system"


def with_system(messages: Messages, text: str) -> list[dict[str, Any]]:
    """These messages with a system prompt before them, in place of the one that they begin with; without one if it is empty."""
    rest = messages[1:] if has_system(messages) else messages
    return [*([{"role": "system", "content": text}] if text else []), *rest]


def template_of(args: argparse.Namespace) -> str | None:
    """The chat template of the flags, None without them. Raises OptionError: it is broken, or cannot write a plain question."""
    from augury.text.chat_template import ChatTemplate

    flag, source = "--chat-template", args.chat_template
    if args.chat_template_file is not None:
        flag, source = f"--chat-template-file {args.chat_template_file}", read_text(args.chat_template_file)
    elif source is None:
        return None
    elif "{" not in source and " " not in source:  # as no name has
        source = named_template(source)
    template = ChatTemplate(source)
    try:
        template.render([{"role": "user", "content": "?"}])
    except ModelFileError as error:
        raise OptionError(f"{flag} {error.__cause__}; correct it, or leave it out to use the model's own") from None
    except OptionError:  # it refuses this question, and may take others
        pass
    finally:
        template.close()
    return str(source)


def named_template(name: str) -> str:
    """The Jinja source of a template of `chat_templates.toml`. Source: llama.cpp's `llm_chat_apply_template`."""
    known = tomllib.loads(files("augury.cli").joinpath("chat_templates.toml").read_text(encoding="utf-8"))
    if name not in known:
        raise OptionError(
            f"--chat-template is {name!r}, expected Jinja or one of {', '.join(known)}; --chat-template-file takes a file, and "
            "without either the model's own is used"
        )
    found, content = known[name], "{{ message.content }}"
    of = {role: found.get(role, found.get("turn", found.get("user"))) for role in ("system", "assistant", "tool", "user")}
    begin = "{% if not begun.yes %}" + found.get("begin", "") + "{% endif %}{% set begun.yes = message.role != 'assistant' %}"
    tests = (f"if message.role == '{role}' %}}{of[role]}{{% el" for role in ("system", "assistant", "tool"))
    text = (
        f"{{% set begun = namespace(yes=false) %}}{{% for message in messages %}}{begin}{{% {''.join(tests)}se %}}{of['user']}"
        f"{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{found.get('opening', '')}{{% endif %}}"
    )
    trimmed = content.replace(" }}", " | trim }}")
    return text.replace("{}", content).replace("{trimmed}", trimmed).replace("{role}", "{{ message.role }}")


def use_template(engine: Engine, source: str | None, *, parse_special: bool) -> None:
    """Give an engine another chat template than the model's own, if there is one."""
    from augury.text.chat_template import ChatTemplate

    if source is not None:
        engine.chat_template = ChatTemplate(source, engine.tokenizer, parse_special=parse_special)
