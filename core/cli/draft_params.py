"""`--draft-params "-m MODEL -c 2048"`: the draft model's options, as flags that mean the same for the target.

As in ik_llama.cpp (pull request 932), where such a text goes through the parser of the target's own flags: so all of these are
known here, too. A parameter without an option of the draft model, which follows the target, is ignored with a line that
says so.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from augury.cli.foreign_flags import ignored
from augury.cli.parser import FlagsAction, Parser
from augury.errors import OptionError
from augury.options import Option
from augury.sampling import sampling_options

_TWINS = {  # the target's flags, by the draft model's options; any other option is meant by its name
    "model": ("-m", "--model"),
    "ctx": ("-c", "--ctx-size"),
    "threads": ("-t", "--threads"),
    "cache_type_k": ("-ctk", "--cache-type-k"),
    "cache_type_v": ("-ctv", "--cache-type-v"),
    "backend": ("--backend",),
    "device": ("-dev", "--device"),
    "gpu_layers": ("-ngl", "--gpu-layers", "--n-gpu-layers"),
    "p_min": ("--draft-p-min", "--spec-draft-p-min"),
}
_AS_TARGET = (  # by `dest`
    *("parallel", "memory", "tensor_split", "n_predict", "stop", "logit_bias", "samplers", "constraint", "keywords"),
    *("ignore_eos", *sampling_options()),
)


class DraftParams(FlagsAction):
    """Parses the text, and stores its values where the draft model's own flags store theirs."""

    def __init__(
        self, *, takers: Mapping[str, Mapping[str, Option]], options: Mapping[str, Option], keep_as: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._takers, self._options, self._keep_as = takers, options, keep_as

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        """Parse the text."""
        try:
            words = shlex.split(values)
        except ValueError as error:  # a quotation that does not end
            raise OptionError(f"{flag}: {values!r}: {error}") from None
        for name, value in self._given(words, str(flag), parser).items():
            converted = self._options[name].convert(value, str(flag))
            if name == "model":
                namespace.model_draft = converted
            else:
                kept = (tuple((drafter, name) for drafter, options in self._takers.items() if name in options), converted, flag)
                setattr(namespace, self._keep_as, (*getattr(namespace, self._keep_as), kept))

    def _given(self, words: Sequence[str], where: str, outer: Parser) -> dict[str, str]:
        """The values of options by name."""
        parser = Parser(prog=where, add_help=False)
        follows = [flag for flag, action in outer.flags.items() if action.dest in _AS_TARGET]
        for name in self._options:
            flags = dict.fromkeys((*_TWINS.get(name, ()), f"--{name.replace('_', '-')}"))
            parser.add_argument(*flags, dest=name, default=argparse.SUPPRESS)
        parser.foreign = {**outer.foreign}
        for n_values in (0, 1):
            names = [flag for flag in follows if outer.flags[flag].nargs == (None if n_values else 0)]
            parser.foreign |= ignored(names, "a draft model follows the target", n_values)
        try:
            given = vars(parser.parse_args(words))
        except OptionError as error:
            raise OptionError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
        return {name: given[name] for name in self._options if name in given}
