"""Who drafts and how far: chosen when the engine is loaded, bounded by each request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from augury.errors import OptionError, UnsupportedError
from augury.options import Spec, build, nearest, options_of, parse_specs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from augury.interfaces import Drafter
    from augury.registry import Registry

__all__ = ["Speculation", "choose_drafter"]

_KEYS = ("type", "n_max", "n_min", "p_min")


def choose_drafter(
    registry: Registry,
    spec_type: str | Iterable[str],
    draft_model: str | Path | None = None,
    spec_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[type[Drafter], Any]:
    """The drafter that a user asked for, and its options.

    Args:
        registry: The drafters that there are.
        spec_type: `name:key=value,...`, or several of them; `none` for no drafter.
        draft_model: Given alone it asks for the drafter `draft-model`.
        spec_options: Options by drafter name, which count beside those in `spec_type`; the latter win.

    Raises:
        PluginError: There is no such drafter.
        OptionError: An option is unknown, out of range, or goes to a drafter that is not in use.
    """
    texts = (spec_type,) if isinstance(spec_type, str) or not isinstance(spec_type, Iterable) else tuple(spec_type)
    if not all(isinstance(text, str) for text in texts):
        raise OptionError(f"spec_type is {spec_type!r}, expected the name of a drafter, such as 'ngram-simple'")
    if not hasattr(spec_options or {}, "items"):
        raise OptionError(f"spec_options is {spec_options!r}, expected a mapping from drafters' names to options")
    specs = [spec for text in texts for spec in parse_specs(text) if spec.name != "none" or spec.values]
    if not specs:
        specs = [Spec("none" if draft_model is None else "draft-model")]
    if len(specs) > 1:
        raise UnsupportedError(f"{' and '.join(spec.name for spec in specs)}: one drafter at a time; choose one of them")
    (spec,) = specs
    drafter: type[Drafter] = registry.find("drafter", spec.name)
    values: dict[str, Any] = {}
    for name, given in (spec_options or {}).items():
        if registry.find("drafter", name) is drafter:
            values |= _mapping(given, f"spec_options: {name}")
        elif given:
            raise OptionError(f"options are given for {name}, but the drafter in use is {drafter.name}")
    values |= dict(spec.values)
    if draft_model is not None:
        if "model" not in options_of(drafter.options_class):
            raise OptionError(f"a draft model is given, but {drafter.name} uses none; leave one of the two out")
        values.setdefault("model", str(draft_model))
    return drafter, build(drafter.options_class, values, f"--spec-type {drafter.name}")


@frozen
class Speculation:
    """How far drafts may go, and the options of the drafter, as one request wants them."""

    drafter: str = "none"
    options: Any = None  # an instance of the drafter's options class
    n_max: int = 16  # tokens per draft; 0: the drafter is never called
    n_min: int = 0  # shorter drafts are thrown away

    def __attrs_post_init__(self) -> None:
        for name in ("n_max", "n_min"):
            if not isinstance(value := getattr(self, name), int) or isinstance(value, bool) or value < 0:
                raise OptionError(f"speculative: {name} is {value!r}, expected a whole number of at least 0")

    def override(self, wishes: Mapping[str, Any] | None) -> Speculation:
        """The same with what a request wants otherwise.

        Args:
            wishes: `n_max`, `n_min`, `p_min`, `type` ("none" or the drafter loaded), and per-request options under the
                drafter's name.

        Raises:
            OptionError: A key is unknown, out of range, or can only be set when the engine is loaded.
        """
        if wishes is None:
            return self
        if not hasattr(wishes, "items"):
            raise OptionError(f"speculative is {wishes!r}, expected a mapping such as {{'n_max': 8}}")
        known = (*_KEYS, *(() if self.drafter == "none" else (self.drafter,)))
        for key in wishes:
            if key not in known:
                raise OptionError(f"speculative: there is no {key!r}{nearest(str(key), known)}")
        changed = attrs.evolve(self, **{key: wishes[key] for key in ("n_max", "n_min") if key in wishes})
        values = dict(_mapping(wishes.get(self.drafter, {}), f"speculative: {self.drafter}"))
        if wishes.get("p_min") is not None:
            values["p_min"] = wishes["p_min"]
        if values:
            changed = attrs.evolve(changed, options=_with_options(self.drafter, self.options, values))
        kind = wishes.get("type", self.drafter)
        if kind == "none":
            return attrs.evolve(changed, n_max=0)
        if kind != self.drafter:
            raise OptionError(f"speculative: type is {kind!r}, but the engine was loaded with {self.drafter!r}, or use 'none'")
        return changed

    def __str__(self) -> str:
        """The drafter as `--spec-type` would name it, with the options that differ from their defaults."""
        given = {} if self.drafter == "none" else attrs.asdict(self.options)
        known = {} if self.drafter == "none" else options_of(type(self.options))
        return str(Spec(self.drafter, tuple((key, str(value)) for key, value in given.items() if value != known[key].default)))

    def effective(self) -> dict[str, Any]:
        """What is in force, in the form in which a request gives it."""
        told: dict[str, Any] = {"type": self.drafter, "n_max": self.n_max, "n_min": self.n_min}
        if self.drafter != "none" and (options := attrs.asdict(self.options)):
            told[self.drafter] = options
        return told


def _mapping(values: Any, where: str) -> Mapping[str, Any]:
    """The options of one drafter, if that is what they are."""
    if not hasattr(values, "items") or not all(isinstance(key, str) for key in values):
        raise OptionError(f"{where} is {values!r}, expected a mapping from options' names to values")
    checked: Mapping[str, Any] = values
    return checked


def _with_options(drafter: str, options: Any, values: Mapping[str, Any]) -> Any:
    where = f"speculative: {drafter}"
    known = options_of(type(options))
    for key in values:
        if (found := known.get(key.replace("-", "_"))) is not None and not found.is_per_request:
            raise OptionError(f"{where}: {key} can only be set when the engine is loaded")
    return build(type(options), attrs.asdict(options) | {key.replace("-", "_"): value for key, value in values.items()}, where)
