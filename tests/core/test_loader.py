"""Loading through the public door: what is shared, what is not, and what is said when it cannot be."""

import numpy as np
import pytest
from oracles.models import altered, tiny_file, tiny_model
from support.more_toys import registry_with_toys

from augury import Draft, Drafter, Engine, ModelFileError, OptionError, PluginError, UnsupportedError, hookimpl
from augury.files.gguf_writer import gguf_file
from augury.loader import Loader, plan_of
from augury.model_info import ModelInfo
from augury.registry import Registry
from augury.testing.toys import TINY_TARGET

GREEDY = {"temperature": 0.0}


def load(**how):
    return Engine.load(tiny_model("llama-dense"), **({"backend": "reference", "n_ctx": 64} | how))


def test_a_target_that_drafts_for_itself_has_two_memories():
    draft = {"spec_type": "draft-model", "draft_model": tiny_model("llama-dense"), "draft_max": 4, "spec_fixed": True}
    with load(**draft) as engine, load() as plain:
        models = engine._loader.models
        assert len(models) == 2
        assert models[0] is not models[1]
        result = engine.generate([5, 6, 7], max_tokens=20, **GREEDY)
        assert result.tokens == plain.generate([5, 6, 7], max_tokens=20, **GREEDY).tokens
        assert result.stats.acceptance_rate == 1.0


def test_a_draft_model_may_run_on_a_backend_of_its_own():
    small = tiny_model("llama-dense-q4_0")
    with load(draft_model=small, spec_options={"draft-model": {"backend": "numba-cpu"}}) as engine:
        assert [type(model).__module__.split(".")[2] for model in engine._loader.models] == ["reference", "numba_cpu"]
    with pytest.raises(PluginError, match="numba-cp"):
        load(draft_model=small, spec_options={"draft-model": {"backend": "numba-cp"}})


def test_metadata_is_overridden_in_the_target_alone():
    how = {"override_kv": {"llama.context_length": 96}, "n_ctx": 0}
    with load(draft_model=tiny_model("llama-dense-q4_0"), spec_options={"draft-model": {"ctx": 0}}, **how) as engine:
        assert engine.config["n_ctx"] == 96
        assert [context.spec.n_ctx for context in engine._loader.contexts][1] != 96


def test_a_text_for_a_model_without_a_known_tokenizer_is_refused_with_what_the_file_says(caplog):
    with load(override_kv={"tokenizer.ggml.model": "who-knows"}) as engine:
        assert "no tokenizer" in caplog.text
        assert len(engine.generate([1], max_tokens=2).tokens) == 2
        with pytest.raises(UnsupportedError, match=r"model is 'who-knows'.*--override-kv tokenizer.ggml.model=str:NAME"):
            engine.generate("a")


@pytest.mark.parametrize("template", [3, ["a", "b"], [["a"]]])
def test_a_chat_template_that_is_no_text_counts_as_none(caplog, template):
    file = altered(tiny_file("llama-dense"), metadata={"tokenizer.chat_template": template})
    assert Loader.load_template(file, None, parse_special=False) is None
    assert "no chat template" in caplog.text


@pytest.mark.parametrize("stated", [7, -1, 1.0, True, "mean", ["mean"], np.array([1, 2])])
def test_a_pooling_that_is_not_known_is_none(stated):
    file = altered(tiny_file("llama-dense"), metadata={"llama.pooling_type": stated})
    assert ModelInfo.of(file, plan_of(file, registry_with_toys())).pooling is None


def test_whole_numbers_where_weights_belong_are_refused():
    file = altered(tiny_file("llama-dense"), arrays={"blk.0.attn_q.weight": np.zeros((256, 256), np.int32)})

    with pytest.raises(ModelFileError, match=r"'blk.0.attn_q.weight' is stored as I32, expected a type of weights"):
        plan_of(file, registry_with_toys())


def test_slots_share_one_draft_model():
    with load(draft_model=tiny_model("llama-dense"), slots=3) as engine:
        assert len(engine._loader.models) == 2


def test_drafters_are_closed_where_a_later_one_fails():
    class Opens(Drafter):
        name = "opens"
        n_open = 0

        def __init__(self, options, session):
            super().__init__(options, session)
            Opens.n_open += 1

        def draft(self, history, limit):
            return Draft()

        def close(self):
            Opens.n_open -= 1

    class Fails(Opens):
        name = "fails"

        def __init__(self, options, session):
            assert Opens.n_open == 1
            raise ValueError("planted")

    class Plugin:
        @hookimpl
        def augury_drafters(self):
            return [Opens, Fails]

    registry = Registry.discover()
    registry.register(Plugin(), name="mine", distribution="mine")
    with pytest.raises(PluginError, match="drafter 'fails' cannot begin: ValueError: planted"):
        load(spec_type="opens;fails", registry=registry)
    assert Opens.n_open == 0


def test_the_memory_table_names_models_and_purposes():
    with load(draft_model=tiny_model("llama-dense-q4_0")) as engine:
        purposes = [line.purpose for line in engine.memory_table()]
        assert {purpose.partition(":")[0] for purpose in purposes} == {"llama-dense (target)", "llama-dense-q4_0 (draft)"}
        assert all(line.n_bytes > 0 for line in engine.memory_table())


def test_options_go_to_the_memory_manager_of_their_name_and_others_are_told(caplog):
    options = {"checkpoints": {"ctx_checkpoints": 4}}
    with load(memory_options=options) as engine:
        assert engine.config["memory"] == "contiguous"
    assert "options have no effect" in caplog.text
    how = {"registry": registry_with_toys(), "backend": "toy-recurrent", "memory_options": options}
    with Engine.load(TINY_TARGET, memory="checkpoints:mem_budget=7", **how) as engine:
        options = engine._loader.contexts[0].memory.options
        assert (options.ctx_checkpoints, options.mem_budget) == (4, 7)
        assert [line.purpose for line in engine.memory_table()][-1] == "tiny-target (target): checkpoints, at most"
    assert caplog.text.count("options have no effect") == 1


def test_the_configuration_says_what_is_in_force():
    with load(spec_type="ngram-simple:n=3", slots=2) as engine:
        config = engine.config
    assert config["spec_type"] == "ngram-simple:n=3"
    assert config["speculative"]["ngram-simple"] == {"n": 3, "m": 48}
    assert (config["backend"], config["memory"], config["n_slots"], config["threads"]) == ("reference", "contiguous", 2, 1)
    assert engine.load_s > 0


def test_a_model_without_a_readable_tokenizer_runs_on_token_ids():
    with load() as engine:
        assert engine.tokenizer is None
        result = engine.generate(np.array([1, 2, 3]), max_tokens=3, **GREEDY)
    assert (len(result.tokens), result.text) == (3, "")


def test_a_draft_model_joins_the_drafters_that_are_chosen_automatically():
    with load() as engine:
        assert engine.config["spec_type"] == "suffix;recycle"
    with load(draft_model=tiny_model("llama-dense-q4_0")) as engine:
        assert engine.config["spec_type"].startswith("suffix;recycle;draft-model:model=")


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"spec_type": "ngram-simpl"}, PluginError, "did you mean 'ngram-simple'"),
        ({"spec_type": "ngram-simple:k=1"}, OptionError, "there is no option 'k'"),
        ({"spec_type": "ngram-simple:n=0"}, OptionError, "n is '0', expected"),
        ({"spec_type": "draft-model"}, OptionError, "-md"),
        ({"spec_type": "ngram-simple", "draft_model": "x.gguf"}, OptionError, "uses none"),
        ({"spec_type": "none", "draft_model": "x.gguf"}, OptionError, "no drafter is in use"),
        ({"spec_type": "ngram-simple,draft-model"}, OptionError, "-md"),
        ({"spec_type": "ngram-simple:n=2;suffix;ngram-simple"}, OptionError, "names ngram-simple twice"),
        ({"spec_type": ["suffix", "none"]}, OptionError, "leave out one or the other"),
        ({"spec_type": "auto;suffix"}, OptionError, "chooses the drafters itself"),
        ({"spec_type": "auto:n=2"}, OptionError, "chooses the drafters itself"),
        ({"draft_max": 4, "draft_min": 5}, OptionError, "n_min is 5, expected at most n_max"),
        ({"spec_verify": "hope"}, OptionError, "expected one of match, rejection"),
        ({"spec_type": "ngram-simple", "spec_options": {"draft-model": {"p_min": 0.5}}}, OptionError, "drafter in use"),
        ({"draft_model": "nowhere.gguf"}, ModelFileError, "nowhere.gguf"),
        ({"backend": "numba"}, PluginError, "no backend 'numba'"),
        ({"memory": "paged"}, PluginError, "no memory manager 'paged'"),
        ({"slots": 0}, OptionError, "slots is 0"),
        ({"slots": 1.5}, OptionError, "slots is 1.5, expected a whole number"),
        ({"n_ctx": "many"}, OptionError, "n_ctx is 'many'"),
        ({"threads": -1}, OptionError, "threads is -1"),
        ({"draft_max": -1}, OptionError, "n_max is -1"),
        ({"cache_type_k": "q3"}, UnsupportedError, "q3"),
        ({"memory_options": 3}, OptionError, "memory_options is 3, expected a mapping"),
        ({"memory_options": {"contiguous": 3}}, OptionError, "memory_options: contiguous is 3, expected a mapping"),
        ({"override_kv": 3}, OptionError, "override_kv is 3, expected a mapping"),
    ],
)
def test_what_cannot_be_loaded_says_why(how, error, message):
    with pytest.raises(error, match=message):
        load(**how)


def test_an_unknown_model_is_named_with_what_is_known():
    with pytest.raises(ModelFileError, match="smollm2"):
        Engine.load("smollm")


def test_an_unknown_architecture_is_a_model_file_error(tmp_path):
    with gguf_file(tmp_path / "x.gguf", "lama") as writer:
        writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    with pytest.raises(ModelFileError, match=r"'lama' is not supported; augury plugins lists the 1\d\d that are"):
        Engine.load(tmp_path / "x.gguf")


@pytest.mark.parametrize(("kind", "instead"), [("adapter", "--lora"), ("mmproj", "images"), ("imatrix", "quantise")])
def test_a_file_that_is_no_model_says_what_it_is_for(tmp_path, kind, instead):
    with gguf_file(tmp_path / "x.gguf", "llama") as writer:
        writer.add_string("general.type", kind)
        writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    for how in ({}, {"draft_model": tmp_path / "x.gguf"}):
        with pytest.raises(ModelFileError, match=f"general.type is '{kind}', expected a model; .*{instead}"):
            Engine.load(tiny_model("llama-dense") if how else tmp_path / "x.gguf", **how)


@pytest.mark.parametrize(("asked", "n_ctx"), [(0, 256), (None, 256), (256, 256), (64, 64), (300, 300)])
def test_the_context_is_the_trained_one_where_nothing_else_is_asked_for_and_a_longer_one_is_warned_of(asked, n_ctx, caplog):
    with load(n_ctx=asked) as engine:
        assert engine.config["n_ctx"] == n_ctx
        assert len(engine.generate([1], max_tokens=-1, ignore_eos=True, **GREEDY).tokens) == n_ctx
    warning = "the context is longer than the model was trained for"
    told = [message for message in caplog.messages if "n_ctx" in message]
    assert told == ([f'event="{warning}" n_ctx=300 n_ctx_train=256'] if n_ctx > 256 else [])


def test_the_context_is_not_the_largest_there_is_unless_asked_for(monkeypatch):
    monkeypatch.setattr("augury.loader._N_CTX", 100)
    for asked, n_ctx in ((None, 100), (0, 256)):
        with load(n_ctx=asked) as engine:
            assert engine.config["n_ctx"] == n_ctx
