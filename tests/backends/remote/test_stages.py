"""Layers on nodes: to the bit what one process computes."""

import numpy as np
import pytest
from oracles.models import tiny_model
from oracles.passes import all_that_passes_tell, run_of
from support.nodes import node_on_thread

from augury import Engine, Placement, Registry
from augury.backends.numba_cpu import model as model_module
from augury.backends.numba_cpu.kernels import isa
from augury.backends.remote import RemoteBackend, RemoteOptions, backend as backend_module, connection
from augury.errors import LostDeviceError, OptionError, UnsupportedError
from augury.files.models import open_model
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.stages import Stage, StagedBackend
from augury.types import ModelOptions

REGISTRY = Registry.discover()
OPTIONS = ModelOptions(n_slots=4, n_ctx=64, threads=1, draft_max=9)
RIGHT = backend_module.versions()
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]


@pytest.fixture(scope="module")
def node():
    with node_on_thread(registry=REGISTRY) as made:
        yield made


def staged(name, places, node):
    """A tiny model with a stage for each letter of `places`: here or at the node, the last one with the output."""
    file = open_model(tiny_model(name), REGISTRY, Progress())
    plan = plan_of(file, REGISTRY).without_mtp().for_context(OPTIONS.n_ctx)
    cuts = [0, *plan.cuts()[: len(places) - 1], len(plan.layers) + 1]
    stages = []
    for i, place in enumerate(places):
        here = make_backend(REGISTRY, "numba-cpu")
        stages.append(Stage(here if place == "h" else RemoteBackend(RemoteOptions(node.address)), *cuts[i : i + 2]))
        stages[-1].backend.memory_needed(file, plan.stage(*cuts[i : i + 2]), OPTIONS)
    device = stages[0].backend if len(places) == 1 else StagedBackend(stages)
    model = device.load(file, plan, OPTIONS, Progress())
    assert model.state_spec == device.state_spec(plan, OPTIONS)
    return model


@pytest.mark.parametrize("name", ["llama-dense", "jamba-dense", "qwen35-dense", "qwen3moe-moe", "deepseek4-moe"])
def test_stages_on_nodes_are_the_whole_model_to_the_bit(node, name):
    whole = staged(name, "h", node)
    right = [array.copy() for array in all_that_passes_tell(whole)]
    whole.close()
    for places in ("hnh", "nn", "n"):
        model = staged(name, places, node)
        for found, expected in zip(all_that_passes_tell(model), right, strict=True):
            assert np.array_equal(found, expected)
        model.close()


def test_rows_that_stay_on_a_node_are_told_as_they_are(node):
    here, there = staged("llama-dense", "h", node), staged("llama-dense", "n", node)
    batch, rows = run_of(PROMPT), np.int32([1, 0, 5])
    for n in (128, 100, 100, 128):
        left, right = (model.forward(batch).first(n) for model in (here, there))
        for k in (3, 2, 200):
            for found, expected in zip(right.top_k(rows, k), left.top_k(rows, k), strict=True):
                assert np.array_equal(found, expected)
        assert np.array_equal(right.argmax(), left.argmax())
        assert [right.log_normalizer(i) for i in range(9)] == [left.log_normalizer(i) for i in range(9)]
        for ids in (right.top_k(rows, 3)[0][0], np.int32([99, 0])):
            assert np.array_equal(right.gather(1, ids), left.gather(1, ids))
        assert np.array_equal(right.rows(), left.rows())
    for model in (here, there):
        model.close()


@pytest.mark.parametrize("name", ["llama-dense", "qwen35-dense"])
@pytest.mark.parametrize("spec_type", ["none", "suffix", "self-spec:mode=layers,layers=1"])
def test_texts_are_those_of_one_process(node, name, spec_type):
    how = {"spec_type": spec_type, "spec_fixed": spec_type != "none", "slots": 2, "n_ctx": 64, "threads": 1}
    texts = []
    for devices in (None, f"CPU,node:{node.address},CPU"):
        with Engine.load(tiny_model(name), registry=REGISTRY, placement=Placement(devices), **how) as engine:
            answers = engine.submit(PROMPT, n=2, temperature=0.9, seed=5, max_tokens=16)
            greedy = engine.generate(PROMPT, temperature=0, max_tokens=16)
            texts.append(([each.result().tokens for each in answers], greedy.tokens))
    assert texts[0] == texts[1]
    assert engine.config["backend"].startswith(f"numba-cpu on CPU from layer 0 + numba-cpu on node:{node.address} from layer 1")


def placed(devices, **how):
    engine = Engine.load(
        tiny_model("llama-dense"), registry=REGISTRY, placement=Placement(devices, **how), n_ctx=64, threads=1, spec_type="none"
    )
    engine.close()
    return [part.split(" on ")[1] for part in engine.config["backend"].split(" + ")]


def test_devices_share_layers_in_their_order_where_the_cpu_is_named_after_others(node):
    there = f"node:{node.address}"
    assert placed(f"CPU,{there},CPU") == ["CPU from layer 0", f"{there} from layer 1", "CPU from layer 2"]
    assert placed(f"{there},CPU", tensor_split="2,1") == [f"{there} from layer 0", "CPU from layer 2"]
    assert placed(f"CPU,{there},CPU", tensor_split="0,1,2") == [f"{there} from layer 0", "CPU from layer 1"]
    assert placed(f"CPU,{there}", gpu_layers=2) == ["CPU from layer 0", f"{there} from layer 1"]
    with pytest.raises(OptionError, match=r"gpu_layers is 2, but the CPU is named after another device: .* by tensor_split"):
        placed(f"CPU,{there},CPU", gpu_layers=2)


def test_memory_is_told_by_machine(node):
    with Engine.load(
        tiny_model("llama-dense"), placement=Placement(f"CPU,node:{node.address},CPU"), n_ctx=64, spec_type="none"
    ) as engine:
        assert {line.device for line in engine.memory_table()} == {"CPU", f"node:{node.address}"}


def test_a_node_refuses_another_version_by_name(node, monkeypatch):
    monkeypatch.setattr(backend_module, "versions", lambda: {**RIGHT, "numba": "0.1"})
    with pytest.raises(UnsupportedError, match=r"node .*: numba is .* here and 0.1 there; install the same version"):
        RemoteBackend.device(f"node:{node.address}")


def test_a_node_refuses_another_file_of_the_same_name(node, monkeypatch):
    file = open_model(tiny_model("llama-dense"), REGISTRY, Progress())
    file.reference = str(tiny_model("qwen3-dense"))
    with pytest.raises(UnsupportedError, match=rf"qwen3-dense.gguf here, with digest \w+, expected {file.digest}"):
        RemoteBackend(RemoteOptions(node.address)).load(file, plan_of(file, REGISTRY), OPTIONS, Progress())
    file.reference = ""
    with pytest.raises(UnsupportedError, match="was put together here"):
        RemoteBackend(RemoteOptions(node.address)).load(file, plan_of(file, REGISTRY), OPTIONS, Progress())


def test_stages_with_other_instruction_sets_are_refused(node, monkeypatch):
    best, chosen = isa.choose_isa(1), iter(["generic"])
    monkeypatch.setattr(model_module, "choose_isa", lambda *_: next(chosen, best))
    with pytest.raises(UnsupportedError, match=f"instruction set {best}, devices before it with generic: numba-cpu has other"):
        staged("llama-dense", "hn", node)


def test_where_no_node_is_that_is_said(monkeypatch):
    monkeypatch.setattr(connection, "_CONNECT_S", 0.2)
    with pytest.raises(LostDeviceError, match=r"no answer from a node at 127.0.0.1:1; is `augury node --listen` running there"):
        RemoteBackend.device("node:127.0.0.1:1")
    with pytest.raises(OptionError, match="expected node:HOST:PORT"):
        RemoteBackend.device("node:nowhere")
    with pytest.raises(OptionError, match=r"127.0.0.1:70707 has port 70707, expected one up to 65535"):
        RemoteBackend.device("node:127.0.0.1:70707")


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    with pytest.raises(UnsupportedError, match=r"pip install .*\[nodes\]"):
        RemoteBackend.device("node:127.0.0.1:1")
