import subprocess
import sys

import pytest

import augury


def test_names_are_those_of_the_modules_that_define_them():
    from augury.engine.engine import Engine
    from augury.errors import OptionError

    assert augury.Engine is Engine
    assert augury.OptionError is OptionError


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'augury' has no attribute 'Drafters'"):
        _ = augury.Drafters


@pytest.mark.parametrize("module", ["augury", "augury.testing"])
def test_importing_what_every_command_and_every_pytest_loads_imports_nothing_else(module):
    heavy = ("numpy", "attr", "pluggy", "rich", "numba", "pytest")
    script = f"import sys, {module}; print([name for name in sys.modules if name.split('.')[0] in {heavy}])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
