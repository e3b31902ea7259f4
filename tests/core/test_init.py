import subprocess
import sys

import pytest

import augury


def test_every_public_name_is_found_where_it_lives():
    assert sorted(augury._HOMES) == augury.__all__ == sorted(augury.__all__)
    for name in augury.__all__:
        assert getattr(augury, name) is getattr(sys.modules[f"augury.{augury._HOMES[name]}"], name)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'augury' has no attribute 'Drafters'"):
        _ = augury.Drafters


def test_importing_augury_imports_nothing_else():
    script = "import sys, augury; print([name for name in sys.modules if name.split('.')[0] in ('numpy', 'attr', 'pluggy')])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
