"""Flags that say how tokens are chosen and when a text ends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from augury.errors import OptionError
from augury.sampling import sampling_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from augury.options import Option

__all__ = ["add_sampling_flags", "request_params"]

_SPELLINGS = {"temperature": ("--temp",), "typical_p": ("--typical",), "seed": ("-s",)}


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add sampling, limits and stops, in llama.cpp's spelling."""
    group = parser.add_argument_group("sampling")
    for option in sampling_options().values():
        flag = f"--{option.name.replace('_', '-')}"
        default = "" if option.default is None else f" (default: {option.default:g})"
        group.add_argument(
            *_SPELLINGS.get(option.name, ()),
            flag,
            dest=option.name,
            type=_converter(option, flag),
            metavar="N" if option.kind is int else "P",
            help=option.help + default,
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
    group = parser.add_argument_group("where a text ends")
    group.add_argument(
        *("-n", "--n-predict", "--predict"),
        type=int,
        default=-1,
        metavar="N",
        help="tokens to generate (default: until an end token or a full context)",
    )
    group.add_argument(
        *("-r", "--stop", "--reverse-prompt"),
        action="append",
        default=[],
        dest="stop",
        metavar="TEXT",
        help="end before this text; repeats",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on behind end tokens")
    parser.add_argument("--logprobs", type=int, metavar="N", help="report log-probabilities, and those of the N best tokens")
    parser.add_argument("--no-cache-prompt", action="store_true", help="process every prompt in full")


def request_params(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Engine.submit` that flags gave.

    Raises:
        OptionError: A value is out of range.
    """
    params = {name: value for name in sampling_options() if (value := getattr(args, name)) is not None}
    if args.n_predict != -1:
        params["max_tokens"] = args.n_predict
    if args.logit_bias:
        params["logit_bias"] = dict(args.logit_bias)
    if args.stop:
        params["stop"] = args.stop
    if args.logprobs is not None:
        params["logprobs"] = args.logprobs
    return params | {"ignore_eos": args.ignore_eos, "cache_prompt": not args.no_cache_prompt}


def _converter(option: Option, flag: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        if option.name == "seed" and text == "-1":  # llama.cpp's word for a random one
            return None
        return option.convert(text, flag)

    return convert


def _bias(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"(\d+)([+-].+)", text)
    try:
        return int(match[1]), float(match[2])  # type: ignore[index]
    except (TypeError, ValueError):
        raise OptionError(f"--logit-bias is {text!r}, expected a token id and a bias, such as 15043+1 or 15043-inf") from None
