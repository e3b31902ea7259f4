import subprocess
import sys
from inspect import get_annotations
from pathlib import Path

import pytest
from support.sources import ROOT

from augury.options import NoOptions
from augury.registry import Registry

PLUGINS = {record.plugin for record in Registry.discover().records if record.plugin.options_class is not NoOptions}


def test_type_checkers_know_the_arguments_and_results_of_programs():
    program = Path(__file__).with_name("typed_program.py").relative_to(ROOT)
    ended = subprocess.run([sys.executable, "-m", "mypy", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout == "Success: no issues found in 1 source file\n", ended.stderr


@pytest.mark.parametrize("plugin", sorted(PLUGINS, key=lambda plugin: plugin.name), ids=lambda plugin: plugin.name)
def test_a_plugin_declares_the_class_of_its_options(plugin):
    declared = next(annotations["options"] for cls in plugin.mro() if "options" in (annotations := get_annotations(cls)))
    assert plugin.options_class.__name__ in declared.split(" | ")
