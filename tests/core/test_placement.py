"""Which layers are computed where: llama.cpp's -ngl, --device and -ts, and the same of a draft model."""

import json

import attrs
import numpy as np
import pytest
from oracles.drafts import agreeing, assistance
from oracles.models import tiny_model
from support.drafter_specs import head_specs

from augury import Engine, Placement, Registry
from augury.backends.reference.backend import Reference
from augury.cli.command_line import make_parser
from augury.cli.drafter_flags import drafter_options
from augury.cli.model_flags import placement_of, placement_words
from augury.cli.report import _memory_lines
from augury.devices import DeviceInfo
from augury.errors import CapacityError, OptionError, UnsupportedError
from augury.options import option

MIB = 1 << 20


@attrs.frozen
class GpuOptions:
    device: int = option(0, help="number of the GPU")


class Gpu(Reference):
    """What stands in for GPUs: the reference backend on two devices, whose memory tests choose."""

    name = "gpu"
    options_class = GpuOptions
    free = (16 * MIB, 16 * MIB)

    @classmethod
    def devices(cls):
        return [DeviceInfo(f"GPU{i}", "a stand-in", 16 * MIB, n, {"device": i}) for i, n in enumerate(cls.free)]

    def load(self, *how):
        model = super().load(*how)
        lines = model.memory_table()
        model.memory_table = lambda: [attrs.evolve(line, device=f"GPU{self.options.device}") for line in lines]
        return model


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(Gpu, "free", (16 * MIB, 16 * MIB))
    made = Registry.discover()
    made.register(type("Module", (), {"augury_backends": staticmethod(lambda: [Gpu])}), name="gpu")
    return made


def load(registry, name="llama-dense", **how):
    """An engine, and the layers that each device holds."""
    how = {"backend": "reference", "spec_type": "none", "n_ctx": 64, **how}
    how["placement"] = Placement(**how.pop("at", {}))
    return Engine.load(tiny_model(name), registry=registry, **how)


def devices_of(engine, role="target"):
    return list(dict.fromkeys(line.device for line in engine.memory_table() if f"({role})" in line.purpose))


PLACES = {  # of llama-dense, which has two layers and the output
    "a number": ({"gpu_layers": 2}, "reference on CPU from layer 0 + gpu on GPU0 from layer 1"),
    "the output alone": ({"gpu_layers": "1"}, "reference on CPU from layer 0 + gpu on GPU0 from layer 2"),
    "more than there are": ({"gpu_layers": 99}, "gpu"),
    "all": ({"gpu_layers": "all"}, "gpu"),
    "auto": ({"gpu_layers": "auto"}, "gpu"),
    "as llama.cpp says auto": ({"gpu_layers": -1}, "gpu"),
    "none": ({"gpu_layers": 0}, "reference"),
    "no device": ({"devices": "none", "gpu_layers": 99}, "reference"),
    "a device": ({"devices": "GPU1"}, "gpu"),
    "shares": (
        {"devices": "GPU0,GPU1", "tensor_split": "1,2"},
        "gpu on GPU0 from layer 0 + gpu on GPU1 from layer 1",
    ),
    "in another order": (
        {"devices": "GPU1,GPU0", "tensor_split": "1/1", "gpu_layers": 2},
        "reference on CPU from layer 0 + gpu on GPU1 from layer 1 + gpu on GPU0 from layer 2",
    ),
    "a share of nothing": ({"tensor_split": "0,1"}, "gpu"),
}


@pytest.mark.parametrize("told", PLACES)
def test_layers_are_placed_as_they_are_asked_for(registry, told):
    at, expected = PLACES[told]
    with load(registry, at=at) as engine:
        assert engine.config["backend"] == expected
        on = [word for word in expected.split() if word.startswith(("CPU", "GPU"))]
        assert devices_of(engine) == (on or {"reference": ["CPU"]}.get(expected) or devices_of(engine))
        if told in ("a device", "a share of nothing"):
            assert devices_of(engine) == ["GPU1"]


def test_a_draft_model_is_on_the_cpu_where_that_shares_layers_with_other_devices(registry):
    spec = f"draft-model:model={tiny_model('llama-dense')}"
    with load(registry, at={"devices": "GPU0,CPU"}, spec_type=spec) as engine:
        assert {line.device for line in engine.memory_table() if "(draft)" in line.purpose} == {"CPU"}
    with load(registry, at={"devices": "GPU0"}, spec_type=spec) as engine:
        assert {line.device for line in engine.memory_table() if "(draft)" in line.purpose} == {"GPU0"}


def test_devices_are_asked_for_once(registry, monkeypatch):
    n_asked, asked = [], Gpu.devices
    monkeypatch.setattr(Gpu, "devices", classmethod(lambda cls: (n_asked.append(1), asked())[1]))
    for backend in ("reference", "gpu"):
        load(registry, backend=backend, at={"gpu_layers": 1}).close()
    assert len(n_asked) == 2, "a driver takes its time"


def test_a_named_gpu_backend_leaves_the_rest_to_the_cpu(registry):
    with load(registry, backend="gpu:device=1", at={"gpu_layers": 1}) as engine:
        assert engine.config["backend"] == "numba-cpu on CPU from layer 0 + gpu on GPU1 from layer 2"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["llama-dense", "jamba-dense", "qwen3moe-moe"])
def test_every_number_of_layers_gives_the_same_with_drafts_and_without(registry, name):
    prompt = [3, 1, 4, 1, 5, 3, 1, 4, 1]
    right = {}
    for n in range(4):
        for spec_type in ("none", "suffix", "self-spec:mode=layers,layers=1"):
            how = {"spec_type": spec_type, "spec_fixed": spec_type != "none", "slots": 2}
            with load(registry, name, backend="numba-cpu", at={"gpu_layers": n}, **how) as engine:
                answers = engine.submit(prompt, n=2, temperature=0.9, seed=5, max_tokens=12)
                texts = [list(answer.result().tokens) for answer in answers]
                logits = engine.evaluate(prompt)
            assert texts == right.setdefault(n, (texts, logits))[0]
            assert np.array_equal(logits, right[n][1])
    with load(registry, name, backend="gpu") as engine:
        assert np.array_equal(engine.evaluate(prompt), right[3][1]), "all layers on one device are its backend's model"


HEADS = head_specs("llama-dense")
HEADS |= {f"{name} on the CPU": f"{spec},gpu_layers=0" for name, spec in HEADS.items()}
MTP = {  # and how many layers of it the first GPU computes: several streams, an assistant, states, several layers
    "mtp-deepseek4": 2,
    "mtp-gemma4-e": 9,
    "mtp-qwen35": 1,
    "mtp-step35": 1,
}


@pytest.mark.sample(3, rest=8)
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("drafter", [*HEADS, *MTP])
def test_heads_draft_for_a_model_in_stages(registry, monkeypatch, drafter, is_split):
    monkeypatch.setattr(Gpu, "free", (64 * MIB, 64 * MIB))
    path, more, name = tiny_model("llama-dense"), {}, drafter.partition(" ")[0]
    if drafter in MTP:
        path, more, name = agreeing(drafter), assistance(drafter), "draft-mtp"
    at = {"devices": "GPU1,GPU0", "tensor_split": "1,1"} if is_split else {"gpu_layers": MTP.get(drafter, 2)}
    how = {"backend": "numba-cpu", "n_ctx": 96, "threads": 1, "placement": Placement(**at), "registry": registry, **more}
    with Engine.load(path, spec_type=HEADS.get(drafter, name), spec_fixed=True, draft_max=3, **how) as engine:
        assert " + " in engine.config["backend"]
        asked = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, "logprobs": 1}
        plain, drafted = (engine.generate([3, 1, 4, 1, 5] * 4, speculative=is_on, **asked) for is_on in (False, None))
    assert [(piece.token, piece.logprob) for piece in drafted.pieces] == [(p.token, p.logprob) for p in plain.pieces]
    assert drafted.stats.n_accepted > 0
    assert drafted.stats.drafters[name].failed is None


def test_layers_that_predict_further_tokens_take_memory_where_the_output_is(registry):
    how = {"n_ctx": 96, "placement": Placement(devices="GPU0", gpu_layers=2), "registry": registry}
    Engine.load(agreeing("mtp-step35"), spec_type="none", **how).close()
    with pytest.raises(CapacityError, match=r"needs \S+ MiB for layer 3 and the output, 16\.0 MiB of 16\.0 MiB are free"):
        Engine.load(agreeing("mtp-step35"), spec_type="draft-mtp", **how)


FITTING = {  # free MiB of both GPUs, of which a sixteenth is left free; a layer takes 2.3 MiB, the model 4.8
    "reference on CPU from layer 0 + gpu on GPU0 from layer 1": (4, 0),
    "reference on CPU from layer 0 + gpu on GPU1 from layer 1": (1, 4),
    "gpu on GPU0 from layer 0 + gpu on GPU1 from layer 1": (4, 4),
    "reference on CPU from layer 0 + gpu on GPU0 from layer 2": (2, 1),
    "gpu": (9, 9),
    "reference": (1, 1),
}


@pytest.mark.parametrize("expected", FITTING)
def test_auto_places_as_many_layers_as_fit_on_as_few_gpus(registry, monkeypatch, caplog, expected):
    monkeypatch.setattr(Gpu, "free", [n * MIB for n in FITTING[expected]])
    with load(registry, at={"gpu_layers": "auto"}) as engine:
        assert engine.config["backend"] == expected
    assert ("no layer fits on a GPU; the CPU computes all" in caplog.text) == (expected == "reference")


def test_what_does_not_fit_is_refused_with_the_numbers_of_each_device(registry, monkeypatch):
    monkeypatch.setattr(Gpu, "free", (4 * MIB, MIB))
    with pytest.raises(CapacityError) as caught:
        load(registry, at={"gpu_layers": "all"})
    assert str(caught.value) == (
        "llama-dense.gguf with 1 slot of 64 tokens does not fit: "
        "GPU0 (a stand-in) needs 2.3 MiB for layer 0, 4.0 MiB of 16.0 MiB are free; "
        "GPU1 (a stand-in) needs 2.3 MiB for layer 1 and the output, 1.0 MiB of 16.0 MiB are free; "
        "-ngl auto places as many layers there as fit; or ask for a smaller context or fewer slots"
    )
    with load(registry, at={"gpu_layers": 2, "devices": "GPU0"}) as engine:
        assert devices_of(engine) == ["CPU", "GPU0"]


def test_a_draft_model_has_a_place_of_its_own(registry):
    places = {  # of the target, what the draft model is told, and where it then is
        "as the target": ({"gpu_layers": 2}, {}, ["GPU0"]),
        "on the CPU": ({"gpu_layers": "all"}, {"gpu_layers": "0"}, ["CPU"]),
        "on no device": ({"gpu_layers": "all"}, {"device": "none"}, ["CPU"]),
        "on a GPU, the target on the CPU": ({}, {"device": "GPU1"}, ["GPU1"]),
        "by layers": ({}, {"gpu_layers": "1", "device": "GPU1"}, ["CPU", "GPU1"]),
        "by a backend": ({"gpu_layers": 2}, {"backend": "reference"}, ["CPU"]),
    }
    right = None
    for at, told, expected in places.values():
        how = {"spec_type": "draft-model", "draft_model": tiny_model("llama-dense"), "spec_fixed": True}
        with load(registry, "llama-dense", at=at, spec_options={"draft-model": told}, **how) as engine:
            assert devices_of(engine, "draft") == expected
            result = engine.generate([3, 1, 4], max_tokens=8, temperature=0)
            assert result.stats.n_accepted > 0
            if not at:
                assert right in (None, list(result.tokens))
                right = list(result.tokens)


def test_what_cannot_be_is_refused(registry):
    with pytest.raises(
        OptionError, match=r"there is no device 'CUDA7'; expected some of GPU0, GPU1, CPU, none; backend numba-cu"
    ):
        load(registry, at={"devices": "GPU0,CUDA7"})
    with pytest.raises(OptionError, match="tensor_split has 3 shares of 2 devices"):
        load(registry, at={"tensor_split": "1,1,1"})
    with pytest.raises(UnsupportedError, match=r"-ngl 4 of 13 layers, but .* 'gemma4' cannot be cut there; expected one of 1"):
        load(registry, "gemma4-e", at={"gpu_layers": 4})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("gpu_layers", value) for value in ("many", -2, "")),
        *(("devices", value) for value in ("", "GPU0,,GPU1", "none,GPU0")),
        *(("tensor_split", value) for value in ("", "0,0", "1,-1", "1;2", "nan")),
    ],
)
def test_what_says_nothing_of_a_placement_is_refused(field, value):
    with pytest.raises(OptionError, match="expected"):
        Placement(**{field: value})


def test_what_is_no_placement_is_refused(registry):
    with pytest.raises(OptionError, match=r"placement is 'auto', expected a Placement, such as Placement\(gpu_layers='auto'\)"):
        Engine.load(tiny_model("llama-dense"), placement="auto", registry=registry)


def test_without_a_gpu_the_cpu_computes_all_and_a_line_says_why(caplog):
    with load(Registry.discover(), at={"gpu_layers": 99}) as engine:
        assert engine.config["backend"] == "reference"
    assert 'no GPU can be used; the CPU computes all layers" reason="backend numba-cuda cannot run here: ' in caplog.text


def test_plugins_lists_the_devices(registry, capsys):
    command = make_parser(registry, []).parse_args(["plugins"])
    command.run(command)
    assert "    device GPU1: a stand-in, 16 of 16 MiB free\n" in capsys.readouterr().out
    command.json = True
    command.run(command)
    found = {each["name"]: each["devices"] for each in json.loads(capsys.readouterr().out)["plugins"]}
    told = {"name": "GPU0", "description": "a stand-in", "bytes": 16 * MIB, "bytes_free": 16 * MIB}
    assert (found["gpu"][0], found["numba-cpu"]) == (told, [])


def test_flags_are_llama_cpps(registry):
    words = ["run", "-ngl", "12", "-dev", "CUDA0,CUDA1", "-ts", "3,1", "-devd", "none", "-ngld", "0", "-p", "text"]
    args = make_parser(registry, words).parse_args(words)
    assert placement_of(args) == Placement(("CUDA0", "CUDA1"), 12, (3.0, 1.0))
    assert placement_words(args) == ["--gpu-layers", "12", "--device", "CUDA0,CUDA1", "--tensor-split", "3,1"]
    assert drafter_options(args, ["draft-model"])["draft-model"] == {"device": "none", "gpu_layers": "0"}
    for long in (["--gpu-layers", "all"], ["--n-gpu-layers", "-1"], ["--device", "none"], ["--tensor-split", "1/2"]):
        assert placement_of(make_parser(registry, ["run"]).parse_args(["run", *long, "-p", "text"])) != Placement()


def test_the_memory_table_has_a_block_for_each_device(registry):
    with load(registry, at={"gpu_layers": 1}) as engine:
        lines = [line.split() for line in _memory_lines(engine.memory_table())]
    assert [(device, rest[-3] if rest[0] != "total" else "total") for device, *rest in lines] == [
        *(("CPU", each) for each in ("weights", "cache", "total")),
        *(("GPU0", each) for each in ("weights", "total")),
    ]
