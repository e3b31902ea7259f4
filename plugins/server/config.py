"""The flags of `augury serve`, and which models it has: by flags, --config, environment variables, and what is stored."""

from __future__ import annotations

import argparse
import configparser
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from augury.cli import Parser
from augury.errors import AuguryError, ModelFileError, OptionError
from augury.files.cache import cache_folder
from augury.files.models import source_of, stored_models
from augury.interfaces import Progress
from augury.options import option, options_of, similar
from augury.registry import Registry
from augury.sampling import sampling_options

LIBRARIES = ("fastapi", "httpx2", "uvicorn", "prometheus_client")  # of the extra, which augury itself does without

_VARIABLE = "AUGURY_"
_SWITCHES = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_OF_PRESETS = {  # what presets may say that came with a repository, beside sampling
    *sampling_options(),
    *("model", "model_draft", "alias", "tags", "dedup_cache_models", "ctx_size", "parallel", "pooling", "spec_type"),
    *("n_predict", "seed", "stop", "ignore_eos", "samplers", "dry_sequence_breakers", "chat_template_kwargs"),
    *("reasoning", "reasoning_effort", "reasoning_budget"),
}
_FURTHER = "-of-"  # in the names of files that are parts of one model; the first of them stands for all


@frozen
class ServerFlags:
    """Those that hold for all models."""

    host: str = option("127.0.0.1", help="addresses to listen on, separated by commas")
    port: int = option(8080, ge=0, le=65535, help="port to listen on; 0: any free port")
    config: str | None = option(
        None,
        aliases=["models-preset"],
        help="TOML file of flags, with a table [models.NAME] of flags for each model; an .ini file is read as llama.cpp does",
    )
    models_dir: str | None = option(None, help="folder whose models can be asked for")
    manage_models: bool = option(
        False, help="serve all models on this machine, and let clients download more, remove them, and give them other names"
    )
    no_models_autoload: bool = option(False, help="load models only when clients ask for it at /models/load")
    models_max: int = option(4, ge=0, help="how many models are loaded at a time; 0: as many as memory has room for")
    strict_model: bool = option(False, help="refuse requests for other names where there is one model, too")
    strict_fields: bool = option(False, help="refuse other servers' fields, also where their value means nothing here")
    api_key: str | None = option(None, help="keys, separated by commas; a client must send one of them")
    api_key_file: str | None = option(None, help="more keys, one on each line; a line that begins with # is a comment")
    cors_origins: str | None = option(
        None, help="web pages of these origins, separated by commas, may ask; * for all, localhost for those of this machine"
    )
    timeout: int = option(3600, ge=1, aliases=["to"], help="seconds that a request may take, waiting included")
    sse_ping_interval: int = option(
        30, ge=-1, help="seconds after which a stream that has nothing to send sends a keep-alive; -1: never"
    )
    max_body_size: int = option(16, ge=1, help="MiB that the body of a request may have")
    shutdown_timeout: int = option(
        30, ge=0, help="seconds that running requests may go on after a signal to end; then they are cancelled"
    )
    props: bool = option(False, help="allow properties to be changed at /props")
    metrics: bool = option(False, help="count for Prometheus, at /metrics")
    no_ui: bool = option(False, aliases=["no-webui"], help="leave out the page at /")
    ssl_key_file: str | None = option(None, help="serve HTTPS with this private key (PEM)")
    ssl_cert_file: str | None = option(None, help="serve HTTPS with this certificate (PEM)")


@frozen
class ServedModelFlags:
    """Those that a model may have in its own table of --config."""

    alias: str | None = option(
        None, aliases=["a"], help="names of the model, separated by commas; without it the name that -m gives"
    )
    tags: str | None = option(None, help="words about the model for clients that list models, separated by commas")
    dedup_cache_models: bool = option(False, help="leave the model's file out of the list of --manage-models")
    max_queue: int = option(256, ge=0, help="how many requests may wait for a slot; further ones get 429")
    replicas: str | None = option(
        None, help="processes that each hold the model, kept by Ray Serve: how many, or 1-4 for as many as are needed"
    )
    ray: str = option("local", help="with --replicas: the Ray cluster, HOST:PORT, ray://HOST:PORT, auto or local")
    slots: bool = option(True, help="answer /slots, which shows what each slot does")
    no_slots: bool = option(False, help="do not answer /slots")
    slot_save_path: str | None = option(None, help="folder that slots may be saved to")
    collect: str | None = option(
        None, help="folder that keeps the tokens of the newest requests and answers, 64 MiB, for augury learn -f"
    )
    collect_disk: int = option(
        4, ge=0, help="with --collect: GB of these requests' hidden states, which augury learn need not compute; 0: none"
    )
    learn: bool = option(False, help="with --collect: train a head on what is kept, while nobody asks")
    learn_hours: int = option(8, ge=1, help="with --learn: hours a day in which it may train")
    sleep_idle_seconds: int = option(
        -1, ge=-1, help="seconds without a request after which the model is unloaded until the next one; -1: never"
    )
    reasoning: str = option(
        "auto",
        choices=("on", "off", "auto"),
        aliases=["rea"],
        help="whether models think where their chat templates know the variable enable_thinking; auto: they do",
    )
    reasoning_effort: str = option("default", help="how hard they think: the variable of that name, where templates know it")
    reasoning_budget: int = option(-1, ge=-1, help="after how many tokens thinking ends; -1: without a limit")
    pooling: str | None = option(
        None,
        choices=("none", "mean", "cls", "last"),
        help="how embeddings are pooled in requests that do not say; without it as the model's file says",
    )


@frozen
class ServedModel:
    """A model, by its names, and all flags that hold for it."""

    names: tuple[str, ...]
    args: argparse.Namespace
    is_given: bool = True  # by the operator
    is_hidden: bool = False  # from lists


def named(args: argparse.Namespace) -> list[str]:
    """What -m names; nothing where it is left out."""
    return args.models or ([args.model] if "model" in args.typed else [])


def models_of(parser: Parser, args: argparse.Namespace) -> tuple[argparse.Namespace, list[ServedModel]]:
    """The flags of the server, and its models; `args` are the flags as they were typed.

    What is typed comes before what a model's table says, that before the keys above the tables, and variables come last.

    Raises:
        OptionError: A key is unknown, or two models have one name.
        ModelFileError: A model is none that there can be.
    """
    variables = parsed(parser, _variables(parser), "the environment")
    given, file = named(args), args.config or variables.config
    presets = None if file is not None or len(given) != 1 else _presets_of(given[0], args.registry)
    if presets is not None:
        given, file = [], str(presets)

    def flags(keys: Mapping[str, Any], where: str) -> argparse.Namespace:
        """What the file says."""
        found = parsed(parser, keys, where)
        if presets is not None:
            _check_presets(found, where)
        return found

    found = {} if file is None else _read(Path(file), parser)
    tables = found.pop("models", {})
    if not (isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())):
        raise OptionError(f"{file}: models is no table of tables, expected [models.NAME] before the keys of each model")
    above = flags(found, str(file))
    base = _over(_over(args, above), variables)
    models = [ServedModel((_name_of(name),), _with_model(base, name)) for name in given if name not in tables]
    for name, table in tables.items():
        own = flags(table, f"{file}, [models.{name}]")
        if (wrong := next((flag for field, flag in own.typed.items() if field in options_of(ServerFlags)), None)) is not None:
            raise OptionError(f"{file}, [models.{name}]: {wrong} holds for all models; give it above the tables")
        merged = _over(_over(_over(args, own), above), variables)
        models.append(ServedModel((name, *split(own.alias)), _with_model(merged, own.model if "model" in own.typed else name)))
    if (folder := base.models_dir) is not None:
        models += [ServedModel((path.stem,), _with_model(base, str(path))) for path in _files_in(Path(folder))]
    stored = _stored(base, models) if base.manage_models else []
    if not models and not stored:
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
    models.sort(key=lambda model: model.names[0] in tables and model.names[0] not in given)
    models += stored
    if base.manage_models:
        models = [evolve(model, names=(*model.names, *_aliases_of(model.names[0], models))) for model in models]
    return base, models


def files_of(args: argparse.Namespace) -> list[Path]:
    """The files of a model and its draft model that are here already, of a split one the first."""
    found = []
    for reference in filter(None, (args.model, args.model_draft)):
        with suppress(AuguryError):  # told when the model is loaded
            found.append(source_of(reference, args.registry).find(reference, cache_folder("models")))
    return [path for path in found if path is not None]


def path_of(name: str, registry: Registry) -> Path | None:
    """The file that is here of a model that a client may name."""
    try:
        source = source_of(name, registry)
        return source.find(name, cache_folder("models")) if source.is_public else None
    except ModelFileError:
        return None


def alias_file() -> Path:
    """Where the names are that clients gave, as JSON."""
    return cache_folder("models") / "aliases.json"


def aliases() -> dict[str, str]:
    """These names, each with the model that it means."""
    try:
        found = json.loads(alias_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(model) for name, model in found.items()} if isinstance(found, dict) else {}


def split(text: str | None) -> tuple[str, ...]:
    """The words of a flag that are separated by commas."""
    return tuple(filter(None, (word.strip() for word in (text or "").split(","))))


def _name_of(reference: str) -> str:
    """A model's name where none is given: that of a file, without its folder."""
    return Path(reference).stem if reference.endswith(".gguf") else reference


def _stored(base: argparse.Namespace, given: Sequence[ServedModel]) -> list[ServedModel]:
    """The models on this machine beside those that are given; those that a given one hides can still be asked for."""
    names = {name for model in given for name in model.names}
    hidden = {path for model in given if model.args.dedup_cache_models for path in files_of(model.args)}
    found = []
    for known, _, model in stored_models(base.registry):
        name = known.removeprefix("hf:")
        if name not in names:
            args = _with_model(base, model.reference)
            found.append(ServedModel((name,), args, is_given=False, is_hidden=model.files[0] in hidden))
    return found


def _aliases_of(name: str, models: Sequence[ServedModel]) -> list[str]:
    """The names that clients gave a model; one that a model has by itself is that one's."""
    taken = {each for model in models for each in model.names}
    return [alias for alias, meant in aliases().items() if meant == name and alias not in taken]


def _with_model(args: argparse.Namespace, model: str) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), "model": model})


def _files_in(folder: Path) -> Iterator[Path]:
    """The models in a folder and in its folders, each by its first file."""
    if not folder.is_dir():
        raise OptionError(f"--models-dir is {folder}, expected a folder that exists")
    for path in sorted([*folder.glob("*.gguf"), *folder.glob("*/*.gguf")]):
        if not path.name.startswith("mmproj") and (_FURTHER not in path.name or f"-00001{_FURTHER}" in path.name):
            yield path


def _read(path: Path, parser: Parser) -> dict[str, Any]:
    """The keys of a TOML file, or of an INI file as llama.cpp's router has them."""
    try:
        text = path.read_text("utf-8")
        return tomllib.loads(text) if path.suffix != ".ini" else _read_presets(text, parser)
    except OSError as error:
        raise OptionError(f"--config: {path}: {error.strerror}") from error
    except (ValueError, configparser.Error) as error:  # no TOML, or no UTF-8
        raise OptionError(f"--config: {path} is not {'INI' if path.suffix == '.ini' else 'TOML'}: {error}") from error


def _read_presets(text: str, parser: Parser) -> dict[str, Any]:
    """What llama.cpp's presets say: a section for each model, and `[*]`, or what comes before the first, for all."""
    presets = configparser.ConfigParser(strict=False, interpolation=None, default_section="")
    presets.optionxform = str  # type: ignore[assignment, method-assign] # short flags differ by case
    presets.read_string(f"[*]\n{text}")
    found = {name: _typed(parser, dict(presets[name])) for name in presets.sections()}
    above = found.pop("*")
    above.pop("version", None)
    return above | {"models": found}


def _presets_of(reference: str, registry: Registry) -> Path | None:
    """The presets that a reference stands for, where it means no model."""
    with suppress(ModelFileError):  # told when the model is loaded
        return source_of(reference, registry).presets(reference)
    return None


def _check_presets(args: argparse.Namespace, where: str) -> None:
    """Refuse what a stranger's presets shall not decide: files of this machine, addresses, keys, devices.

    Raises:
        OptionError: There is such a flag; `where` begins the message.
    """
    private = [args.typed[each] for each in ("model", "model_draft") if each in args.typed and not _is_public(args, each)]
    if wrong := [flag for field, flag in args.typed.items() if field not in _OF_PRESETS] + private:
        raise OptionError(f"{where}: {wrong[0]} is not for others to say; write the models in a file for --config")


def _is_public(args: argparse.Namespace, field: str) -> bool:
    return source_of(getattr(args, field), args.registry).is_public


def _typed(parser: Parser, texts: Mapping[str, str]) -> dict[str, Any]:
    """Values that stand as texts; those of flags without a value are true or false."""
    found: dict[str, Any] = {}
    for key, text in texts.items():
        found[key] = _SWITCHES.get(text.lower(), text) if _is_switch(parser, _flag_of(parser, key)) else text
    return found


def _variables(parser: Parser) -> dict[str, Any]:
    """Environment variables that have the name of a flag; one that is almost one is a mistake."""
    found = {}
    for variable, value in os.environ.items():
        name = variable.removeprefix(_VARIABLE).lower().replace("_", "-")
        if not variable.startswith(_VARIABLE) or (name == "port" and "://" in value):  # as Kubernetes names a service `augury`
            continue
        if f"--{name}" in parser.flags:
            found[name] = value
        elif (close := similar(name, _keys(parser))) is not None:
            meant = _VARIABLE + close.upper().replace("-", "_")
            raise OptionError(f"there is no environment variable {variable}; did you mean {meant!r}?")
    return _typed(parser, found)


def _is_switch(parser: Parser, flag: str) -> bool:
    if (other := parser.foreign.get(flag)) is not None:
        return not other.n_values and not other.is_value_optional
    return flag in parser.flags and parser.flags[flag].nargs == 0


def _flag_of(parser: Parser, key: str) -> str:
    """The flag of a key, of this program or another; empty where there is none."""
    spellings = f"--{key.replace('_', '-')}", f"-{key}"
    return next((each for each in spellings if each in parser.flags or each in parser.foreign), "")


def _keys(parser: Parser) -> list[str]:
    return [flag.removeprefix("--") for flag in parser.flags if flag.startswith("--") and "help" not in flag]


def parsed(parser: Parser, found: Mapping[str, Any], where: str) -> argparse.Namespace:
    """The flags that keys and their values mean.

    Raises:
        OptionError: There is no such key, or it has another kind of value; `where` begins the message.
    """
    words = []
    for key, value in found.items():
        flag = _flag_of(parser, key)
        if not flag or "help" in flag:
            close = similar(key, _keys(parser))
            meant = "augury serve --help-all lists the flags" if close is None else f"did you mean {close!r}?"
            raise OptionError(f"{where}: there is no key {key!r}; {meant}")
        if isinstance(value, dict):
            raise OptionError(f"{where}: {key} is a table, expected a value")
        values = [*map(_text, value)] if isinstance(value, list) else [_text(value)]
        action = parser.flags.get(flag)
        if _is_switch(parser, flag):
            if not isinstance(value, bool):
                raise OptionError(f"{where}: {key} is {value!r}, expected true or false")
            words += [flag] * value
        else:
            words += [
                f"{flag}={text}" for text in (values if action is not None and action.default == [] else [",".join(values)])
            ]
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
