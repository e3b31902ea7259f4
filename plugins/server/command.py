"""`augury serve`: its flags, and the process around the app."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attrs import frozen

from augury import Engine, Registry
from augury.cli import (
    FIRST_FLAGS,
    FOREIGN_FLAGS_IN_SERVE,
    add_cache_flags,
    add_model_flags,
    add_option_flag,
    add_sampling_flags,
    add_template_flags,
    flag_of,
    load_engine,
    memory_needed,
    n_bytes_for_prompts,
    overrides_of,
    read_text,
    request_params,
    template_of,
    use_template,
    warn_of_synthetic,
)
from augury.errors import OptionError, UnsupportedError
from augury.files.cache import cache_folder
from augury.files.models import source_of
from augury.interfaces import Progress
from augury.options import option, options_of
from augury.plugins.server.config import ServedModel, models_of, split

if TYPE_CHECKING:
    from augury.cli import Parser
    from augury.plugins.server.file_facts import FileFacts
    from augury.plugins.server.metrics import Metrics
    from augury.plugins.server.server import Server, ServerOptions

_N_SLOTS = 4
_LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


@frozen
class _Flags:
    """The server's own flags."""

    host: str = option("127.0.0.1", help="addresses to listen on, separated by commas")
    port: int = option(8080, ge=0, le=65535, help="port to listen on; 0: any free port")
    alias: str | None = option(
        None, aliases=["a"], help="names of the model, separated by commas; without it the name that -m gives"
    )
    config: str | None = option(None, help="TOML file of flags, with a table [models.NAME] of flags for each model")
    models_dir: str | None = option(None, help="folder whose models can be asked for")
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
    max_queue: int = option(256, ge=0, help="how many requests may wait for a slot; further ones get 429")
    max_body_size: int = option(16, ge=1, help="MiB that the body of a request may have")
    shutdown_timeout: int = option(
        30, ge=0, help="seconds that running requests may go on after a signal to end; then they are cancelled"
    )
    slots: bool = option(True, help="answer /slots, which shows what each slot does")
    no_slots: bool = option(False, help="do not answer /slots")
    slot_save_path: str | None = option(None, help="folder that slots may be saved to")
    collect: str | None = option(
        None, help="folder that keeps the tokens of the newest requests and answers, 64 MiB, for augury learn -f"
    )
    props: bool = option(False, help="allow properties to be changed at /props")
    metrics: bool = option(False, help="count for Prometheus, at /metrics")
    sleep_idle_seconds: int = option(
        -1, ge=-1, help="seconds without a request after which the model is unloaded until the next one; -1: never"
    )
    no_ui: bool = option(False, aliases=["no-webui"], help="leave out the page at /")
    reasoning: str = option(
        "auto",
        choices=("on", "off", "auto"),
        aliases=["rea"],
        help="whether models think: the variable enable_thinking of chat templates; auto leaves it to the template",
    )
    reasoning_effort: str = option("default", help="how hard they think: the variable of that name, where templates know it")
    reasoning_budget: int = option(-1, ge=-1, help="after how many tokens thinking ends; -1: without a limit")
    pooling: str | None = option(
        None,
        choices=("none", "mean", "cls", "last"),
        help="how embeddings are pooled in requests that do not say; without it as the model's file says",
    )
    ssl_key_file: str | None = option(None, help="serve HTTPS with this private key (PEM)")
    ssl_cert_file: str | None = option(None, help="serve HTTPS with this certificate (PEM)")


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP, to clients of OpenAI, Anthropic, Ollama and llama.cpp.",
    )
    group = parser.add_argument_group("server")
    for each in options_of(_Flags).values():
        flags = [*map(flag_of, each.aliases), f"--{each.name.replace('_', '-')}"]
        add_option_flag(group, flags, each, (("server", each.name),), "server_flags")
    add_model_flags(parser, registry, argv, n_slots=_N_SLOTS)
    add_cache_flags(parser)
    parser.foreign = FOREIGN_FLAGS_IN_SERVE
    add_sampling_flags(parser, registry)
    add_template_flags(parser)
    parser.add_argument(
        "--reasoning-format",
        choices=("none", "deepseek", "auto"),
        default="auto",
        help="none leaves reasoning in the content of answers, the others separate it (default: auto)",
    )
    parser.show_first(f"{FIRST_FLAGS} --host --port --api-key --chat-template -v", words=("model",))
    parser.set_defaults(run=partial(_run, parser))


def _run(parser: Parser, typed: argparse.Namespace) -> int:
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        raise UnsupportedError(
            f"the server needs {' and '.join(missing)}, not installed here; install the extra: pip install 'augury[server]'"
        )
    from augury.plugins.server import process
    from augury.plugins.server.models import Models

    args, found = models_of(parser, typed)
    flags, metrics = _flags_of(args), None
    if flags.metrics:
        from augury.plugins.server.metrics import Metrics

        args.registry.hooks.register(metrics := Metrics())
    servers = [_server_of(model, metrics, is_alone=len(found) == 1) for model in found]
    _check_names(servers)
    wanted = {*typed.models, typed.model}  # at once: what -m names
    is_lazy = len(found) > 1 and not wanted & {found[0].args.model, found[0].names[0]}
    n_most = flags.models_max or len(servers)
    for model in found:  # those that are loaded share it
        model.args.cache_ram = -(-n_bytes_for_prompts(model.args.cache_ram) // (min(n_most, len(found)) << 20))
    models = Models(servers, n_most=n_most, is_lazy=is_lazy, is_strict=flags.strict_model)
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        for host in split(flags.host):  # any free port is one for all of them
            port = listeners[0].getsockname()[1] if listeners else flags.port
            listeners.append(stack.enter_context(process.listening(host, port)))
        process.serve(models, listeners, verbosity=args.verbose)
    if models.failure is not None:
        raise models.failure
    return 0


def _flags_of(args: argparse.Namespace) -> _Flags:
    return _Flags(**{name: value for ((_, name),), value, _ in args.server_flags})


def _server_of(model: ServedModel, metrics: Metrics | None, *, is_alone: bool) -> Server:
    """A model that is not loaded yet."""
    from augury.plugins.server.server import Server

    args, flags = model.args, _flags_of(model.args)
    args.max_queue = flags.max_queue
    warn_of_synthetic(args)
    if flags.collect is not None and (args.spec_synth_rates is not None or args.spec_synth_len is not None):
        raise OptionError(
            "--collect keeps answers to learn from, but with synthetic acceptance (--spec-synth-rates, --spec-synth-len) they "
            "are not the model's; leave one of the two out"
        )
    server = Server(_options_of(args, flags, model.names), partial(_load, args, template_of(args)))
    server.facts, server.metrics = partial(_facts_of, args, {}), metrics
    if not is_alone:
        server.measure = partial(memory_needed, args)
    if flags.collect is not None:
        from augury.plugins.server.collection import Collection

        server.collection = Collection(_folder("--collect", flags.collect))
    return server


def _check_names(servers: Sequence[Server]) -> None:
    """Refuse two models of one name, and tokens of two models in one folder."""
    owners = dict[str, str]()
    for server in servers:
        for name in server.options.names:
            if name in owners:
                raise OptionError(f"two models are called {name!r}; give them other names, by tables in --config")
            owners[name] = server.name
    if sum(server.collection is not None for server in servers) > 1:
        raise OptionError("--collect keeps the tokens of one model, and there are several; give it in the table of one")


def _load(args: argparse.Namespace, template: str | None, progress: Progress) -> Engine:
    """Load the engine, with another chat template if one is given."""
    engine = load_engine(args, args.spec_type, args.model_draft, progress)
    use_template(engine, template, parse_special=args.parse_special)
    return engine


def _facts_of(args: argparse.Namespace, known: dict[Path, FileFacts]) -> FileFacts:
    """The facts of a model's file, none of one that has yet to be downloaded; `known` are those that were read."""
    from augury.plugins.server.file_facts import FileFacts

    path = source_of(args.model, args.registry).find(args.model, cache_folder("models"))
    if path is None:
        return FileFacts()
    if path not in known:
        known[path] = FileFacts.of(path, overrides_of(args))
    return known[path]


def _options_of(args: argparse.Namespace, flags: _Flags, names: Sequence[str]) -> ServerOptions:
    from augury.plugins.server.server import ServerOptions

    if not split(flags.host):
        raise OptionError(
            "--host names no address, expected some separated by commas; 0.0.0.0 and :: are all of this machine's"
        )
    key_file, cert_file, keys_file = (
        None if name is None else Path(name) for name in (flags.ssl_key_file, flags.ssl_cert_file, flags.api_key_file)
    )
    if (key_file is None) != (cert_file is None):
        raise OptionError("HTTPS needs both --ssl-key-file and --ssl-cert-file")
    for file in filter(None, (key_file, cert_file)):
        if not os.access(file, os.R_OK):
            raise OptionError(f"{file} cannot be read")
    for origin in split(flags.cors_origins):
        if not (origin in ("*", "localhost") or _is_origin(origin)):
            raise OptionError(f"--cors-origins names {origin!r}, expected *, localhost or origins such as https://chat.example")
    keys = [*split(flags.api_key)]
    if flags.api_key is not None and not keys:  # from a variable that is not set, perhaps
        raise OptionError("--api-key names no key; leave it out to serve everyone")
    if keys_file is not None:
        lines = [line.strip() for line in read_text(keys_file).splitlines()]
        keys += [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise OptionError(f"{keys_file} holds no keys; leave --api-key-file out to serve everyone")
    return ServerOptions(
        names=names,
        api_keys=tuple(keys),
        cors_origins=split(flags.cors_origins),
        timeout_s=flags.timeout,
        sse_ping_interval=flags.sse_ping_interval,
        shutdown_timeout_s=flags.shutdown_timeout,
        max_body_bytes=flags.max_body_size << 20,
        params=request_params(args),
        chat_template_kwargs=_thinking(flags) | (args.chat_template_kwargs or {}),
        reasoning_format=args.reasoning_format,
        reasoning_budget=flags.reasoning_budget,
        pooling=flags.pooling,
        shows_slots=flags.slots and not flags.no_slots,
        takes_props=flags.props,
        has_strict_fields=flags.strict_fields,
        slot_save_path=None if flags.slot_save_path is None else _folder("--slot-save-path", flags.slot_save_path),
        sleep_idle_s=flags.sleep_idle_seconds if flags.sleep_idle_seconds > 0 else None,
        has_page=not flags.no_ui,
        ssl_key_file=key_file,
        ssl_cert_file=cert_file,
    )


def _folder(flag: str, name: str) -> Path:
    if not Path(name).is_dir():
        raise OptionError(f"{flag} is {name}, expected a folder that exists")
    return Path(name).resolve()


def _thinking(flags: _Flags) -> dict[str, Any]:
    """Variables of chat templates."""
    found: dict[str, Any] = {} if flags.reasoning == "auto" else {"enable_thinking": flags.reasoning == "on"}
    return found if flags.reasoning_effort == "default" else found | {"reasoning_effort": flags.reasoning_effort}


def _is_origin(text: str) -> bool:
    """Whether it is a scheme and a host, as browsers name origins."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme and parts.hostname) and text == f"{parts.scheme}://{parts.netloc}"
