"""`augury serve`: its flags, and the process around the app."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.cli.drafter_flags import warn_of_synthetic
from augury.cli.log_output import configure_logging
from augury.cli.model_flags import add_model_flags, load_engine
from augury.cli.parser import count
from augury.cli.prompts import add_template_flag
from augury.cli.report import say
from augury.cli.sampling_flags import add_sampling_flags, request_params
from augury.cli.text_file import read_text
from augury.errors import AuguryError, OptionError, UnsupportedError
from augury.registry import Registry

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.interfaces import Progress
    from augury.plugins.server.server import Server, ServerOptions

__all__ = ["add_parser"]

_N_SLOTS = 4
_LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve", help="serve a model over HTTP", description="Serve a model over HTTP, to clients of OpenAI's interface."
    )
    _add_server_flags(parser.add_argument_group("server"))
    add_model_flags(parser, registry, argv, n_slots=_N_SLOTS)
    add_sampling_flags(parser, registry)
    add_template_flag(parser)
    parser.add_argument(
        "--reasoning-format",
        choices=("none", "deepseek", "auto"),
        default="auto",
        help="none leaves reasoning in the content of answers, the others tell it apart (default: auto)",
    )
    template = parser.add_mutually_exclusive_group()
    template.add_argument("--chat-template", metavar="JINJA", help="a chat template in place of the model's own")
    template.add_argument("--chat-template-file", type=Path, metavar="FILE", help="the same, from a file")
    parser.set_defaults(run=_run)


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        type=_words,
        default=("127.0.0.1",),
        metavar="ADDRESS,ADDRESS",
        help="where to listen, on all of these addresses (default: 127.0.0.1)",
    )
    group.add_argument(
        "--port", type=count(least=0), default=8080, metavar="N", help="where to listen; 0: any free port (default: 8080)"
    )
    group.add_argument(
        "-a", "--alias", type=_words, default=(), metavar="NAME,NAME", help="the model's names (default: that of -m)"
    )
    group.add_argument(
        "--api-key", type=_words, default=(), metavar="KEY,KEY", help="a client must have one of these keys (default: none)"
    )
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="more keys, one on each line; a line that begins with # is a comment"
    )
    group.add_argument(
        "--cors-origins",
        type=_words,
        default=(),
        metavar="ORIGIN,ORIGIN",
        help="web pages of these origins may ask, * for all, localhost for those of this machine (default: none)",
    )
    group.add_argument(
        *("-to", "--timeout"),
        type=count(least=1),
        default=3600,
        metavar="SECONDS",
        help="how long a request may take, waiting included (default: 3600)",
    )
    group.add_argument(
        "--sse-ping-interval",
        type=count(least=-1),
        default=30,
        metavar="SECONDS",
        help="after so long without news a stream sends a sign of life; -1: never (default: 30)",
    )
    group.add_argument(
        "--max-queue",
        type=count(least=0),
        default=256,
        metavar="N",
        help="how many requests may wait for a slot; more are told to come later (default: 256)",
    )
    group.add_argument(
        "--max-body-size", type=count(least=1), default=16, metavar="MIB", help="how large a request may be (default: 16)"
    )
    group.add_argument(
        "--shutdown-timeout",
        type=count(least=0),
        default=30,
        metavar="SECONDS",
        help="how long running requests may go on after a signal to end; then they are cancelled (default: 30)",
    )
    group.add_argument("--no-slots", action="store_false", dest="shows_slots", help="do not tell at /slots what the slots do")
    group.add_argument("--slots", action="store_true", dest="shows_slots", default=True, help="tell it, which is the default")
    group.add_argument("--slot-save-path", type=Path, metavar="FOLDER", help="slots may be saved to this folder")
    group.add_argument("--props", action="store_true", help="allow properties to be changed at /props")
    group.add_argument("--metrics", action="store_true", help="count for Prometheus, at /metrics")
    group.add_argument(
        "--sleep-idle-seconds",
        type=count(least=-1),
        default=-1,
        metavar="SECONDS",
        help="let go of the model when nobody has asked for so long, until somebody does (default: -1, never)",
    )
    group.add_argument("--no-ui", action="store_true", help="leave out the page at /")
    group.add_argument("--ssl-key-file", type=Path, metavar="FILE", help="serve HTTPS with this private key (PEM)")
    group.add_argument("--ssl-cert-file", type=Path, metavar="FILE", help="serve HTTPS with this certificate (PEM)")


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def _run(args: argparse.Namespace) -> int:
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        raise UnsupportedError(
            f"the server needs {' and '.join(missing)}, which is not installed; the extra has it: pip install 'augury[server]'"
        )
    from augury.plugins.server.server import Server

    options = _options_of(args)
    warn_of_synthetic(args)
    server = Server(options, partial(_load, args, _template_of(args)))
    if args.metrics:
        from augury.plugins.server.metrics import Metrics

        server.metrics = Metrics()
        args.registry.hooks.register(server.metrics)
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        for host in args.host:  # any free port is one for all of them
            port = listeners[0].getsockname()[1] if listeners else args.port
            listeners.append(stack.enter_context(_listening(host, port)))
        _log_requests(args.verbose)
        _serve(server, listeners, is_verbose=args.verbose > 0)
    if server.failure is not None:
        raise server.failure
    return 0


def _load(args: argparse.Namespace, template: str | None, progress: Progress) -> Engine:
    """Load the engine, with another chat template if one is given."""
    from augury.text.chat_template import ChatTemplate

    engine = load_engine(args, args.spec_type, args.model_draft, progress)
    if template is not None:
        engine.chat_template = ChatTemplate(template, engine.tokenizer)
    return engine


def _template_of(args: argparse.Namespace) -> str | None:
    if args.chat_template_file is not None:
        return read_text(args.chat_template_file)
    if args.chat_template is not None and "{" not in args.chat_template:
        raise OptionError(f"--chat-template is {args.chat_template!r}, expected a Jinja template; augury has none by name")
    template: str | None = args.chat_template
    return template


def _options_of(args: argparse.Namespace) -> ServerOptions:
    from augury.plugins.server.server import ServerOptions

    if not args.host:
        raise OptionError(
            "--host names no address, expected some separated by commas; 0.0.0.0 and :: are all of this machine's"
        )
    if (args.ssl_key_file is None) != (args.ssl_cert_file is None):
        raise OptionError("HTTPS needs both --ssl-key-file and --ssl-cert-file")
    for file in filter(None, (args.ssl_key_file, args.ssl_cert_file)):
        if not os.access(file, os.R_OK):
            raise OptionError(f"{file} cannot be read")
    if args.slot_save_path is not None and not args.slot_save_path.is_dir():
        raise OptionError(f"--slot-save-path is {args.slot_save_path}, expected a folder that exists")
    keys = [*args.api_key]
    if args.api_key_file is not None:
        lines = [line.strip() for line in read_text(args.api_key_file).splitlines()]
        keys += [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise OptionError(f"{args.api_key_file} holds no keys; leave --api-key-file out to serve everyone")
    return ServerOptions(
        names=args.alias or (Path(args.model).stem if args.model.endswith(".gguf") else args.model,),
        api_keys=tuple(keys),
        cors_origins=args.cors_origins,
        timeout_s=args.timeout,
        sse_ping_interval=args.sse_ping_interval,
        shutdown_timeout_s=args.shutdown_timeout,
        max_body_bytes=args.max_body_size << 20,
        params=request_params(args),
        chat_template_kwargs=args.chat_template_kwargs or {},
        reasoning_format=args.reasoning_format,
        shows_slots=args.shows_slots,
        takes_props=args.props,
        slot_save_path=args.slot_save_path and args.slot_save_path.resolve(),
        sleep_idle_s=args.sleep_idle_seconds if args.sleep_idle_seconds > 0 else None,
        has_page=not args.no_ui,
        ssl_key_file=args.ssl_key_file,
        ssl_cert_file=args.ssl_cert_file,
    )


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, before a model is loaded for nothing.

    Raises:
        AuguryError: The address is taken, or none of this machine's.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise AuguryError(f"cannot listen on {host} port {port}: {error}; choose another with --host and --port") from None


def _log_requests(verbosity: int) -> None:
    """Let uvicorn log as augury does: each request by its method, path and status, never by what it says."""
    configure_logging(verbosity=verbosity)
    ours, theirs = logging.getLogger("augury"), logging.getLogger("uvicorn")
    theirs.handlers[:], theirs.propagate = ours.handlers, False
    theirs.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)


def _serve(server: Server, listeners: list[socket.socket], *, is_verbose: bool) -> None:
    """Serve until a signal says to end."""
    import uvicorn

    from augury.plugins.server.app import make_app
    from augury.plugins.server.connection import Connection

    options = server.options
    config = uvicorn.Config(
        make_app(server),
        http=partial(Connection, head_s=options.patience_s, read_s=options.timeout_s),  # type: ignore[arg-type] # of h11
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=is_verbose,
        server_header=False,
        ssl_keyfile=options.ssl_key_file,
        ssl_certfile=options.ssl_cert_file,
        timeout_graceful_shutdown=options.shutdown_timeout_s,
    )
    process = uvicorn.Server(config)
    scheme = "https" if config.is_ssl else "http"
    addresses = [listener.getsockname()[:2] for listener in listeners]
    server.url = " and ".join(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in addresses)
    server.on_failure = lambda: setattr(process, "should_exit", True)
    try:
        process.run(sockets=listeners)
    except (KeyboardInterrupt, SystemExit):  # uvicorn raises the signal once more when all is done
        say("the server has ended")
