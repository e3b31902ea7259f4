import importlib
import types
from dataclasses import dataclass

import pytest
from attrs import frozen
from support.more_toys import ToyConstraint

from augury import testing
from augury.errors import PluginError
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, MemoryManager, Plugin
from augury.options import option
from augury.registry import Registry
from augury.types import Draft


class Lucky(Drafter):
    name = "lucky"
    aliases = ("fortunate",)

    def draft(self, history, limit):
        return Draft()


def plugin(**hooks):
    """A module with hook implementations."""
    module = types.ModuleType("stranger")
    for name, result in hooks.items():
        exec(f"def {name}({'kind, names, model' if name == 'augury_choose' else ''}): return _result_of_{name}()", vars(module))
        setattr(module, f"_result_of_{name}", result)
        setattr(module, name, hookimpl(getattr(module, name)))
    return module


def registry_with(**hooks):
    registry = Registry()
    registry.register(plugin(**hooks), name="stranger", distribution="augury-stranger", version="1.2")
    return registry


def test_first_party_plugins_enter_through_entry_points():
    registry = Registry.discover()
    assert {"none", "ngram-simple", "draft-model"} <= set(registry.drafters)
    assert {"reference", "numba-cpu"} <= set(registry.backends)
    assert {"llama", "qwen2", "qwen3", "gemma3"} <= set(registry.architectures)
    assert "contiguous" in registry.memory_managers
    assert registry.sources
    assert registry.broken == []


def test_a_strangers_class_is_found_by_name_and_alias():
    registry = registry_with(augury_drafters=lambda: [Lucky])
    assert registry.find("drafter", "lucky") is registry.find("drafter", "fortunate") is Lucky
    (record,) = registry.records
    assert (record.kind, record.name, record.distribution, record.version) == ("drafter", "lucky", "augury-stranger", "1.2")


def test_functions_are_known_by_what_they_do():
    registry = registry_with(augury_drafters=lambda: [Lucky], augury_choose=lambda: None)
    other = types.SimpleNamespace(
        augury_round_done=hookimpl(lambda: None),
        augury_request_done=hookimpl(lambda: None),
        augury_commands=hookimpl(lambda: None),
    )
    registry.register(other, name="watcher")
    found = [(each.kind, each.name, each.distribution, each.version) for each in registry.functions]
    assert found == [
        ("choice", "stranger", "augury-stranger", "1.2"),
        ("command", "watcher", "this process", ""),
        ("observer", "watcher", "this process", ""),
    ]


def test_a_broken_plugins_functions_are_not_known():
    registry = registry_with(augury_drafters=lambda: [object], augury_choose=lambda: None)
    assert registry.broken
    assert not registry.functions


def test_an_unknown_name_is_an_error_that_names_the_nearest():
    with pytest.raises(PluginError, match="no drafter 'luky'; did you mean 'lucky'"):
        registry_with(augury_drafters=lambda: [Lucky]).find("drafter", "luky")


def test_two_plugins_of_one_name_are_an_error_that_names_both():
    registry = registry_with(augury_drafters=lambda: [Lucky])
    with pytest.raises(PluginError, match=r"'lucky'.*augury-stranger 1\.2.*augury-other 3"):
        registry.register(plugin(augury_drafters=lambda: [Lucky]), name="other", distribution="augury-other", version="3")


def test_two_constraints_of_one_keyword_are_an_error_that_names_both():
    keyed = [type("Keyed", (ToyConstraint,), {"name": name, "keyword": "form"}) for name in ("one", "two")]
    registry = registry_with(augury_constraints=lambda: keyed[:1])
    with pytest.raises(PluginError, match=r"'form': one of augury-stranger 1\.2, two of augury-other 3"):
        registry.register(plugin(augury_constraints=lambda: keyed[1:]), name="other", distribution="augury-other", version="3")


def test_a_hook_with_another_argument_is_a_broken_plugin():
    module, registry = types.ModuleType("stranger"), Registry()
    module.augury_drafters = hookimpl(lambda more: [Lucky])
    registry.register(module, name="stranger", distribution="augury-stranger")
    assert registry.records == []
    assert "hook 'augury_drafters' hookimpl definition: <lambda>(more) Argument(s) {'more'}" in registry.broken[0].reason
    assert module not in registry.hooks.get_plugins()


def test_a_misspelt_hook_is_an_error_that_names_the_right_one():
    with pytest.raises(PluginError, match=r"augury-stranger.*'augury_drafter'.*did you mean 'augury_drafters'"):
        registry_with(augury_drafter=list)


def broken():
    raise OSError("no such device")


class Old(Lucky):
    name = "old"
    api_version = 0


class Unfinished(Drafter):
    name = "unfinished"

    def drafts(self, history, limit):
        return Draft()


@frozen
class OddOptions:
    words: bytes = option(b"", help="none that a flag could set")


class Odd(Lucky):
    name = "odd"
    options_class = OddOptions


@dataclass
class PlainOptions:
    n: int = 3


class Plain(Lucky):
    name = "plain"
    options_class = PlainOptions


class Nameless(Unfinished):
    name = None


class Misnamed(Unfinished):
    name = "two:words"


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (lambda: [Unfinished], "unfinished lacks draft, see augury.Drafter"),
        (lambda: [Odd], "an option is annotated with 'bytes'"),
        (lambda: [Plain], "PlainOptions'>, expected a class with attrs' @frozen, whose fields are made by augury.option"),
        (lambda: [Nameless], "drafter Nameless states no name"),
        (lambda: [Misnamed], "drafter Misnamed is named 'two:words', expected letters, digits and any of -_."),
        (broken, "no such device"),
        (lambda: [Old], "plugin API 0, this augury has 1"),
        (lambda: [MemoryManager], "is no drafter; expected a subclass of augury.Drafter"),
        (lambda: ["text"], "expected a subclass"),
        (lambda: None, "augury_drafters returned None, expected a list of classes"),
        (lambda: Lucky, ".Lucky'>, expected a list of classes"),
    ],
)
def test_a_broken_plugin_is_a_warning_and_not_a_crash(hook, reason, caplog):
    registry = registry_with(augury_drafters=hook)
    assert registry.records == []
    assert reason in registry.broken[0].reason
    assert caplog.records[0].levelname == "WARNING"
    assert "distribution=augury-stranger" in caplog.text
    with pytest.raises(PluginError, match="stranger of augury-stranger is broken"):
        registry.find("drafter", "lucky")


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        (testing.check_architecture, ["model.gguf"]),
        (testing.check_backend, []),
        (testing.check_constraint, []),
        (testing.check_drafter, []),
        (testing.check_memory_manager, []),
        (testing.check_source, ["one", "another"]),
    ],
)
def test_a_class_of_another_kind_is_not_checked(check, arguments):
    with pytest.raises(PluginError, match=r"Plugin'> is no .*; expected a subclass of augury\."):
        check(Plugin, *arguments)


def test_a_command_that_fails_is_given_up_and_the_others_are_there():
    class Failing:
        @hookimpl
        def augury_commands(self, subparsers):
            raise OSError("no such device")

    class Greeting:
        @hookimpl
        def augury_commands(self, subparsers):
            subparsers.append("greet")

    registry = Registry()
    registry.register(Failing(), name="failing", distribution="augury-stranger")
    registry.register(Greeting(), name="greeting")
    commands = []
    registry.add_commands(commands, ())
    assert commands == ["greet"]
    (broken,) = registry.broken
    assert (broken.name, broken.distribution) == ("failing", "augury-stranger")
    assert broken.reason == "augury_commands: OSError: no such device"


def test_auto_takes_what_a_plugin_chooses_and_outvotes_those_that_recommend_themselves():
    registry = Registry()
    registry.register(plugin(augury_choose=lambda: None), name="silent")
    registry.register(importlib.import_module("augury.backends.reference"), name="reference")
    assert registry.choose("backend", None).name == "reference", "the first that there is"
    registry.register(importlib.import_module("augury.backends.numba_cpu"), name="numba-cpu")
    assert registry.choose("backend", None).name == "numba-cpu"
    assert registry.choose("backend", None, lambda cls: cls.name.startswith("numba") or None).name == "reference"
    registry = Registry()
    registry.register(plugin(augury_choose=lambda: "reference"), name="chooser")  # before them, so that it would be asked last
    for name in ("reference", "numba_cpu"):
        registry.register(importlib.import_module(f"augury.backends.{name}"), name=name)
    assert registry.choose("backend", None).name == "reference"


def test_where_nothing_can_run_auto_says_why():
    registry = Registry.discover()
    with pytest.raises(PluginError, match=r"no memory manager can run here .*contiguous: too small"):
        registry.choose("memory", None, lambda _: "too small")


def test_the_allow_list_keeps_strangers_out(monkeypatch):
    monkeypatch.setenv("AUGURY_PLUGINS", "")
    registry = Registry.discover()
    assert {record.distribution for record in registry.records} == {"augury"}
    assert "none" in registry.drafters
    with pytest.raises(PluginError, match=r"no drafter 'trail'.*AUGURY_PLUGINS is '', which leaves out"):
        registry.find("drafter", "trail")


@pytest.mark.parametrize("allowed", ["Augury.Trail", "other, augury_trail", "augury-trail"])
def test_the_allow_list_knows_distributions_however_they_are_spelt(monkeypatch, allowed):
    distribution = type("Distribution", (), {"name": "augury-Trail", "version": "1"})
    entry = types.SimpleNamespace(name="trail", dist=distribution, load=plugin)
    monkeypatch.setattr("augury.registry.metadata.entry_points", lambda group: [entry])
    monkeypatch.setenv("AUGURY_PLUGINS", allowed)
    assert [name for name, _ in Registry.discover().hooks.list_name_plugin()] == ["augury-Trail:trail"]
    monkeypatch.setenv("AUGURY_PLUGINS", "trail")
    assert Registry.discover().hooks.list_name_plugin() == []


def test_observers_are_called_only_if_someone_listens():
    registry = Registry()
    assert registry.observers("augury_round_done") is None
    registry.register(plugin(augury_round_done=lambda: None), name="watcher")
    assert registry.observers("augury_round_done") is not None
