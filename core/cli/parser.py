"""An argparse parser without abbreviations that knows other programs' flags, and names a flag as it was typed."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from augury.cli.foreign_flags import ForeignFlag
from augury.cli.report import say
from augury.errors import OptionError
from augury.options import EXPECTED, nearest, similar

_NUMBER = re.compile(r"-\.?\d.*")
_GLUED = re.compile(r"(-[A-Za-z]+)(\d.*)")
_VARIABLE = re.compile(r"LLAMA_(ARG_.+|API_KEY)")  # in place of a flag, for llama.cpp
T = TypeVar("T")


def expecting(
    expected: str, convert: Callable[[str], T], is_right: Callable[[T], object] = lambda _: True
) -> Callable[[str], T]:
    """The type of a flag whose value `convert` reads from its text; other texts are refused with what was expected.

    >>> expecting("a share, such as 0.5", float, lambda share: 0 <= share <= 1)("0.25")
    0.25
    """

    def read(text: str) -> T:
        with suppress(ValueError, TypeError, RecursionError):
            if is_right(found := convert(text)):
                return found
        raise argparse.ArgumentTypeError(expected)

    return read


def count(*, least: int) -> Callable[[str], int]:
    """The type of a flag whose value is a whole number of at least `least`."""
    return expecting(f"a whole number of at least {least}", int, lambda found: found >= least)


def counts(*, least: int) -> Callable[[str], tuple[int, ...]]:
    """The type of a flag whose value is whole numbers separated by commas.

    >>> counts(least=1)("1,2,4")
    (1, 2, 4)
    """
    expected = f"whole numbers of at least {least} separated by commas, such as 1,2,4"
    return expecting(expected, lambda text: tuple(map(int, text.split(","))), lambda found: min(found) >= least)


def converted(flag: str, text: str, kind: Callable[[str], Any]) -> Any:
    """The value of a flag, given as `text`, by a type in argparse's sense. Raises OptionError: it is of another type."""
    try:
        return kind(text)
    except argparse.ArgumentTypeError as error:
        expected = str(error)
    except ValueError:
        expected = EXPECTED.get(kind, "another value")
    raise OptionError(f"{flag} is {text!r}, expected {expected}")


class FlagsAction(argparse.Action):
    """For a flag whose value is text that contains flags, and may be a single flag."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, _flag: str | None = None) -> None:
        """Keep the text."""
        setattr(namespace, self.dest, values)


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, _namespace: Any, _values: Any, _flag: str | None = None) -> None:
        sys.stdout.write(parser.format_help(is_whole=True))
        parser.exit()


def add_flag(
    container: argparse._ActionsContainer, flags: str, text: str, kind: Callable[[str], Any] | None = None, **more: Any
) -> None:
    """Add a flag, declared as help shows it: `--json`, `-n --n-predict N`, or `-f --file FILE ...` for one that repeats.

    One without the name of a value is a switch. `text` is the help, `kind` argparse's type of the value, None for a text; the
    rest are further arguments of argparse's `add_argument`.
    """
    words = flags.split()
    names, values = [word for word in words if word[0] == "-"], [word for word in words if word[0] != "-"]
    if values[1:] == ["..."]:
        more |= {"action": "append", "default": []}
    if values:
        more |= {"metavar": values[0], "type": kind}
    elif more.keys().isdisjoint({"action", "choices"}):
        more["action"] = "store_true"
    container.add_argument(*names, help=text, **more)


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg] # noqa: SLF001 - argparse offers no other way
    def add_parser(self, name: str, **kwargs: Any) -> Any:
        """See `argparse`; unless it is said, a command's help is its description up to the first stop, colon or semicolon."""
        if begin := re.split("[.:;]", kwargs.get("description") or "")[0]:
            kwargs.setdefault("help", begin[0].lower() + begin[1:])
        return super().add_parser(name, **kwargs)


class _Group(argparse._ArgumentGroup):  # noqa: SLF001 - argparse offers no other way
    flag = add_flag


class Parser(argparse.ArgumentParser):
    """Reads no abbreviations, so that a new flag never changes the meaning of one.

    The namespace that it returns has an attribute `typed`: by attribute the flag that set it, as typed, for messages.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(**kwargs)
        self.foreign: Mapping[str, ForeignFlag] = {}  # of other programs: ignored, refused or rewritten
        self.words: Sequence[str] = ()  # the attributes that words without a flag are for, in this order
        self.first: Sequence[str] = ()  # flags that `--help` describes, and `--help-all` all; if there are none, `--help` does

    def show_first(self, flags: str, words: Sequence[str] = ()) -> None:
        """Let `--help` describe some flags, separated by spaces, and `--help-all` all; `words` need no flag."""
        self.first, self.words = (*flags.split(), "--help", "--help-all"), words
        named = [*(str(each.metavar) for each in self._get_positional_actions()), *(f"[{word.upper()}]" for word in words)]
        self.usage = " ".join([self.prog, *named, "[FLAG ...]"])
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all flags and exit")

    flag = add_flag

    def add_argument_group(self, *args: Any, **kwargs: Any) -> _Group:
        """See `argparse`; groups have the method `flag`, too."""
        self._action_groups.append(group := _Group(self, *args, **kwargs))
        return group

    def add_subparsers(self, **kwargs: Any) -> Any:
        """See `argparse`; commands need no help beside their description."""
        return super().add_subparsers(action=_Commands, **kwargs)

    @property
    def flags(self) -> dict[str, argparse.Action]:
        """Every spelling of every flag of this parser."""
        return self._option_string_actions

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See `argparse`; says which flags are ignored, and refuses words that are left over."""
        scan = _Scan(self, sys.argv[1:] if args is None else args)
        known, unknown = super().parse_known_args(scan.words, namespace)
        if 0 < len(unknown) <= len(self.words):
            for name, word in zip(self.words, unknown, strict=False):
                if name in scan.typed:
                    raise OptionError(f"{word!r} and {scan.typed[name]} both give a {name}; leave one out")
                setattr(known, name, [word] if isinstance(getattr(known, name), list) else word)
                scan.typed[name] = word
            unknown = []
        if unknown:
            places = {"-m": "a model is given by -m", "-p": "a prompt by -p"}
            advice = [text for flag, text in places.items() if flag in self.flags]
            raise OptionError(
                f"{unknown[len(self.words)]!r} was not expected here; {', '.join([*advice, 'quote text that contains spaces'])}"
            )
        known.typed = {**getattr(known, "typed", {}), **scan.typed}
        if self.foreign and (variables := sorted(name for name in os.environ if _VARIABLE.fullmatch(name))):
            scan.ignored["augury reads no environment variables of llama.cpp; give the flags"] = variables
        for why, names in scan.ignored.items():
            say(f"{self.prog}: {', '.join(names)} {'is' if len(names) == 1 else 'are'} ignored: {why}")
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """See `argparse`; a command that does not exist is reported as a flag is."""
        if action.nargs == argparse.PARSER and value not in (commands := action.choices or ()):
            raise OptionError(f"there is no command {value!r}{nearest(value, commands)}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Report the error in one line, and exit with code 2."""
        sys.stderr.write(f"{self.prog}: {message}; see {self.prog} --help\n")
        raise SystemExit(OptionError.exit_code)

    def print_help(self, file: Any = None) -> None:
        """Write the help; argparse's own method would not report a full disk."""
        (file or sys.stdout).write(self.format_help())

    def format_help(self, *, is_whole: bool = False) -> str:
        """The help, of the flags that people use first or of all; in colours on a terminal."""
        shown = [each for each in self._actions if each.help != argparse.SUPPRESS]
        first = {flag for each in shown for flag in each.option_strings} if is_whole or not self.first else {*self.first}
        chosen = [each for each in shown if not each.option_strings or first & {*each.option_strings}]
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            if actions := [each for each in group._group_actions if each in chosen]:  # noqa: SLF001 - argparse offers no other way
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(actions)
                formatter.end_section()
        n_left = len(shown) - len(chosen)
        formatter.add_text(f"{self.prog} --help-all describes {n_left} more flags." if n_left else self.epilog)
        return formatter.format_help()

    def _get_formatter(self) -> argparse.HelpFormatter:
        if not sys.stdout.isatty():
            return argparse.HelpFormatter(self.prog)
        from rich_argparse import RichHelpFormatter

        return RichHelpFormatter(prog=self.prog)

    @property
    def advice(self) -> str:
        """What to do about a flag that is like none of this parser's: `-m MODEL` is MODEL where that is a word of its own."""
        words = [str(action.metavar or action.dest) for action in self._get_positional_actions()]
        return f"{' '.join(words)} is given without a flag; see --help" if words else "see --help"

    @property
    def has_commands(self) -> bool:
        """Whether everything from the first word that is not a flag is for another parser."""
        return any(action.nargs in {argparse.PARSER, argparse.REMAINDER} for action in self._actions)


class _Scan:
    """Puts each flag and its value into one word, so that argparse takes neither for something else.

    Left to itself it reads -ngl as -n with the value gl, and takes no value that begins with a dash.
    """

    def __init__(self, parser: Parser, words: Sequence[str]) -> None:
        self.words: list[str] = []
        self.typed: dict[str, str] = {}  # by where argparse keeps its value, which flag gave it last
        self.ignored: dict[str, list[str]] = {}  # names of flags by why they are
        self._parser = parser
        self._rest = deque(words)
        while self._rest:
            word = self._rest.popleft()
            if word == "--" or (parser.has_commands and not word.startswith("-")):
                self.words += [word, *self._rest]
                break
            if len(word) < 2 or word[0] != "-" or _NUMBER.fullmatch(word):
                self.words.append(word)
            else:
                self._read(word)

    def _read(self, word: str) -> None:
        typed, equals, glued = word.partition("=")
        name = self._known(typed)
        value = glued if equals else None
        if value == "--":  # argparse drops it
            raise OptionError(f"{typed} needs a value, and '--' is not one")
        if (action := self._parser.flags.get(name)) is not None:
            self._read_own(typed, name, action, value)
        elif (flag := self._parser.foreign.get(name)) is not None:
            self._read_foreign(typed, flag, value)
        else:
            raise OptionError(self._unknown(typed))

    def _known(self, typed: str) -> str:
        """A flag's name; as in llama.cpp, `--top_k` is `--top-k`."""
        return typed.replace("_", "-") if typed.startswith("--") else typed

    def _read_own(self, typed: str, name: str, action: argparse.Action, value: str | None) -> None:
        self.typed[action.dest] = typed
        if action.nargs == 0 and value is not None:
            raise OptionError(f"{typed} takes no value, but {value!r} was given")
        if action.nargs is not None:  # argparse's to read
            self.words.append(name if value is None else f"{name}={value}")
            return
        if value is None:
            value = self._value(typed, may_be_flag=isinstance(action, FlagsAction))
        if action.type is not None and not isinstance(action.type, str):
            converted(typed, value, action.type)
        if action.choices is not None and value not in action.choices:
            raise OptionError(f"{typed} is {value!r}, expected one of {', '.join(map(str, action.choices))}")
        self.words.append(f"{name}={value}")

    def _read_foreign(self, typed: str, flag: ForeignFlag, value: str | None) -> None:
        if flag.kind == "refused" and flag.off is None:
            raise OptionError(f"{typed}: {flag.text}")
        if value is not None:
            if not flag.n_values and not flag.is_value_optional:
                raise OptionError(f"{typed} takes no value, but {value!r} was given")
            values = [value]
        elif flag.is_value_optional:
            values = [self._rest.popleft()] if self._rest and flag.takes(self._rest[0]) else []
        else:
            values = [self._value(typed) for _ in range(flag.n_values)]
        flag = flag.given(values)
        if flag.kind == "refused":
            raise OptionError(f"{typed}: {flag.text}")
        if flag.kind == "ignored":
            self.ignored.setdefault(flag.text, []).append(typed)
        else:
            self._rest.appendleft(flag.text.format(*values))

    def _value(self, typed: str, *, may_be_flag: bool = False) -> str:
        if not self._rest or self._rest[0] == "--":
            raise OptionError(f"{typed} needs a value")
        word = self._rest[0]
        if not may_be_flag and self._is_flag(word.partition("=")[0]):
            raise OptionError(
                f"{typed} needs a value, but {word} is a flag; a text that looks like one is given as {typed}={word}"
            )
        return self._rest.popleft()

    def _is_flag(self, word: str) -> bool:
        name = self._known(word)
        return name in self._parser.flags or name in self._parser.foreign

    def _unknown(self, typed: str) -> str:
        if self._parser.has_commands:
            return f"there is no flag {typed} before the command; name that first, as in {self._parser.prog} COMMAND {typed}"
        if (glued := _GLUED.fullmatch(typed)) is not None and self._is_flag(glued[1]):
            return f"there is no flag {typed}; put a space before the value: {glued[1]} {glued[2]}"
        # a list of all flags would be a page: an unknown flag without a similar one gets the way to that page instead
        useful = [name for name, flag in self._parser.foreign.items() if flag.kind == "same as"]
        flags = {name.lstrip("-"): name for name in [*useful, *self._parser.flags]}
        close = similar(self._known(typed).lstrip("-"), flags)
        return f"{self._parser.prog} has no flag {typed}; {f'did you mean {flags[close]!r}?' if close else self._parser.advice}"
