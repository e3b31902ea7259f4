"""Where chat templates run: Jinja2's immutable sandbox, with limits, and the names that templates for transformers use.

The sandbox keeps a template from Python's internals and from changing what it is given. The limits keep it from what a few
characters can ask for: counting to a billion, or text of gigabytes. Imported only when a template is rendered.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from jinja2 import nodes
    from jinja2.parser import Parser
    from jinja2.runtime import Context

__all__ = ["Refusal", "Sandbox"]

# Far beyond what templates of real models need, far below what stops a machine.
_MAX_CHARACTERS = 1 << 26
_MAX_STEPS = 100_000  # numbers in all `range`s of one rendering
_MAX_BITS = 4096  # of an integer
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})


class Refusal(Exception):  # noqa: N818 -- not a fault: the template's answer to these messages
    """What a template reports by calling `raise_exception`."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering.

    Args:
        now: tells the time to templates that write the date.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, now: Callable[[], dt.datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._n_steps = 0
        self.filters["tojson"] = _to_json
        del self.filters["center"], self.globals["lipsum"]
        self.globals["range"] = self._range
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda form: now().strftime(form)

    def write(self, source: str, names: Mapping[str, object]) -> str:
        """Render a template.

        Raises:
            Refusal: the template calls `raise_exception`.
            jinja2.TemplateError, or anything else: the template is broken, or does what it may not.
        """
        pieces, n_characters = [], 0
        for piece in self.from_string(source).generate(names):
            pieces.append(piece)
            n_characters += len(piece)
            if n_characters > _MAX_CHARACTERS:
                raise SecurityError(f"it writes more than {_MAX_CHARACTERS} characters")
        return "".join(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply, or raise to a power, within the limits."""
        if isinstance(left, int) and isinstance(right, int):
            n_bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if n_bits > _MAX_BITS:
                raise SecurityError(f"{operator} makes an integer of more than {_MAX_BITS} bits")
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int) and len(sequence) * count > _MAX_CHARACTERS:
                raise SecurityError(f"{operator} makes a text or list longer than {_MAX_CHARACTERS}")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute."""
        return not (isinstance(obj, str) and attr in _PADDING) and super().is_safe_attribute(obj, attr, value)

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self._n_steps += len(numbers)
        if self._n_steps > _MAX_STEPS:
            raise SecurityError(f"its ranges hold more than {_MAX_STEPS} numbers")
        return numbers


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks, for training, what an assistant wrote; here it is its body alone."""

    tags = {"generation"}  # noqa: RUF012 -- as Jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: object) -> NoReturn:
    raise Refusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 -- as templates call it
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Write JSON as it is: Jinja2's own filter would escape <, >, & and ' for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
