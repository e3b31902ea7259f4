"""The application of a Serve config: replicas and the server before them, for `serve run`, `serve deploy` and KubeRay."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from ray import serve

from augury import Registry
from augury.cli import command_line, configure_logging
from augury.errors import OptionError
from augury.plugins.ray import replica
from augury.plugins.server import app as asgi, command, config

_LOOK_S = 0.1  # between looks at whether the model is loaded


def app(args: Mapping[str, Any]) -> Any:
    """Build the application, with the flags of `augury serve` as keys: `model`, `replicas`, `ctx-size`.

    Raises:
        OptionError: A key is unknown, or there are several models.
    """
    given, _ = _served(args)
    server = serve.deployment(serve.ingress()(Server)).options(
        name="server",
        ray_actor_options={"num_cpus": 0},  # replicas compute
        max_ongoing_requests=replica.N_MOST,
        graceful_shutdown_timeout_s=given.shutdown_timeout,
    )
    return server.bind(dict(args), replica.replicas_of(given))


class Server:
    """The server, behind Serve's proxies."""

    def __init__(self, args: Mapping[str, Any], _: Any) -> None:
        """Read the flags; the handle of the replicas comes from their name."""
        self._args = args

    def __serve_build_asgi_app__(self) -> Any:
        """The app, which has Serve's replicas compute."""
        given, models = _served(self._args)
        configure_logging(verbosity=given.verbose)
        made = asgi.make_app(models)
        made.router.lifespan_context = partial(_loaded, models, made.router.lifespan_context)
        return made


@asynccontextmanager
async def _loaded(models: Any, lifespan: Any, made: Any) -> AsyncIterator[Any]:
    """Start the app, and wait for its model: from then on Serve sends requests."""
    async with lifespan(made) as state:
        while not models.servers[0].is_ready:
            if models.failure is not None:
                raise models.failure
            await asyncio.sleep(_LOOK_S)
        yield state


def _served(args: Mapping[str, Any]) -> tuple[argparse.Namespace, Any]:
    """The flags of the one model, and what serves it."""
    parser = command_line.make_parser(Registry.discover(), ["serve"]).parse_args(["serve"]).run.args[0]
    typed = config.parsed(parser, {"replicas": "1", **args}, "the arguments of the Serve application")
    given, models = command.served(parser, typed)
    if models.are_several:
        raise OptionError(f"a Serve application has one model, and there are {len(models.servers)}; write one for each")
    return given, models
