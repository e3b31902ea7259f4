"""The drafters and the limits of drafts: chosen when the engine is loaded, bounded by each request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
from attrs import frozen

from augury.errors import OptionError
from augury.files.mtp_file import is_mtp_alone
from augury.interfaces import Drafter
from augury.options import Spec, build, check_count, check_mapping, nearest, options_of, parse_specs, similar
from augury.registry import Registry
from augury.speculation.verification import RULES, Match, Synthetic, is_number

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile

_KEYS = ("type", "n_max", "n_min", "p_min")
_A_MODEL, _MTP = "a draft model", "layers of the target that predict further tokens"  # needs of drafters


@frozen
class Member:
    """A drafter of a chain: its name, an instance of its options class, and its aliases."""

    name: str
    options: Any
    aliases: tuple[str, ...] = ()
    serves: str | None = None  # it was not named: it is for requests that have this parameter
    is_serving: bool = False  # the request has that parameter

    def __str__(self) -> str:
        """As `--spec-type` would name it, with the options that differ from their defaults."""
        known = options_of(type(self.options))
        given = {name: getattr(self.options, name) for name in known}
        return str(Spec(self.name, tuple((key, str(value)) for key, value in given.items() if value != known[key].default)))


def kernels_of(chosen: Sequence[tuple[type[Drafter], Member]]) -> list[str]:
    """The modules of functions that rounds of these drafters run, compiled."""
    of_drafters = [drafter.traits.kernels for drafter, _ in chosen if drafter.traits.kernels is not None]
    return ["augury.speculation.round_kernel", *of_drafters] if chosen else []


def choose_drafters(
    registry: Registry,
    spec_type: str | Iterable[str],
    draft_model: str | Path | None = None,
    spec_options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    has_mtp: bool = False,
    open_model: Callable[[str | Path], ModelFile] | None = None,
) -> list[tuple[type[Drafter], Member]]:
    """The chain of drafters that a user asked for, in its order; empty for none.

    Args:
        registry: The drafters that there are.
        spec_type: `name:key=value,...;name;...`, or several such texts, which are one chain; `none` for no drafter; `auto` or
            no text at all for the preferred drafters without a model and, where a draft model is given, the preferred one with.
        draft_model: For the first drafter of the chain that takes one.
        spec_options: Options by drafter name, in addition to those in `spec_type`, which win.
        has_mtp: Whether the target has layers that predict further tokens, for `auto`, which comes to the preferred drafter
            with these as well.
        open_model: Opens the draft model's file, whose kind decides for `auto` which drafter is preferred. One of layers that
            predict further tokens, and of nothing else, counts as the target's.

    Raises:
        PluginError: There is no such drafter.
        OptionError: An option is unknown, out of range, or goes to a drafter that is not in use; a drafter occurs twice.
    """
    chain: dict[str, tuple[type[Drafter], dict[str, Any]]] = {}

    def is_of_target() -> bool:
        return draft_model is not None and open_model is not None and is_mtp_alone(open_model(draft_model))

    def kinds() -> Iterator[str | None]:
        is_lent = is_of_target()
        yield None
        if draft_model is not None and not is_lent:
            yield _A_MODEL
        if (has_mtp or is_lent) and any(drafter.traits.uses_mtp for drafter in registry.drafters.values()):
            yield _MTP

    def preferred(need: str | None) -> str:
        if need == _A_MODEL and draft_model is not None and open_model is not None:
            file = open_model(draft_model)
            if meant := [each.name for each in registry.drafters.values() if _takes_model(each) and each.drafts_with(file)]:
                return meant[0]
        return registry.choice("drafter", None, partial(_unsuitable, need=need))

    for spec in _specs(spec_type, map(preferred, kinds())):
        drafter: type[Drafter] = registry.find("drafter", spec.name)
        if drafter.name in chain:
            raise OptionError(f"--spec-type names {drafter.name} twice; a chain has each drafter once")
        chain[drafter.name] = (drafter, dict(spec.values))
    for name, given in check_mapping("spec_options", spec_options or {}).items():
        found = registry.find("drafter", name).name
        checked = check_mapping(f"spec_options: {name}", given)
        if found in chain:
            chain[found] = (chain[found][0], dict(checked) | chain[found][1])
        elif given and (has_mtp or not registry.drafters[found].traits.uses_mtp):  # or else auto would use it if it could
            in_use = " and ".join(chain) or "none"
            raise OptionError(
                f"options are given for {name}, but the drafter in use is {in_use}; "
                f"leave them out, or name {name} in --spec-type"
            )
    takers = (_give_model(registry, drafter, values, str(draft_model)) for drafter, values in chain.values())
    is_taken = draft_model is None or any(takers)
    chosen = [
        (drafter, Member(name, build(drafter.options_class, values, f"--spec-type {name}"), drafter.aliases))
        for name, (drafter, values) in chain.items()
    ]
    if not (is_taken or (uses_mtp(registry, chosen) and is_of_target())):
        who = f"{' and '.join(chain)} uses none" if chain else "no drafter is in use"
        raise OptionError(f"a draft model is given, but {who}; leave one of the two out")
    return chosen


def serving_drafters(registry: Registry, chosen: Iterable[tuple[type[Drafter], Member]]) -> list[tuple[type[Drafter], Member]]:
    """The drafters that are loaded without being named, for requests with the parameter that they draft from."""
    named = {drafter for drafter, _ in chosen}
    return [
        (drafter, Member(name, build(drafter.options_class, {}, name), drafter.aliases, drafter.traits.serves))
        for name, drafter in registry.drafters.items()
        if drafter.traits.serves is not None and drafter not in named
    ]


def uses_mtp(registry: Registry, chosen: Sequence[tuple[type[Drafter], Member]]) -> bool:
    """Whether one of some drafters, or one that it wraps, uses layers of the target that predict further tokens."""
    return any(
        drafter.traits.uses_mtp or uses_mtp(registry, choose_drafters(registry, drafter.wrapped(member.options) or "none"))
        for drafter, member in chosen
    )


def _give_model(registry: Registry, drafter: type[Drafter], values: dict[str, Any], model: str) -> bool:
    """Give a drafter, or the first that it wraps, a draft model, if it takes one and has none."""
    if _takes_model(drafter):
        values.setdefault("model", model)
        return True
    text = drafter.wrapped(build(drafter.options_class, values, f"--spec-type {drafter.name}"))
    specs = parse_specs(text) if text else ()
    for i, spec in enumerate(specs):
        inner = dict(spec.values)
        if spec.name not in ("auto", "none") and _give_model(registry, registry.find("drafter", spec.name), inner, model):
            wrapped = (*specs[:i], Spec(spec.name, tuple(inner.items())), *specs[i + 1 :])
            values.update(drafter.wrapping(";".join(map(str, wrapped))))
            return True
    return False


def _specs(spec_type: str | Iterable[str], preferred: Iterable[str]) -> list[Spec]:
    """The drafters named, `none` and `auto` resolved, the latter to the preferred ones."""
    texts = (spec_type,) if isinstance(spec_type, str) or not isinstance(spec_type, Iterable) else tuple(spec_type)
    if not all(isinstance(text, str) for text in texts):
        raise OptionError(f"spec_type is {spec_type!r}, expected the name of a drafter, or 'auto'")
    named = [spec for text in texts or ("auto",) for spec in parse_specs(text)]
    specs = [spec for spec in named if spec.name != "none" or spec.values]
    if specs and len(specs) < len(named):
        raise OptionError("--spec-type none leaves drafts out, but drafters are named as well; leave out one or the other")
    if any(spec.name == "auto" for spec in specs):
        if len(specs) > 1 or specs[0].values:
            raise OptionError("--spec-type auto chooses the drafters itself; leave the others and the options out")
        return [spec for text in preferred for spec in parse_specs(text)]
    return specs


def _unsuitable(drafter: type[Drafter], *, need: str | None) -> str | None:
    needed = _A_MODEL if _takes_model(drafter) else _MTP if drafter.traits.uses_mtp else None
    return None if needed == need else f"it takes {needed or 'nothing'}"


def _takes_model(drafter: type[Drafter]) -> bool:
    return "model" in options_of(drafter.options_class)


def speculative_params(params: dict[str, Any]) -> Any:
    """The parameters of a request for `Speculation.override`, taken out of all of them.

    Beside `speculative` that is, as llama.cpp's server spells it, `speculative.n_max` and so on.

    Raises:
        OptionError: The same is said twice.

    >>> speculative_params({"speculative.n_max": 8, "speculative": {"p_min": 0.5}, "seed": 1})
    {'p_min': 0.5, 'n_max': 8}
    """
    dotted = {key: params.pop(key) for key in [*params] if key.startswith("speculative.")}
    wanted = params.pop("speculative", None)
    for key, value in dotted.items():
        name = key.partition(".")[2]
        if wanted is not None and (not hasattr(wanted, "items") or name in wanted):
            raise OptionError(f"{key} is given as well as speculative, which is {wanted!r}; give one of them")
        wanted = {**(wanted or {}), name: value}
    return wanted


@frozen
class Speculation:
    """Which drafters may draft how far, as one request wants it."""

    members: tuple[Member, ...] = ()  # by priority
    n_max: int = 16  # tokens per draft; 0: no drafter is ever called
    n_min: int = 0  # shorter drafts are thrown away
    is_fixed: bool = False  # the first draft of the chain is taken as it is; otherwise the planner decides
    rule: Match = RULES["match"]  # by which drafts are accepted
    timeout_s: float = 30.0  # a drafter two of whose calls take longer is left out of the rest of the request

    def __attrs_post_init__(self) -> None:
        for name in ("n_max", "n_min"):
            object.__setattr__(self, name, check_count(f"speculative: {name}", getattr(self, name), least=0))
        if self.n_min > self.n_max > 0:
            raise OptionError(f"speculative: n_min is {self.n_min}, expected at most n_max, which is {self.n_max}")
        if not is_number(self.timeout_s) or not self.timeout_s > 0:
            raise OptionError(f"spec_timeout is {self.timeout_s!r}, expected a number of seconds above 0")

    @property
    def type(self) -> str:
        """The names of the drafters in use, as `--spec-type` takes them."""
        return ";".join(member.name for member in self.members if member.serves is None) or "none"

    def serving(self, parameters: Collection[str]) -> Speculation:
        """The same for a request with these parameters: drafters that serve one of them are in use."""
        if all(member.serves is None for member in self.members):
            return self
        serving = tuple(attrs.evolve(each, serves=None, is_serving=True) for each in self.members if each.serves in parameters)
        return attrs.evolve(self, members=serving + tuple(each for each in self.members if each.serves is None))

    def override(self, params: Mapping[str, Any] | Literal[True, False] | None) -> Speculation:
        """The same with a request's own settings.

        Args:
            params: False for no drafter, True or None for no wish, or `n_max`, `n_min`, `p_min` (of the drafters that have such
                an option), `type` ("none" or some of the drafters loaded, beside those that need no naming), and per-request
                options under a drafter's name.

        Raises:
            OptionError: A key is unknown, out of range, or can only be set when the engine is loaded.
        """
        if params is None or params is True:
            return self
        if params is False:
            params = {"type": "none"}
        if not hasattr(params, "items"):
            raise OptionError(f"speculative is {params!r}, expected True, False or a mapping such as {{'n_max': 8}}")
        params = self._by_name(params)
        p_min = params.get("p_min")
        if p_min is not None and not (is_number(p_min) and 0 <= p_min <= 1):
            raise OptionError(f"speculative: p_min is {p_min!r}, expected 0 to 1")
        members = [self._changed(member, params) for member in self.members]
        names = self._wanted(params.get("type", self.type))
        serving = [member.name for member in members if member.is_serving and member.name not in names] if names else []
        chosen = tuple(member for name in serving + names for member in members if member.name == name)
        return attrs.evolve(self, members=chosen, **self._limits(params))

    @property
    def _names(self) -> dict[str, str]:
        """The drafters' names, by all that they are called."""
        return {called: member.name for member in self.members for called in (member.name, *member.aliases)}

    def _by_name(self, params: Mapping[str, Any]) -> dict[str, Any]:
        known = {key: key for key in _KEYS} | self._names
        named: dict[str, Any] = {}
        for key, value in params.items():
            if key not in known:
                raise OptionError(f"speculative: there is no {key!r}{nearest(str(key), known)}")
            if known[key] in named:
                raise OptionError(f"speculative: {key} is another name of {known[key]}, which is given, too; give one of them")
            named[known[key]] = value
        return named

    def _limits(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The lengths of drafts. Unless the request gives both, the least is at most the longest, as in llama.cpp."""
        limits = {
            name: check_count(f"speculative: {name}", params.get(name, getattr(self, name)), least=0)
            for name in ("n_max", "n_min")
        }
        if not limits.keys() <= params.keys():
            limits["n_min"] = min(limits.values())
        return limits

    def _wanted(self, kind: Any) -> list[str]:
        names = self._names
        if not isinstance(kind, str) or not kind.strip():
            raise OptionError(f"speculative: type is {kind!r}, expected 'none' or some of {self.type!r}")
        specs = [spec for spec in parse_specs(kind) if spec.name != "none"]
        for spec in specs:
            if spec.name not in names:
                close = similar(spec.name, names)
                advice = "name some of that, or 'none'" if close is None else f"did you mean {close!r}?"
                raise OptionError(f"speculative: type is {spec.name!r}, but the engine was loaded with {self.type!r}; {advice}")
            if spec.values:
                raise OptionError(
                    f"speculative: type takes names alone; give options as {{{spec.name!r}: {dict(spec.values)}}}"
                )
        return list(dict.fromkeys(names[spec.name] for spec in specs))

    def _changed(self, member: Member, params: Mapping[str, Any]) -> Member:
        where = f"speculative: {member.name}"
        known = options_of(type(member.options))
        values = {key.replace("-", "_"): value for key, value in check_mapping(where, params.get(member.name, {})).items()}
        for key in values:
            if (found := known.get(key)) is not None and not found.is_per_request:
                raise OptionError(f"{where}: {key} can only be set when the engine is loaded")
        if params.get("p_min") is not None and "p_min" in known:
            values["p_min"] = params["p_min"]
        if not values:
            return member
        return attrs.evolve(member, options=build(type(member.options), attrs.asdict(member.options) | values, where))

    def __str__(self) -> str:
        """The chain as `--spec-type` would name it, with the options that differ from their defaults."""
        return ";".join(str(member) for member in self.members if member.serves is None) or "none"

    def effective(self) -> dict[str, Any]:
        """The settings in force, for statistics: also those that only the engine's options set."""
        members = [member for member in self.members if member.serves is None]
        found: dict[str, Any] = {"type": self.type, "n_max": self.n_max, "n_min": self.n_min}
        if members:
            found |= {"is_fixed": self.is_fixed, "verify": self.rule.name, "timeout_s": self.timeout_s}
            found |= {"synthetic": list(self.rule.rates)} if isinstance(self.rule, Synthetic) else {}
        return found | {member.name: attrs.asdict(member.options) for member in members if options_of(type(member.options))}
