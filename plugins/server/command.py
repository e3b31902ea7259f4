"""`augury serve`: its flags, and the process around the app."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
    override_words,
    overrides_of,
    plan_of,
    read_text,
    request_params,
    template_of,
    use_template,
    warn_of_synthetic,
)
from augury.errors import AuguryError, OptionError
from augury.extras import require_libraries
from augury.files.cache import cache_folder
from augury.files.gguf import ModelFile
from augury.files.models import resolve, source_of
from augury.interfaces import Progress
from augury.options import options_of
from augury.plugins.learn import head
from augury.plugins.server.config import (
    LIBRARIES,
    ServedModel,
    ServedModelFlags,
    ServerFlags,
    files_of,
    models_of,
    named,
    split,
)

if TYPE_CHECKING:
    from augury.cli import Parser
    from augury.plugins.server.learner import Learner
    from augury.plugins.server.metrics import Metrics
    from augury.plugins.server.models import Models
    from augury.plugins.server.server import FileFacts, Server, ServerOptions

_N_SLOTS = 4
_LOOPBACKS = ("127.0.0.1", "::1", "localhost")


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP, to clients of OpenAI, Anthropic, Ollama and llama.cpp.",
    )
    group = parser.add_argument_group("server")
    for each in (*options_of(ServerFlags).values(), *options_of(ServedModelFlags).values()):
        flags = [*map(flag_of, each.aliases), f"--{each.name.replace('_', '-')}"]
        add_option_flag(group, flags, each, (), each.name)
    add_model_flags(parser, registry, argv, n_slots=_N_SLOTS)
    add_cache_flags(parser)
    parser.foreign = FOREIGN_FLAGS_IN_SERVE
    add_sampling_flags(parser, registry)
    add_template_flags(parser)
    parser.flag(
        "--reasoning-format",
        "none leaves reasoning in the content of answers, the others separate it (default: auto)",
        choices=("none", "deepseek", "auto"),
        default="auto",
    )
    parser.show_first(f"{FIRST_FLAGS} --host --port --api-key --chat-template -v", words=("model",))
    parser.set_defaults(run=partial(_run, parser))


def _run(parser: Parser, typed: argparse.Namespace) -> int:
    require_libraries("the server needs", "server", *LIBRARIES)
    from augury.plugins.server import process

    args, models = served(parser, typed)
    first = args.port if models.options.vertex is None else models.options.vertex.port
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        for host in split(args.host):  # any free port is one for all of them
            port = listeners[0].getsockname()[1] if listeners else first
            listeners.append(stack.enter_context(process.listening(host, port)))
        process.serve(models, listeners, verbosity=args.verbose)
    if models.failure is not None:
        raise models.failure
    return 0


def served(parser: Parser, typed: argparse.Namespace) -> tuple[argparse.Namespace, Models]:
    """The flags of the server, and its models, as they were typed."""
    from augury.plugins.server.models import Models

    args, found = models_of(parser, typed)
    servers = _servers_of(found)
    return args, Models(
        servers,
        n_most=args.models_max,
        is_lazy=len(found) > 1 and not {*named(typed)} & {found[0].args.model, found[0].names[0]},  # -m loads at once
        is_strict=args.strict_model,
        loads=not args.no_models_autoload,
        find=lambda: _servers_of(models_of(parser, typed)[1]),
        registry=args.registry if args.manage_models else None,
    )


def _servers_of(found: Sequence[ServedModel]) -> list[Server]:
    """The models, none of them loaded."""
    servers = [_server_of(model, len(found)) for model in found]
    _check_names(servers)
    return servers


def _server_of(model: ServedModel, n_models: int) -> Server:
    from augury.plugins.server.server import Server

    args, metrics = argparse.Namespace(**vars(model.args)), None
    n_sharing = min(args.models_max or n_models, n_models)  # of the memory for prompts, those that are loaded
    args.cache_ram = -(-n_bytes_for_prompts(args.cache_ram) // (n_sharing << 20))
    warn_of_synthetic(args)
    if args.collect is not None and (args.spec_synth_rates is not None or args.spec_synth_len is not None):
        raise OptionError(
            "--collect keeps answers to learn from, but with synthetic acceptance (--spec-synth-rates, --spec-synth-len) they "
            "are not the model's; leave one of the two out"
        )
    if args.replicas is not None:
        _check_replicas(args)
    if args.metrics:
        from augury.plugins.server.metrics import Metrics

        metrics = Metrics()
    learner = _learner(args) if args.learn else None
    load = partial(_load, args, template_of(args), metrics, learner)
    server = Server(_options_of(args, model.names), load, metrics=metrics, learner=learner)
    server.facts, server.files = partial(_facts_of, args, {}), files_of(args)
    server.key = model.names[0], repr(model.args), *((path, path.stat().st_mtime_ns) for path in server.files)
    server.is_given, server.is_hidden = model.is_given, model.is_hidden
    if n_models > 1 or args.manage_models:
        server.measure = partial(memory_needed, args)
    if args.collect is not None:
        from augury.plugins.server.collection import Collection

        n_gb = 0 if args.replicas is not None else args.collect_disk
        server.collection = Collection(_folder("--collect", args.collect), n_gb * 10**9)
    if learner is not None:
        learner.take_over = server.take_over
    return server


def _learner(args: argparse.Namespace) -> Learner:
    """What trains heads for a model.

    Raises:
        OptionError: Flags do not fit together.
        UnsupportedError: JAX is not installed.
    """
    from augury.plugins.server.learner import Learner

    for is_wrong, reason in (
        (args.collect is None, "learns from what --collect keeps; name a folder with --collect"),
        (args.replicas is not None, "changes the head of one engine, and --replicas starts others; leave one of the two out"),
        (args.model_draft is not None, "makes the head itself, and -md names one; leave one of the two out"),
        (not args.collect_disk, "needs hidden states; raise --collect-disk"),
    ):
        if is_wrong:
            raise OptionError(f"--learn {reason}")
    require_libraries("--learn needs", "learn", "jax", "optax")

    def write_first(path: Path) -> None:
        with ModelFile.open(resolve(args.model, args.registry, Progress()), overrides_of(args)) as file:
            head.write_first_head(path, file, plan_of(file, args.registry), str(args.model))

    words = ["-m", str(args.model), *override_words(args), "-np", "1", "--disk", str(args.collect_disk)]
    words += [word for flag, given in (("-t", args.threads), ("-c", args.ctx_size)) if given for word in (flag, str(given))]
    return Learner(_folder("--collect", args.collect), words, args.learn_hours, write_first)


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


def _load(
    args: argparse.Namespace, template: str | None, metrics: Metrics | None, learner: Learner | None, progress: Progress
) -> Engine:
    """Load the engine, with the chat template and head that it is to have, and plugins of its own where they count for it."""
    if args.replicas is not None:
        from augury.plugins.ray import replicas

        found: Any = replicas.Replicas(args, template, progress)
        if metrics is not None:
            metrics.elsewhere = found.samples
        return found
    if learner is not None:
        args.model_draft = learner.draft_model()
    if metrics is not None:
        args = argparse.Namespace(**{**vars(args), "registry": Registry.discover()})
        args.registry.hooks.register(metrics)
    engine = load_engine(args, args.spec_type, args.model_draft, progress)
    use_template(engine, template, parse_special=args.parse_special)
    return engine


def _check_replicas(args: argparse.Namespace) -> None:
    from augury.plugins.ray import cluster

    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)?", args.replicas):
        raise OptionError(f"--replicas is {args.replicas!r}, expected a number, or two such as 1-4")
    least, _, most = args.replicas.partition("-")
    if int(least) > int(most or least):
        raise OptionError(f"--replicas is {args.replicas!r}, expected the smaller number first: {most}-{least}")
    if args.slot_save_path is not None:
        raise OptionError("--slot-save-path is for slots of one engine, and --replicas starts others; leave one of the two out")
    cluster.check_ray("--replicas needs")


def _facts_of(args: argparse.Namespace, known: dict[Path, FileFacts]) -> FileFacts:
    """The facts of a model's file, none of one that has yet to be downloaded; `known` are those that were read."""
    from augury.plugins.server.server import FileFacts

    path = source_of(args.model, args.registry).find(args.model, cache_folder("models"))
    if path is None:
        return FileFacts()
    if path not in known:
        try:
            known[path] = FileFacts.of(path, overrides_of(args))
        except AuguryError:  # told when the model is loaded
            known[path] = FileFacts()
    return known[path]


def _options_of(args: argparse.Namespace, names: Sequence[str]) -> ServerOptions:
    from augury.plugins.server.server import ServerOptions, VertexRoutes

    if not split(args.host):
        raise OptionError(
            "--host names no address, expected some separated by commas; 0.0.0.0 and :: are all of this machine's"
        )
    key_file, cert_file, keys_file = (
        None if name is None else Path(name) for name in (args.ssl_key_file, args.ssl_cert_file, args.api_key_file)
    )
    if (key_file is None) != (cert_file is None):
        raise OptionError("HTTPS needs both --ssl-key-file and --ssl-cert-file")
    for file in filter(None, (key_file, cert_file)):
        if not os.access(file, os.R_OK):
            raise OptionError(f"{file} cannot be read")
    for origin in split(args.cors_origins):
        if not (origin in ("*", "localhost") or _is_origin(origin)):
            raise OptionError(f"--cors-origins names {origin!r}, expected *, localhost or origins such as https://chat.example")
    keys = [*split(args.api_key)]
    if args.api_key is not None and not keys:  # from a variable that is not set, perhaps
        raise OptionError("--api-key names no key; leave it out to serve everyone")
    if keys_file is not None:
        lines = [line.strip() for line in read_text(keys_file).splitlines()]
        keys += [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise OptionError(f"{keys_file} holds no keys; leave --api-key-file out to serve everyone")
    if args.manage_models and not keys and (hosts := [host for host in split(args.host) if host not in _LOOPBACKS]):
        raise OptionError(
            f"--manage-models lets clients download and remove models, everyone who reaches {hosts[0]}; set --api-key"
        )
    effort = {} if args.reasoning_effort == "default" else {"reasoning_effort": args.reasoning_effort}
    return ServerOptions(
        names=names,
        tags=split(args.tags),
        api_keys=tuple(keys),
        cors_origins=split(args.cors_origins),
        timeout_s=args.timeout,
        sse_ping_interval=args.sse_ping_interval,
        shutdown_timeout_s=args.shutdown_timeout,
        max_body_bytes=args.max_body_size << 20,
        params=request_params(args),
        chat_template_kwargs={"enable_thinking": args.reasoning != "off", **effort, **(args.chat_template_kwargs or {})},
        reasoning_format=args.reasoning_format,
        reasoning_budget=args.reasoning_budget,
        pooling=args.pooling,
        is_verbose=args.verbose > 0,
        shows_slots=args.slots and not args.no_slots,
        takes_props=args.props,
        has_strict_fields=args.strict_fields,
        slot_save_path=None if args.slot_save_path is None else _folder("--slot-save-path", args.slot_save_path),
        sleep_idle_s=args.sleep_idle_seconds if args.sleep_idle_seconds > 0 else None,
        has_page=not args.no_ui,
        vertex=VertexRoutes.of(os.environ),
        ssl_key_file=key_file,
        ssl_cert_file=cert_file,
    )


def _folder(flag: str, name: str) -> Path:
    if not Path(name).is_dir():
        raise OptionError(f"{flag} is {name}, expected a folder that exists")
    return Path(name).resolve()


def _is_origin(text: str) -> bool:
    """Whether it is a scheme and a host, as browsers name origins."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme and parts.hostname) and text == f"{parts.scheme}://{parts.netloc}"
