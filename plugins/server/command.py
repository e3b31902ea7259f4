"""`augury serve`: its flags, and the process around the app."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attrs import frozen

from augury import Engine, Registry
from augury.cli import (
    FIRST_FLAGS,
    FOREIGN_FLAGS_IN_SERVE,
    add_model_flags,
    add_option_flag,
    add_sampling_flags,
    add_template_flags,
    configure_logging,
    flag_of,
    load_engine,
    overrides_of,
    read_text,
    request_params,
    say,
    template_of,
    use_template,
    warn_of_synthetic,
)
from augury.errors import AuguryError, OptionError, UnsupportedError
from augury.files.models import resolve
from augury.interfaces import Progress
from augury.options import option, options_of

if TYPE_CHECKING:
    from types import FrameType

    import uvicorn

    from augury.plugins.server.file_facts import FileFacts
    from augury.plugins.server.server import Server, ServerOptions

_N_SLOTS = 4
_BACKLOG = 1024  # clients that the system lets wait
_N_ACCEPTED = 4  # of them at once: asyncio accepts as many as wait before the first is told that there are too many
_LAST_WORDS_S = 2.0  # for telling a client that its time is over
_LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


@frozen
class _Flags:
    """The server's own flags."""

    host: str = option("127.0.0.1", help="addresses to listen on, separated by commas")
    port: int = option(8080, ge=0, le=65535, help="port to listen on; 0: any free port")
    alias: str | None = option(
        None, aliases=["a"], help="names of the model, separated by commas; without it the name that -m gives"
    )
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
    parser.set_defaults(run=_run)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in (text or "").split(","))))


def _run(args: argparse.Namespace) -> int:
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        raise UnsupportedError(
            f"the server needs {' and '.join(missing)}, not installed here; install the extra: pip install 'augury[server]'"
        )
    from augury.plugins.server.server import Server

    flags = _Flags(**{name: value for ((_, name),), value, _ in args.server_flags})
    options = _options_of(args, flags)
    args.max_queue = flags.max_queue
    warn_of_synthetic(args)
    if flags.collect is not None and (args.spec_synth_rates is not None or args.spec_synth_len is not None):
        raise OptionError(
            "--collect keeps answers to learn from, but with synthetic acceptance (--spec-synth-rates, --spec-synth-len) they "
            "are not the model's; leave one of the two out"
        )
    server = Server(options, partial(_load, args, template_of(args)), facts=cache(partial(_facts_of, args)))
    if flags.metrics:
        from augury.plugins.server.metrics import Metrics

        server.metrics = Metrics()
        args.registry.hooks.register(server.metrics)
    if flags.collect is not None:
        from augury.plugins.server.collection import Collection

        server.collection = Collection(_folder("--collect", flags.collect))
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        for host in _words(flags.host):  # any free port is one for all of them
            port = listeners[0].getsockname()[1] if listeners else flags.port
            listeners.append(stack.enter_context(_listening(host, port)))
        _log_requests(args.verbose)
        _serve(server, listeners, is_verbose=args.verbose > 0)
    if server.failure is not None:
        raise server.failure
    return 0


def _load(args: argparse.Namespace, template: str | None, progress: Progress) -> Engine:
    """Load the engine, with another chat template if one is given."""
    engine = load_engine(args, args.spec_type, args.model_draft, progress)
    use_template(engine, template, parse_special=args.parse_special)
    return engine


def _facts_of(args: argparse.Namespace) -> FileFacts:
    from augury.plugins.server.file_facts import FileFacts

    return FileFacts.of(resolve(args.model, args.registry, Progress()), overrides_of(args))


def _options_of(args: argparse.Namespace, flags: _Flags) -> ServerOptions:
    from augury.plugins.server.server import ServerOptions

    if not _words(flags.host):
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
    for origin in _words(flags.cors_origins):
        if not (origin in ("*", "localhost") or _is_origin(origin)):
            raise OptionError(f"--cors-origins names {origin!r}, expected *, localhost or origins such as https://chat.example")
    keys = [*_words(flags.api_key)]
    if flags.api_key is not None and not keys:  # from a variable that is not set, perhaps
        raise OptionError("--api-key names no key; leave it out to serve everyone")
    if keys_file is not None:
        lines = [line.strip() for line in read_text(keys_file).splitlines()]
        keys += [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise OptionError(f"{keys_file} holds no keys; leave --api-key-file out to serve everyone")
    return ServerOptions(
        names=_words(flags.alias) or (Path(args.model).stem if args.model.endswith(".gguf") else args.model,),
        api_keys=tuple(keys),
        cors_origins=_words(flags.cors_origins),
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


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, before a model is loaded for nothing.

    Raises:
        AuguryError: The address is taken, or none of this machine's.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise AuguryError(f"cannot listen on {host} port {port}: {error}; choose another with --host and --port") from None


def _log_requests(verbosity: int) -> None:
    """Let uvicorn log as augury does: each request by its method, path and status, never by its content."""
    configure_logging(verbosity=verbosity)
    ours, theirs = logging.getLogger("augury"), logging.getLogger("uvicorn")
    theirs.handlers[:], theirs.propagate = ours.handlers, False
    theirs.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)


def _process(server: Server, config: uvicorn.Config) -> uvicorn.Server:
    """uvicorn's, which would cut off running requests at the end of the shutdown's time without a word to clients."""
    import uvicorn

    class Process(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for listener in sockets or ():
                listener.listen(_BACKLOG)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit:
                is_hurried.set()
            else:
                super().handle_exit(sig, frame)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending = asyncio.create_task(self._end_requests())
            await super().shutdown(sockets)
            ending.cancel()

        async def _end_requests(self) -> None:
            """End what still runs when its time is over, or at a second signal."""
            with suppress(TimeoutError):
                await asyncio.wait_for(is_hurried.wait(), server.options.shutdown_timeout_s)
            asyncio.get_running_loop().run_in_executor(None, server.end_requests)
            await asyncio.sleep(_LAST_WORDS_S)
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    is_hurried = asyncio.Event()
    return Process(config)


def _serve(server: Server, listeners: list[socket.socket], *, is_verbose: bool) -> None:
    """Serve until a signal says to end."""
    import uvicorn

    from augury.plugins.server.app import make_app
    from augury.plugins.server.connection import Connection

    options = server.options
    config = uvicorn.Config(
        make_app(server),
        http=partial(  # type: ignore[arg-type] # of h11
            # the app answers late requests while it reads; a client that goes on after an answer is cut off
            Connection,
            head_s=options.patience_s,
            body_s=options.body_s + _LAST_WORDS_S,
            read_s=options.timeout_s,
        ),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=is_verbose,
        server_header=False,
        ssl_keyfile=options.ssl_key_file,
        ssl_certfile=options.ssl_cert_file,
        backlog=_N_ACCEPTED,
    )
    try:
        config.load()
    except ssl.SSLError as error:
        files = f"--ssl-cert-file {options.ssl_cert_file} and --ssl-key-file {options.ssl_key_file}"
        raise OptionError(f"{files} are not a certificate and its private key, as PEM: {error.reason or error}") from None
    process = _process(server, config)
    scheme = "https" if config.is_ssl else "http"
    addresses = [listener.getsockname()[:2] for listener in listeners]
    server.url = " and ".join(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in addresses)
    server.on_failure = lambda: setattr(process, "should_exit", True)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as after `nohup`; uvicorn takes care of the other two
        signal.signal(signal.SIGHUP, process.handle_exit)
    with suppress(KeyboardInterrupt, SystemExit):  # uvicorn raises the signal once more when all is done
        process.run(sockets=listeners)
    if server.failure is None:
        say("the server has ended")
