"""Flags that plugins' options make: of drafters `--spec-NAME-FIELD`, and the aliases that the options declare."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from augury.cli.foreign_flags import FOREIGN_FLAGS, ignored
from augury.cli.parser import FlagsAction, Parser, converted, count, expecting
from augury.cli.report import say, synthetic_text
from augury.errors import AuguryError, OptionError
from augury.files.gguf import ModelFile
from augury.files.models import open_model
from augury.interfaces import Progress
from augury.options import Option, Spec, options_of, parse_specs
from augury.registry import Registry
from augury.sampling import sampling_options
from augury.speculation.config import choose_drafters
from augury.speculation.verification import RULES, Synthetic

Targets = tuple[tuple[str, str], ...]
"""Plugins and the names of their options that a flag means."""

_METAVARS = {bool: "on|off", int: "N", float: "X", str: "TEXT"}
_PREFIXES = {"drafter": "spec", "memory": "memory"}  # of the kinds of plugins whose options are flags


def flag_of(alias: str) -> str:
    """How an alias is typed: llama.cpp's short ones, such as `-ctkd`, take one dash."""
    return f"-{alias}" if len(alias) <= 4 and "-" not in alias else f"--{alias}"


def flags_of(kind: str, name: str, option: Option) -> list[str]:
    """The flags of a plugin's option: of drafters and memory managers `--spec-NAME-FIELD`, `--memory-NAME-FIELD`; aliases."""
    own = [f"--{_PREFIXES[kind]}-{name}-{option.name.replace('_', '-')}"] if kind in _PREFIXES else []
    return list(dict.fromkeys([*own, *map(flag_of, option.aliases)]))


def add_option_flag(
    group: Any, flags: Iterable[str], option: Option, targets: Targets, dest: str, *, is_shown: bool = True
) -> None:
    """Add an option's flags, whose values are kept under `dest` with their targets, in the order of the command line.

    Without targets the last value is kept, alone, or else the option's default.
    """
    facts = [text for text in (option.range, "|".join(option.choices)) if text]
    if option.default is not None and option.default is not False:
        facts.append(f"default: {'on' if option.default is True else option.default}")
    shown = (option.help + (f" ({', '.join(facts)})" if facts else "")).replace("%", "%%")
    group.add_argument(
        *flags,
        action=_Keep,
        targets=targets,
        option=option,
        dest=dest,
        default=() if targets else option.default,
        nargs="?" if option.kind is bool else None,
        metavar=_METAVARS[option.kind],
        help=shown if is_shown else argparse.SUPPRESS,
    )


class _Keep(argparse.Action):
    """Collects values with the options that they are for, and the flags that gave them."""

    def __init__(self, *, targets: Targets, option: Option, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._targets, self._option = targets, option

    def __call__(self, _parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        value = self._option.convert("true" if values is None else values, str(flag))
        kept = (*getattr(namespace, self.dest), (self._targets, value, flag)) if self._targets else value
        setattr(namespace, self.dest, kept)


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
    """`--draft-params "-m MODEL -c 2048"`: stores values where the draft model's own flags store theirs.

    In ik_llama.cpp (pull request 932) the text goes through the parser of the target's own flags: so all of these are known
    here. One that the draft model has no option for, since it follows the target, is ignored with a line that says so.
    """

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


_DEST = "drafter_values"
_SPEC_TYPE = ("--spec-type", "--spec-config", "--spec-draftless")
_LIMITS = {"n_max": ("draft_max", "--draft-max"), "n_min": ("draft_min", "--draft-min")}
_DRAFT_MODEL = ("-md", "--model-draft", "--spec-draft-model", "-draft", "--draft-params")


def add_speculation_flags(parser: Any, registry: Registry) -> None:
    """Add the flags that choose drafters and limit the drafts of all."""
    names = ", ".join(name for name in registry.drafters if name != "none")
    parser.flag(
        f"{' '.join(_SPEC_TYPE)} NAME[:K=V,...] ...",
        f"who drafts: auto, none, or some of {names} (see augury plugins), with options as in NAME:K=V and several as in "
        "'NAME;NAME'; repeated flags append (default: auto)",
    )
    parser.flag(f"{' '.join(_DRAFT_MODEL[:3])} MODEL", "a small model that drafts, named as with -m")
    parser.flag(
        "--draft-max --draft --draft-n --spec-draft-n-max N",
        "tokens per draft at most, whatever a drafter's own n_max allows (default: 16)",
        count(least=0),
        default=16,
    )
    parser.flag(
        "--draft-min --draft-n-min --spec-draft-n-min N",
        "shorter drafts are thrown away (default: 0)",
        count(least=0),
        default=0,
    )
    parser.flag(
        "--spec-fixed",
        "draft in every round, up to --draft-max, whether it pays or not; of several drafters the first that can",
    )
    parser.flag(
        "--spec-verify",
        "match: the output is that of plain decoding; rejection: it has the same distribution, and a seed repeats it with "
        "--spec-fixed alone (default: match)",
        choices=tuple(RULES),
        default="match",
    )
    parser.flag(
        "--spec-synth-rates P,P,...",
        "for benchmarks: accept token 1, 2, ... of a draft with these probabilities, the last for all later ones, whatever "
        "the model says; the text is then not the model's. Trees, and requests with a constraint, are verified as always",
        expecting("probabilities separated by commas, such as 0.9,0.8", lambda text: tuple(map(float, text.split(",")))),
    )
    parser.flag(
        "--spec-synth-len N",
        "the same with one probability for all tokens, so that N tokens of an endless draft are accepted on average",
        float,
    )
    parser.flag(
        "--spec-timeout SECONDS",
        "two calls that take longer leave a drafter out of the rest of a request; a constraint's end it (default: 30)",
        float,
        default=30.0,
    )


def add_drafter_flags(parser: Parser, registry: Registry, argv: Sequence[str]) -> None:
    """Add the flags of all drafters; the help shows those of the drafters that `argv` asks for."""
    owners: dict[str, list[tuple[str, Option]]] = {}
    general: list[tuple[str, str, str]] = []
    every = {name: options_of(drafter.options_class) for name, drafter in registry.drafters.items()}
    for name, options in every.items():
        for option in options.values():
            for flag in flags_of("drafter", name, option):
                if flag in parser.flags:
                    general.append((parser.flags[flag].dest, name, option.name))
                else:
                    owners.setdefault(flag, []).append((name, option))
    parser.set_defaults(drafter_general=[(dest, parser.get_default(dest), *owner) for dest, *owner in dict.fromkeys(general)])
    try:
        in_use = names_in_use(_spec_types(argv, registry), registry)
    except AuguryError:
        in_use = []  # said when the command runs, where it is not the help that was asked for
    group = parser.add_argument_group(
        "options of the drafters in use" if in_use else "options of drafters (--spec-type NAME --help shows those of NAME)"
    )
    if (owner := drafter_of_model(registry)) is not None:
        group.flag(
            "--draft-params -draft FLAGS",
            'the draft model as "-m MODEL -c 2048 -t 2 -ctk f16 -ctv f16 --backend NAME"; later values win',
            action=DraftParams,
            takers={name: options for name, options in every.items() if "model" in options},
            options=every[owner],
            keep_as=_DEST,
            dest=argparse.SUPPRESS,
        )
    groups: dict[tuple[Targets, Option], list[str]] = {}  # flags that mean the same option of the same drafters are one entry
    for flag, found in owners.items():
        targets = tuple((name, option.name) for name, option in found)
        groups.setdefault((targets, found[0][1]), []).append(flag)
    for (key, option), flags in groups.items():
        add_option_flag(group, flags, option, key, _DEST, is_shown=any(name in in_use for name, _ in key))


def add_memory_flags(group: Any, registry: Registry) -> None:
    """Add the flags of the memory managers' options: `--memory-NAME-FIELD`, and their aliases."""
    for name, manager in registry.memory_managers.items():
        for option in options_of(manager.options_class).values():
            add_option_flag(group, flags_of("memory", name, option), option, ((name, option.name),), "memory_values")


def memory_options(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Values given by flags, by memory manager."""
    values: dict[str, dict[str, Any]] = {}
    for ((name, field),), value, _ in args.memory_values:
        values.setdefault(name, {})[field] = value
    return values


def drafter_options(args: argparse.Namespace, in_use: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Values given by flags, by drafter in use.

    A drafter's option may have an alias that is a general flag, such as `--draft-min`: then it is that, unless given by itself.
    """
    values: dict[str, dict[str, Any]] = {}
    for dest, default, name, field in args.drafter_general:
        if name in in_use and (value := getattr(args, dest)) != default:
            values.setdefault(name, {})[field] = value
    for targets, value, _ in args.drafter_values:
        for name, field in targets:
            if name in in_use:
                values.setdefault(name, {})[field] = value
    return values


def leave_out_unused(args: argparse.Namespace, drafters: Sequence[str]) -> None:
    """Leave out flags that apply to none of some drafters, and say so. Raises OptionError: a flag names another drafter."""
    kept, unused = [], dict[str, None]()
    for targets, value, flag in args.drafter_values:
        if any(name in drafters for name, _ in targets):
            kept.append((targets, value, flag))
            continue
        for name, field in targets:
            if flag == f"--spec-{name}-{field.replace('_', '-')}":
                raise OptionError(f"{flag} is given, but {name} is not in use; leave it out, or name {name} in --spec-type")
        unused[flag] = None
    args.drafter_values = tuple(kept)
    if unused:
        are = "is" if len(unused) == 1 else "are"
        say(f"augury {args.command}: {', '.join(unused)} {are} ignored: no drafter in use has such an option")


def names_in_use(spec_types: Sequence[str], registry: Registry) -> list[str]:
    """The drafters that `--spec-type` names, in their order."""
    names = []
    for text in spec_types:
        for spec in parse_specs(text):
            if spec.name == "auto":
                names += [member.name for _, member in choose_drafters(registry, "auto", has_mtp=True)]
            else:
                names.append(registry.find("drafter", spec.name).name)
    return names


def drafter_of_model(registry: Registry, model: str = "any", progress: Progress | None = None) -> str | None:
    """The drafter that the engine chooses for `--model-draft`, or None if no drafter takes a model.

    With `progress`, which tells of its download, the kind of the file decides.
    """

    def opened(reference: str | Path) -> ModelFile:
        return open_model(reference, registry, progress or Progress())

    try:
        return choose_drafters(registry, "auto", model, open_model=None if progress is None else opened)[-1][1].name
    except AuguryError:
        return None


def takes_draft_model(names: Sequence[str], registry: Registry, owner: str | None) -> bool:
    """Whether some of these drafters takes a draft model of which `owner` is the drafter, see `drafter_of_model`."""
    kinds = [registry.drafters[name] for name in names]
    if owner is not None and registry.drafters[owner].traits.uses_mtp:
        return any(kind.traits.uses_mtp for kind in kinds)
    return any("model" in options_of(kind.options_class) for kind in kinds)


def split_draft_limits(spec_types: Sequence[str], registry: Registry) -> tuple[Sequence[str], dict[str, int]]:
    """Separate `n_max` and `n_min`, as arguments of `Engine.load`, from the options of a drafter that has none of those names.

    So `--spec-type draft:n_max=4` means the same as in ik_llama.cpp. Raises OptionError: there are several drafters, or no
    number.
    """
    specs = [spec for text in spec_types for spec in parse_specs(text)]
    limits: dict[str, int] = {}
    for spec in specs:
        for key, value in spec.values:
            if key not in _LIMITS or key in options_of(registry.find("drafter", spec.name).options_class):
                continue
            if len(specs) > 1:
                raise OptionError(f"--spec-type: {spec.name} has no {key} of its own; {_LIMITS[key][1]} limits all drafters")
            limits[_LIMITS[key][0]] = converted(f"--spec-type {spec.name}:{key}", value, count(least=0))
    if not limits:
        return spec_types, limits
    (spec,) = specs
    rest = tuple((key, value) for key, value in spec.values if key not in _LIMITS or _LIMITS[key][0] not in limits)
    return [str(Spec(spec.name, rest))], limits


def warn_of_synthetic(args: argparse.Namespace) -> None:
    """Warn if flags ask for synthetic acceptance. Raises OptionError: the rates are out of range, or given twice."""
    if rule := Synthetic.of(args.spec_synth_rates, args.spec_synth_len):
        say(f"augury: {synthetic_text(rule.rates)}: the text is not the model's, only its speed is meaningful")


def _spec_types(argv: Sequence[str], registry: Registry) -> list[str]:
    """The values of `--spec-type` in `argv`, before it is parsed in full; a draft model alone means its drafter."""
    texts, is_model_given = [], False
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        flag, equals, glued = word.partition("=")
        value = glued if equals else following
        if flag in _SPEC_TYPE and not value.startswith("-"):
            texts.append(value)
        elif (foreign := FOREIGN_FLAGS.get(flag)) is not None and foreign.text.startswith("--spec-type="):
            texts += [foreign.text.partition("=")[2]] if foreign.given([value]).kind == "same as" else []
        is_model_given = is_model_given or flag in _DRAFT_MODEL
    drafter = drafter_of_model(registry)
    return texts or ([drafter] if is_model_given and drafter is not None else [])
