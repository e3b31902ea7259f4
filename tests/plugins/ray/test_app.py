"""The application of a Serve config: the server behind Serve's proxies, and all of it replaced while clients read."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import yaml
from oracles.models import tiny_model
from support.servers import READY_S

from augury import Engine
from augury.errors import OptionError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")]  # by Serve
PORT = 8517  # Serve's proxies take no free one
N_STREAMS, N_CLIENTS = 10 * int(os.environ.get("KILLS", "2")), 8
CONFIG = """
proxy_location: HeadOnly
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
  - name: augury
    import_path: augury.plugins.ray.app:app
    args: {{model: {model}, backend: reference, threads: 1, replicas: "2", ctx-size: 256, shutdown-timeout: 120, temp: {temp}}}
"""


def deployed(temp):
    """Deploy a config as `serve deploy` does, and wait for nothing."""
    from ray import serve
    from ray._common.utils import import_attr
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
    from ray.serve.schema import ServeDeploySchema

    config = CONFIG.format(port=PORT, model=tiny_model("llama-dense"), temp=temp)
    schema = ServeDeploySchema.model_validate(yaml.safe_load(config))
    (application,) = schema.applications
    built = call_user_app_builder_with_args_if_necessary(import_attr(application.import_path), application.args)
    serve.start(proxy_location=schema.proxy_location, http_options=schema.http_options.model_dump())
    serve._run(built, _blocking=False, name=application.name, route_prefix=application.route_prefix)


@pytest.fixture(scope="module")
def client(nodes):
    from ray import serve

    from augury.plugins.ray import cluster

    cluster.join(nodes.address)
    serve.shutdown()  # another test's may be left, without proxies, which would stay as it is
    deployed(0.5)
    with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=READY_S) as found:
        end = time.monotonic() + READY_S
        while not is_ready(found) and time.monotonic() < end:
            time.sleep(0.1)
        yield found
    serve.shutdown()


def is_ready(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def asked(client, i):
    """The tokens of a stream."""
    how = {"n_predict": 40, "seed": i, "temperature": 0.9, "ignore_eos": True}
    body = {"prompt": prompt(i), "stream": True, "return_tokens": True, **how}
    with client.stream("POST", "/completion", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1]["stop"], lines[-1]
    return [token for line in lines for token in line["tokens"]]


def prompt(i):
    return np.random.default_rng(i).integers(0, 128, 8).tolist()


def test_no_stream_is_cut_while_all_that_there_is_is_replaced(client, nodes):
    before, end = set(), time.monotonic() + READY_S
    while len(before) < 3 and time.monotonic() < end:  # one replica may be ready before the other
        before = {*nodes.workers("ray::ServeReplica:augury:")}
        time.sleep(0.1)
    assert len(before) == 3
    left = set(before)

    def replace():
        deployed(0.6)
        while left & {*nodes.workers("ray::ServeReplica")}:
            time.sleep(0.1)
        left.clear()

    replacing = threading.Thread(target=replace, daemon=True)
    found = []
    with ThreadPoolExecutor(N_CLIENTS) as pool:
        found += pool.map(lambda i: asked(client, i), range(N_CLIENTS))
        replacing.start()
        while len(found) < N_STREAMS or left:
            found += pool.map(lambda i: asked(client, i), range(len(found), len(found) + N_CLIENTS))
    with Engine.load(tiny_model("llama-dense"), backend="reference", threads=1, n_ctx=256, spec_type="none") as engine:
        how = {"max_tokens": 40, "temperature": 0.9, "ignore_eos": True}
        assert found == [[*engine.generate(prompt(i), seed=i, **how).tokens] for i in range(len(found))]


def test_arguments_that_no_flag_has_are_refused():
    from augury.plugins.ray.app import app

    with pytest.raises(
        OptionError, match="the arguments of the Serve application: there is no key 'modell'; did you mean 'model'"
    ):
        app({"modell": "smollm2"})
