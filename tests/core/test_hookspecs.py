"""Every hook is called as its docstring says."""

from types import SimpleNamespace

import pytest

from augury.constraint import Constraint
from augury.errors import PluginError
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture, Backend, Drafter, FileFormat, MemoryManager, Source
from augury.registry import Registry


class Plug:
    """Offers one class under a hook of any name."""

    def __init__(self, hook, result):
        def implementation():
            return result

        implementation.__name__ = hook
        setattr(self, hook, hookimpl(implementation))


def complete(base, name):
    """A subclass that lacks nothing."""
    return type(name.title(), (base,), {"name": name} | dict.fromkeys(base.__abstractmethods__, lambda self: None))


def offered(hook, base, attribute):
    cls = complete(base, "offered")
    registry = Registry()
    registry.register(Plug(hook, [cls]), name="one")
    return getattr(registry, attribute) == {"offered": cls}


def test_augury_backends_offers_backends():
    assert offered("augury_backends", Backend, "backends")


def test_augury_drafters_offers_drafters():
    assert offered("augury_drafters", Drafter, "drafters")


def test_augury_memory_managers_offers_memory_managers():
    assert offered("augury_memory_managers", MemoryManager, "memory_managers")


def test_augury_architectures_offers_architectures():
    assert offered("augury_architectures", Architecture, "architectures")


def test_augury_constraints_offers_constraints():
    assert offered("augury_constraints", Constraint, "constraints")


def test_augury_sources_offers_sources():
    assert offered("augury_sources", Source, "sources")


def test_augury_formats_offers_formats():
    assert offered("augury_formats", FileFormat, "formats")


def test_augury_choose_decides_for_auto_and_the_first_answer_counts():
    class Chooser:
        @hookimpl
        def augury_choose(self, kind, names, model):
            assert kind == "memory"
            assert model is None
            return names[-1]

    registry = Registry()
    classes = [complete(MemoryManager, name) for name in ("first", "last")]
    registry.register(Plug("augury_memory_managers", classes), name="two")
    assert registry.choose("memory", None) is classes[0]
    registry.register(Chooser(), name="chooser")
    assert registry.choose("memory", None) is classes[1]


@pytest.mark.parametrize("hook", ["augury_round_done", "augury_request_done"])
def test_observers_are_called_only_where_someone_listens(hook):
    assert Registry().observers(hook) is None


def test_augury_round_done_gets_the_round():
    seen = []

    class Observer:
        @hookimpl
        def augury_round_done(self, round):  # noqa: A002 - the hook's word
            seen.append(round)

    registry = Registry()
    registry.register(Observer(), name="observer")
    told = SimpleNamespace()
    registry.observers("augury_round_done")(round=told)
    assert seen == [told]


def test_augury_request_done_gets_the_summary():
    seen = []

    class Observer:
        @hookimpl
        def augury_request_done(self, summary):
            seen.append(summary)

    registry = Registry()
    registry.register(Observer(), name="observer")
    told = SimpleNamespace()
    registry.observers("augury_request_done")(summary=told)
    assert seen == [told]


def test_augury_commands_adds_a_command():
    from augury.cli.command_line import make_parser

    class Command:
        @hookimpl
        def augury_commands(self, subparsers):
            subparsers.add_parser("greet").set_defaults(run=lambda args: 3)

    registry = Registry()
    registry.register(Command(), name="command")
    args = make_parser(registry).parse_args(["greet"])
    assert args.run(args) == 3


def test_a_misspelt_hook_is_an_error_that_names_the_nearest():
    with pytest.raises(PluginError, match="augury_drafters"):
        Registry().register(Plug("augury_drafter", []), name="typo")
