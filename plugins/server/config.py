"""Which models `augury serve` has, and the flags of each: by -m, --models-dir, --config and environment variables."""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from augury.cli import Parser
from augury.errors import OptionError
from augury.files.models import source_of
from augury.interfaces import Progress
from augury.options import options_of, similar
from augury.plugins.server.flags import ServerFlags

_VARIABLE = "AUGURY_"
_SWITCHES = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_FURTHER = "-of-"  # in the names of files that are parts of one model; the first of them stands for all


@frozen
class ServedModel:
    """A model, by its names, and all flags that hold for it."""

    names: tuple[str, ...]
    args: argparse.Namespace


def models_of(parser: Parser, args: argparse.Namespace) -> tuple[argparse.Namespace, list[ServedModel]]:
    """The flags of the server, and its models; `args` are the flags as they were typed.

    What is typed comes before what a model's table says, that before the keys above the tables, and variables come last.

    Raises:
        OptionError: A key is unknown, or two models have one name.
        ModelFileError: A model is none that there can be.
    """
    variables = _parsed(parser, _variables(parser), "the environment")
    file = args.config or variables.config
    found = {} if file is None else _read(Path(file))
    tables = found.pop("models", {})
    if not (isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())):
        raise OptionError(f"{file}: models is no table of tables, expected [models.NAME] before the keys of each model")
    above = _parsed(parser, found, str(file))
    base = _over(_over(args, above), variables)
    given = args.models or ([args.model] if "model" in args.typed else [])
    models = [ServedModel((_name_of(name),), _with_model(base, name)) for name in given if name not in tables]
    for name, table in tables.items():
        own = _parsed(parser, table, f"{file}, [models.{name}]")
        if (wrong := next((flag for field, flag in own.typed.items() if field in options_of(ServerFlags)), None)) is not None:
            raise OptionError(f"{file}, [models.{name}]: {wrong} holds for all models; give it above the tables")
        merged = _over(_over(_over(args, own), above), variables)
        models.append(
            ServedModel((name, *split(own.alias)), _with_model(merged, own.model if "model" in own.typed else name))
        )
    if (folder := base.models_dir) is not None:
        models += [ServedModel((path.stem,), _with_model(base, str(path))) for path in _files_in(Path(folder))]
    if not models:
        models = [ServedModel((_name_of(base.model),), base)]
    if aliases := split(base.alias):
        if len(models) > 1:
            raise OptionError(
                f"--alias names one model, and there are {len(models)}; give them other names by tables in --config"
            )
        models = [ServedModel(aliases, models[0].args)]
    for model in models if len(models) > 1 else ():
        source = source_of(model.args.model, args.registry)
        if source.name == "path":  # others may have to download it
            source.fetch(model.args.model, Path(), Progress())
    return base, sorted(models, key=lambda model: model.names[0] in tables and model.names[0] not in given)


def split(text: str | None) -> tuple[str, ...]:
    """The words of a flag that are separated by commas."""
    return tuple(filter(None, (word.strip() for word in (text or "").split(","))))


def _name_of(reference: str) -> str:
    """A model's name where none is given: that of a file, without its folder."""
    return Path(reference).stem if reference.endswith(".gguf") else reference


def _with_model(args: argparse.Namespace, model: str) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), "model": model})


def _files_in(folder: Path) -> Iterator[Path]:
    """The models in a folder and in its folders, each by its first file."""
    if not folder.is_dir():
        raise OptionError(f"--models-dir is {folder}, expected a folder that exists")
    for path in sorted([*folder.glob("*.gguf"), *folder.glob("*/*.gguf")]):
        if not path.name.startswith("mmproj") and (_FURTHER not in path.name or f"-00001{_FURTHER}" in path.name):
            yield path


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OptionError(f"--config: {path}: {error.strerror}") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise OptionError(f"--config: {path} is not TOML: {error}") from error


def _variables(parser: Parser) -> dict[str, Any]:
    """Environment variables that have the name of a flag; one that is almost one is a mistake."""
    found = {}
    for variable, value in os.environ.items():
        name = variable.removeprefix(_VARIABLE).lower().replace("_", "-")
        if not variable.startswith(_VARIABLE):
            continue
        if f"--{name}" in parser.flags:
            found[name] = _SWITCHES.get(value.lower(), value) if parser.flags[f"--{name}"].nargs == 0 else value
        elif (close := similar(name, _keys(parser))) is not None:
            meant = _VARIABLE + close.upper().replace("-", "_")
            raise OptionError(f"there is no environment variable {variable}; did you mean {meant!r}?")
    return found


def _keys(parser: Parser) -> list[str]:
    return [flag.removeprefix("--") for flag in parser.flags if flag.startswith("--") and "help" not in flag]


def _parsed(parser: Parser, found: Mapping[str, Any], where: str) -> argparse.Namespace:
    """The flags that keys and their values mean."""
    words = []
    for key, value in found.items():
        spellings = f"--{key.replace('_', '-')}", f"-{key}"
        flag = next((each for each in spellings if each in parser.flags), "")
        if (action := parser.flags.get(flag)) is None or "help" in flag:
            close = similar(key, _keys(parser))
            meant = "augury serve --help-all lists the flags" if close is None else f"did you mean {close!r}?"
            raise OptionError(f"{where}: there is no key {key!r}; {meant}")
        if isinstance(value, dict):
            raise OptionError(f"{where}: {key} is a table, expected a value")
        values = [*map(_text, value)] if isinstance(value, list) else [_text(value)]
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise OptionError(f"{where}: {key} is {value!r}, expected true or false")
            words += [flag] * value
        else:
            words += [f"{flag}={text}" for text in (values if action.default == [] else [",".join(values)])]  # it is collected
    try:
        return parser.parse_args(words)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _over(args: argparse.Namespace, below: argparse.Namespace) -> argparse.Namespace:
    """The flags of two layers: where both have a value, that of the upper; flags that are collected come after the lower's."""
    found = {**vars(args), "typed": {**below.typed, **args.typed}}
    for name in below.typed:
        value = getattr(below, name)
        if isinstance(value, tuple) and isinstance(found[name], tuple):
            found[name] = (*value, *found[name])
        elif isinstance(value, dict) and found[name]:
            found[name] = {**value, **found[name]}
        elif name not in args.typed:
            found[name] = value
    return argparse.Namespace(**found)
