"""Flags for sampling, and for where a text ends."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

from augury.cli.parser import count, counts
from augury.cli.report import say
from augury.cli.text_file import read_text
from augury.errors import OptionError
from augury.registry import Registry
from augury.sampling import OPTIONAL_SAMPLERS, SAMPLER_LETTERS, SAMPLERS, sampling_options

_SPELLINGS = {
    "temperature": ("--temp",),
    "typical_p": ("--typical",),
    "seed": ("-s",),
    "top_n_sigma": ("--top-nsigma",),
    "dynatemp_exponent": ("--dynatemp-exp",),
    "mirostat_tau": ("--mirostat-ent",),
    "mirostat_eta": ("--mirostat-lr",),
}
# Of llama.cpp and ik_llama.cpp: samplers that do nothing unless flags of their own say so, which are refused here; and letters.
_OFF = ("adaptive_p", "tfs_z")
_LETTERS = SAMPLER_LETTERS | dict(zip("afwn", (*_OFF, "adaptive_p", "top_n_sigma"), strict=True))
_SAMPLERS = {name.replace("_", ""): name for name in (*SAMPLERS, *OPTIONAL_SAMPLERS, *_OFF)}
_SAMPLERS |= {
    "typical": "typ_p",
    "typicalp": "typ_p",
    "typ": "typ_p",
    "nucleus": "top_p",
    "temp": "temperature",
    "tfs": "tfs_z",
}


def add_sampling_flags(
    parser: argparse.ArgumentParser, registry: Registry, *, n_predict: int = -1, has_short_stop: bool = True
) -> None:
    """Add sampling, limits and stops, in llama.cpp's spelling, and the flags of constraints.

    `n_predict` is the default of `-n`. With `has_short_stop`, `-r` is a stop, which it is not in llama-bench.
    """
    group = parser.add_argument_group("sampling")
    for option in sampling_options().values():
        flag = f"--{option.name.replace('_', '-')}"
        default = "" if option.default is None else f" (default: {option.default:g})"
        group.add_argument(
            *_SPELLINGS.get(option.name, ()),
            flag,
            dest=option.name,
            action=_SetOption,
            const=option,
            metavar="N" if option.kind is int else "P",
            help=option.help + default,
        )
    group.add_argument(
        "--samplers",
        action=_SetSamplers,
        metavar="NAME;NAME;...",
        help=f"what is applied, in this order; the others are not (default: {';'.join(SAMPLERS)})",
    )
    group.add_argument(
        *("--sampler-seq", "--sampling-seq"),
        action=_SetSamplers,
        dest="samplers",
        metavar="LETTERS",
        help=f"the same by llama.cpp's letters (default: {''.join(list(_LETTERS)[: len(SAMPLERS)])})",
    )
    group.add_argument(
        "--dry-sequence-breaker",
        action="append",
        type=_stop,
        dest="dry_sequence_breakers",
        default=[],
        metavar="TEXT",
        help="a text that no repetition spans; repeats, and replaces the default ones: line break, colon, "
        "quotation mark and asterisk; none: there is no such text",
    )
    group.add_argument(
        "-l",
        "--logit-bias",
        action="append",
        type=_bias,
        default=[],
        metavar="TOKEN(+/-)BIAS",
        help="add to a token's logit, such as 15043+1 or 15043-inf; repeats",
    )
    group.add_argument(
        "--constraint",
        metavar="NAME:K=V",
        help="allow only texts of a form, see the plugins of kind constraint in augury plugins",
    )
    for constraint in registry.constraints.values():
        if constraint.keyword is not None:
            flag = f"--{constraint.keyword.replace('_', '-')}"
            of: dict[str, Any] = {"action": _SetKeyword, "dest": "keywords", "default": {}, "const": constraint.keyword}
            group.add_argument(flag, metavar="TEXT", help=f"allow only {_first_line(constraint)}", **of)
            group.add_argument(f"{flag}-file", type=Path, metavar="FILE", help="the same, read from a file", **of)
    group = parser.add_argument_group("where a text ends")
    group.add_argument(
        *("-n", "--n-predict", "--predict", "--max-tokens"),
        type=count(least=-2),
        default=n_predict,
        metavar="N",
        help=f"tokens to generate; -1 or -2: until an end token or a full context (default: {n_predict})",
    )
    group.add_argument(
        *(("-r",) if has_short_stop else ()),
        *("--stop", "--reverse-prompt"),
        action="append",
        type=_stop,
        default=[],
        dest="stop",
        metavar="TEXT",
        help="end before this text; repeats",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after end tokens")
    group.add_argument(
        "--context-shift",
        nargs="?",
        const="on",
        default="off",
        choices=("on", "off"),
        help="where the context is full, leave out the older half of the text, process the rest again, and go on",
    )
    group.add_argument(
        "--keep",
        type=count(least=-1),
        default=0,
        metavar="N",
        help="tokens at the beginning of the text that --context-shift never leaves out; -1: the prompt (default: 0)",
    )
    group.add_argument(
        "--min-tokens",
        type=count(least=0),
        default=0,
        metavar="N",
        help="end tokens and stop texts end nothing before so many tokens",
    )
    group.add_argument(
        *("--stop-token-id", "--stop-token-ids"),
        action="extend",
        type=counts(least=0),
        default=[],
        dest="stop_token_ids",
        metavar="ID,ID",
        help="end after these tokens as well; repeats",
    )
    parser.add_argument(
        "--logprobs", type=count(least=0), metavar="N", help="report log-probabilities, and those of the N best tokens"
    )
    parser.add_argument("--no-cache-prompt", action="store_true", help="process every prompt in full")


def request_params(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Engine.submit` that flags gave.

    Raises:
        OptionError: A value is out of range.
    """
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
    """Keeps the names of samplers."""

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


def _bias(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"(\d+)([+-]\S+)", text)
    try:
        token, bias = int(match[1]), float(match[2])  # type: ignore[index]
    except (TypeError, ValueError):
        bias = math.nan
    if not bias < math.inf:  # nor NaN
        raise argparse.ArgumentTypeError("a token id and a bias, such as 15043+1 or 15043-inf")
    return token, bias


def _stop(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a text that is not empty")
    return text
