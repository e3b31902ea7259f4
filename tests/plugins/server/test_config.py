"""Which models a server has, and with which flags: typed ones, those of a file, and environment variables."""

import json

import pytest
from huggingface_hub import constants as hub_constants
from oracles.models import tiny_model
from support import local_hub

from augury.cli.command_line import make_parser
from augury.cli.model_flags import memory_needed
from augury.errors import AuguryError, ModelFileError, OptionError
from augury.interfaces import Progress
from augury.plugins.server import command, process
from augury.plugins.server.command import _options_of
from augury.plugins.server.config import models_of
from augury.plugins.server.models import Models
from augury.registry import Registry

REGISTRY = Registry.discover()


@pytest.fixture
def served(tmp_path):
    """What a command line comes to, with a file of flags if one is given."""

    def serve(*words, config=None):
        if config is not None:
            (tmp_path / "config.toml").write_text(config)
            words = (*words, "--config", str(tmp_path / "config.toml"))
        args = make_parser(REGISTRY, ["serve", *words]).parse_args(["serve", *words])
        return models_of(args.run.args[0], args)

    return serve


def models(found):
    return {model.names: model.args for model in found[1]}


def test_each_model_that_is_typed_is_served_by_its_name(served):
    assert [*models(served())] == [("smollm2",)]
    assert [*models(served("smollm2", "--alias", "a,b"))] == [("a", "b")]
    (args,) = models(served("smollm2", "--tags", "chat, small")).values()
    assert args.tags == "chat, small"
    dense, other = str(tiny_model("llama-dense")), str(tiny_model("qwen2-dense"))
    found = models(served("-m", dense, "-m", other, "-c", "64"))
    assert [*found] == [("llama-dense",), ("qwen2-dense",)]
    assert {args.ctx_size for args in found.values()} == {64}


@pytest.mark.parametrize(("words", "names"), [([], []), (["-m", "small"], ["small"]), (["-m", "smollm2"], ["smollm2"])])
def test_the_model_that_m_names_is_loaded_at_once_and_none_without_it(words, names, tmp_path, monkeypatch):
    """A file that begins with the model that is served without -m names it no more than any other."""
    begun, file = [], tmp_path / "config.toml"
    file.write_text('[models.small]\nmodel = "smollm2"\n[models.b]\nmodel = "smollm2"\n')
    monkeypatch.setattr(Models, "load", lambda _, server: begun.append(server.name))
    words = ["serve", *words, "--config", str(file)]
    args = make_parser(REGISTRY, words).parse_args(words)
    command.served(args.run.args[0], args)[1].start()
    assert begun == names


def test_a_file_gives_each_model_its_flags_and_typed_ones_come_first(served, monkeypatch):
    monkeypatch.setenv("AUGURY_TEMP", "0.5")
    monkeypatch.setenv("AUGURY_TOP_K", "7")
    monkeypatch.setenv("AUGURY_METRICS", "on")
    monkeypatch.setenv("AUGURY_PLUGINS", "none of ours")
    config = f"""
    temp = 0.25
    ctx-size = 64
    port = 0
    [models.a]
    model = "{tiny_model("llama-dense")}"
    alias = ["small", "tiny"]
    temp = 0.75
    stop = ["x,y", "z"]
    ignore-eos = true
    [models.smollm2]
    c = 32
    spec_type = "none"
    """
    base, found = served("-np", "3", "-m", "smollm2", config=config)
    assert [model.names for model in found] == [("smollm2",), ("a", "small", "tiny")]  # the one that is typed is the first
    other, own = (model.args for model in found)
    assert (own.temperature, own.ctx_size, own.parallel, own.top_k, own.stop) == (0.75, 64, 3, 7, ["x,y", "z"])
    assert (other.temperature, other.ctx_size, other.spec_type, other.stop) == (0.25, 32, ["none"], [])
    assert (own.ignore_eos, other.ignore_eos) == (True, False)
    assert (base.port, base.metrics) == (0, True)
    assert models(served("-c", "16", "-m", "smollm2", config=config))["smollm2",].ctx_size == 16


def test_a_folder_is_served_by_the_names_of_its_files(served, tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b", "a", "mmproj-a", "sub/c-00001-of-00002", "sub/c-00002-of-00002"):
        (tmp_path / f"{name}.gguf").touch()
    found = models(served("--models-dir", str(tmp_path)))
    assert [*found] == [("a",), ("b",), ("c-00001-of-00002",)]
    assert found["a",].model == str(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("ctx-siz = 4", "there is no key 'ctx-siz'; did you mean 'ctx-size'?"),
        ("zzzzzz = 4", "there is no key 'zzzzzz'; augury serve --help-all lists the flags"),
        ('[models.a]\nmodle = "x"', r"\[models.a\]: there is no key 'modle'; did you mean 'model'?"),
        ('[models.a]\nc = "x"', "-c is 'x', expected a whole number of at least 0"),
        ("[models.a]\nport = 1", r"\[models.a\]: --port holds for all models; give it above the tables"),
        ("ignore-eos = 1", "ignore-eos is 1, expected true or false"),
        ("[temp]\na = 1", "temp is a table, expected a value"),
        ("models = 3", "models is no table of tables"),
        ("x", "is not TOML"),
        ('alias = "x"\n[models.smollm2]\n[models.b]\nmodel = "smollm2"', "--alias names one model, and there are 2"),
    ],
)
def test_a_key_that_means_nothing_is_refused_by_its_name(served, config, told):
    with pytest.raises(OptionError, match=told.replace("?", r"\?")):
        served(config=config)


def test_an_environment_variable_that_is_almost_a_flag_is_refused(served, monkeypatch):
    monkeypatch.setenv("AUGURY_CTX_SIZ", "4")
    with pytest.raises(OptionError, match="there is no environment variable AUGURY_CTX_SIZ; did you mean 'AUGURY_CTX_SIZE'"):
        served()


@pytest.mark.parametrize(("words", "thinks"), [([], True), (["--reasoning", "auto"], True), (["-rea", "off"], False)])
def test_models_think_where_they_can_unless_a_flag_says_otherwise(served, words, thinks):
    ((_, args),) = models(served("-m", str(tiny_model("llama-dense")), *words)).items()
    assert _options_of(args, ["llama-dense"]).chat_template_kwargs == {"enable_thinking": thinks}


def test_what_kubernetes_says_of_a_service_of_this_name_is_no_flag(served, monkeypatch):
    monkeypatch.setenv("AUGURY_PORT", "tcp://10.96.0.12:8080")
    monkeypatch.setenv("AUGURY_SERVICE_PORT", "8080")
    assert served("-m", str(tiny_model("llama-dense")))[0].port == 8080


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("-m", "smollm2", "-m", "missing.gguf"), ModelFileError),
        (("-m", "smollm2", "-m", "nobody-knows"), ModelFileError),
        (("--config", "missing.toml"), OptionError),
        (("--models-dir", "missing"), OptionError),
    ],
)
def test_what_is_not_there_is_told_before_the_server_listens(served, words, kind):
    with pytest.raises(AuguryError, match=r"missing|nobody-knows") as refused:
        served(*words)
    assert refused.type is kind


@pytest.mark.parametrize(
    ("n_most", "asked", "share"), [(0, 100, 25), (1, 100, 100), (2, 50, 25), (9, 1, 1), (0, 0, 0), (0, -1, 256), (1, -1, 1024)]
)
def test_the_models_that_are_loaded_share_the_memory_for_prompts(n_most, asked, share, monkeypatch, tmp_path):
    monkeypatch.setattr("augury.memory_limit.n_bytes_of_machine", lambda: 4 << 30)
    monkeypatch.setattr(process, "serve", lambda models, *_, **__: seen.extend(models.servers))
    for name in "abcd":
        (tmp_path / f"{name}.gguf").touch()
    seen, words = [], ["--models-dir", str(tmp_path), "--models-max", str(n_most)]
    line = ["serve", *words, "--port", "0", "--cache-ram", str(asked)]
    args = make_parser(REGISTRY, line).parse_args(line)
    assert args.run(args) == 0
    assert [server.load.args[0].cache_ram for server in seen] == [share] * 4


def test_the_memory_that_a_model_needs_counts_its_prompts():
    words = ["serve", "-m", str(tiny_model("llama-dense")), "--backend", "reference", "--cache-ram"]
    sizes = []
    for n_mib in ("0", "7"):
        args = make_parser(REGISTRY, [*words, n_mib]).parse_args([*words, n_mib])
        sizes.append(memory_needed(args, Progress()))
    assert sizes[1] - sizes[0] == 7 << 20


def test_llama_cpp_s_presets_are_read(served, tmp_path):
    (tmp_path / "presets.ini").write_text(f"""
    version = 1
    [*]
    c = 64
    ; a comment
    [a]
    hf-repo = owner/none:Q8_0
    spec-draft-hf = owner/draft
    jinja = true
    ignore-eos = 1
    [b]
    model = {tiny_model("llama-dense")}
    c = 32
    """)
    found = models(served("--models-preset", str(tmp_path / "presets.ini")))
    a, b = found["a",], found["b",]
    assert (a.model, a.model_draft, a.ctx_size, a.ignore_eos, b.ctx_size) == (
        "hf:owner/none:Q8_0",
        "hf:owner/draft",
        64,
        True,
        32,
    )
    (tmp_path / "presets.ini").write_text("[a\n")
    with pytest.raises(OptionError, match="is not INI"):
        served("--config", str(tmp_path / "presets.ini"))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Two models in the Hub's cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, value in {"XDG_CACHE_HOME": tmp_path, "OLLAMA_MODELS": tmp_path / "none", "HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    folder = tmp_path / "hub/models--owner--tiny-GGUF/snapshots/1"
    folder.mkdir(parents=True)
    for quant in ("f16", "Q8_0"):
        (folder / f"tiny-{quant}.gguf").write_bytes(tiny_model("llama-dense").read_bytes())
    (tmp_path / "augury/models").mkdir(parents=True)
    aliases = {"mine": "owner/tiny-GGUF:F16", "owner/tiny-GGUF:Q8_0": "owner/tiny-GGUF:F16", "gone": "nobody"}
    (tmp_path / "augury/models/aliases.json").write_text(json.dumps(aliases))


@pytest.mark.usefixtures("stored")
def test_what_is_stored_is_served_beside_what_is_given_by_its_names_and_aliases(served):
    found = {model.names: model for model in served("--manage-models")[1]}
    assert {*found} == {("owner/tiny-GGUF:F16", "mine"), ("owner/tiny-GGUF:Q8_0",)}
    assert not any(model.is_given for model in found.values())
    config = '[models.a]\nmodel = "owner/tiny-GGUF:F16"\ndedup-cache-models = true'
    assert {(each.names[0], each.is_given, each.is_hidden) for each in served("--manage-models", config=config)[1]} == {
        ("a", True, False),
        ("owner/tiny-GGUF:F16", False, True),
        ("owner/tiny-GGUF:Q8_0", False, False),
    }
    assert [*models(served())] == [("smollm2",)]


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1,192.168.0.1"])
def test_who_may_manage_models_is_everyone_on_this_machine_or_has_a_key(served, host):
    from augury.plugins.server.command import _servers_of

    words = ("--manage-models", "-m", str(tiny_model("llama-dense")), "--host", host)
    with pytest.raises(OptionError, match="set --api-key"):
        _servers_of(served(*words)[1])
    assert _servers_of(served(*words, "--api-key", "x")[1])


def test_a_repository_may_have_presets_in_place_of_a_model(served, tmp_path, monkeypatch):
    with local_hub.serving(monkeypatch, tmp_path) as hub:
        hub.repositories["owner/presets"] = {
            "preset.ini": b"[*]\nc = 64\n[a]\nhf = owner/a\ntemp = 0.5\n[b]\nhf = owner/b\nc = 32\n"
        }
        found = models(served("-m", "owner/presets", "-c", "128"))
        assert [(each.model, each.ctx_size, each.temperature) for each in (found["a",], found["b",])] == [
            ("hf:owner/a", 128, 0.5),
            ("hf:owner/b", 128, None),
        ]
        assert models(served("-m", "owner/none"))["owner/none",].model == "owner/none"  # told when it is loaded
        monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
        assert {*models(served("-m", "owner/presets"))} == {("a",), ("b",)}


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("[*]\napi-key = a", "--api-key"),
        ("[a]\nslot-save-path = a", "--slot-save-path"),
        ("[a]\nmodel = a.gguf", "--model"),
    ],
)
def test_presets_of_a_repository_may_not_name_what_is_this_machine_s(served, tmp_path, monkeypatch, line, flag):
    with local_hub.serving(monkeypatch, tmp_path) as hub:
        hub.repositories["owner/presets"] = {"preset.ini": f"{line}\n[b]\nhf = owner/b".encode()}
        with pytest.raises(OptionError, match=f"{flag} is not for others to say"):
            served("-m", "owner/presets")
