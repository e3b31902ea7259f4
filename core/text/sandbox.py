"""Where chat templates run: Jinja2's sandbox, in a process of its own with limits, which `renderer` starts.

The sandbox keeps a template from Python's internals and from changing what it was given; lists and mappings that it made itself
it may change, as some do to count calls. The limits are the kernel's, on processor time and memory: no count of
loops or nodes stops every program. `9 ** 999999999`, `"%999999999d" % 1`, or the hash of a pair of a pair of a pair, each of
one thing twice, is a single operation, and nothing in Python interrupts it.
"""

from __future__ import annotations

import datetime as dt
import errno
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import SandboxedEnvironment, modifies_known_mutable

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.parser import Parser

resource: Any
try:
    resource = import_module("resource")
except ImportError:  # on Windows: no limit of memory, and one of time by another way
    resource = None

# A text consists of the conversation and the template's text around it, and all of it will be tokenized.
_MIN_CHARACTERS = 1 << 20
_CHARACTERS_PER_BYTE = 8
_MAX_MESSAGE = 500  # characters of an error's message, which a template may make as long as it likes


class _Refusal(Exception):  # noqa: N818 -- not a fault: the template's answer to these messages
    """An error that a template reports by calling `raise_exception`."""


class _Sandbox(SandboxedEnvironment):
    """Renders one template again and again, with the names that templates for transformers use."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._source, self._template = "", self.from_string("")
        self._given: frozenset[int] = frozenset()
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _refuse

    def write(self, source: str, names: Mapping[str, object], now: dt.datetime, n_characters: int) -> str:
        self.globals["strftime_now"] = now.strftime
        self.globals["date_string"] = f"{now:%d %b %Y}"  # Llama 3's template else writes the day of its release
        self._given = frozenset(map(id, _containers(names)))  # which live as long as the rendering
        pieces, length = [], 0
        if source != self._source:
            self._source, self._template = source, self.from_string(source)
        for piece in self._template.generate(names):
            pieces.append(piece)
            length += len(piece)
            if length > n_characters:
                raise SecurityError(f"it writes more than {n_characters} characters")
        return "".join(pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute; what changes a thing that it was given it may not."""
        is_changing = modifies_known_mutable(obj, attr) and id(obj) in self._given
        return not is_changing and super().is_safe_attribute(obj, attr, value)


def _containers(value: object) -> Iterator[object]:
    """All lists and mappings that a value of JSON's types holds, and itself."""
    rest = [value]
    while rest:
        found = rest.pop()
        if isinstance(found, list | Mapping):
            yield found
            rest += found.values() if isinstance(found, Mapping) else found


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks, for training, an assistant's text; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 -- as Jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def serve() -> None:
    """Answer requests, a line of JSON each, until there are no more. A limit ends the process: by SIGPROF, or with ENOMEM."""
    if resource is not None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # in any setting of the parent
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    sandbox = _Sandbox()
    for line in sys.stdin.buffer:
        try:
            request = json.loads(line)
            _limit(request["seconds"], request["n_bytes"])
            reply = json.dumps(_answer(sandbox, request, _MIN_CHARACTERS + _CHARACTERS_PER_BYTE * len(line)))
        except MemoryError:
            os._exit(errno.ENOMEM)
        if resource is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


def _limit(seconds: float, n_bytes: int) -> None:
    if resource is None:
        faulthandler.dump_traceback_later(seconds, exit=True)  # with code 1, of a thread that waits for no Python
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    try:
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes if hard == resource.RLIM_INFINITY else min(n_bytes, hard), hard))
    except ValueError:
        if sys.platform != "darwin":  # which takes no such limit
            raise
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _answer(sandbox: _Sandbox, request: Mapping[str, Any], n_characters: int) -> dict[str, str]:
    try:
        time, zone = request["now"]
        now = dt.datetime.fromisoformat(time)
        if zone is not None:  # the zone's name, which ISO 8601 leaves out
            now = now.replace(tzinfo=dt.timezone(now.utcoffset() or dt.timedelta(), zone))
        return {"text": sandbox.write(request["source"], request["names"], now, n_characters)}
    except _Refusal as error:
        return {"refusal": str(error)[:_MAX_MESSAGE]}
    except TemplateSyntaxError as error:
        return {"failure": f"is broken at line {error.lineno}: {error.message}"[:_MAX_MESSAGE]}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 -- a template may make any operation fail
        return {"failure": f"fails: {type(error).__name__}: {error}"[:_MAX_MESSAGE]}


def _refuse(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 -- as templates call it
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Write JSON as it is: Jinja2's own filter would escape <, >, & and ' for web pages. What `map` makes is a list."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_as_list
    )


def _as_list(value: object) -> list[object]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
