"""`--draft-params "-m MODEL -c 2048"`: the draft model's options, by the flags that the target has for the same.

As in ik_llama.cpp (pull request 932), where such a text goes through the parser of the target's own flags. What a draft model
has no option for is an error here.
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any, NoReturn

from augury.cli.parser import FlagsAction
from augury.errors import OptionError
from augury.options import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.options import Option

__all__ = ["DraftParams"]

_TWINS = {  # the target's flags, by the draft model's options; any other option is meant by its name
    "model": ("-m", "--model"),
    "ctx": ("-c", "--ctx-size"),
    "threads": ("-t", "--threads"),
    "cache_type_k": ("-ctk", "--cache-type-k"),
    "cache_type_v": ("-ctv", "--cache-type-v"),
    "backend": ("--backend",),
}
_AS_TARGET = ("-np", "--parallel", "--memory", "-n", "--n-predict", "--predict")  # what it follows the target in


class DraftParams(FlagsAction):
    """Reads the text, and keeps what it says where the draft model's own flags keep it."""

    def __init__(self, *, drafter: str, options: Mapping[str, Option], keep_as: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._drafter, self._options, self._keep_as = drafter, options, keep_as

    def __call__(self, _parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        """Keep what the text says."""
        try:
            words = shlex.split(values)
        except ValueError as error:  # a quotation that does not end
            raise OptionError(f"{flag}: {values!r}: {error}") from None
        for name, value in self._pairs(words, str(flag)):
            converted = self._options[name].convert(value, str(flag))
            if name == "model":
                namespace.model_draft = converted
            else:
                kept = (((self._drafter, name),), converted)
                setattr(namespace, self._keep_as, (*getattr(namespace, self._keep_as), kept))

    def _pairs(self, words: Sequence[str], where: str) -> list[tuple[str, str]]:
        """Names of options and what they are to be, in order."""
        parser = _Parser(prog=where, add_help=False, allow_abbrev=False)
        flags = {flag: name for name in self._options for flag in (*_TWINS.get(name, ()), f"--{name.replace('_', '-')}")}
        for flag, name in flags.items():
            parser.add_argument(flag, dest="pairs", action=_Pair, default=[], const=name)
        known, unknown = parser.parse_known_args(words)
        for word in unknown:
            name = word.partition("=")[0]
            if name in _AS_TARGET:
                raise OptionError(f"{where}: a draft model has no {name} of its own, for it follows the target; leave it out")
            if name.startswith("-"):
                raise OptionError(f"{where}: a draft model has no {name}{nearest(name, flags)}")
            raise OptionError(f'{where}: {word!r} was not expected; give flags and values, as in {where} "-c 2048 -t 2"')
        pairs: list[tuple[str, str]] = known.pairs
        return pairs


class _Pair(argparse.Action):
    def __call__(self, _parser: Any, namespace: Any, values: Any, _flag: str | None = None) -> None:
        namespace.pairs = [*namespace.pairs, (self.const, values)]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{self.prog}: {message}")
