"""Strangers' packages, built as wheels, installed into an environment of their own, and used from the command line."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from augury.testing.tiny_model import write_tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "write-an-architecture.md"
_, TIDAL, _, SOFT, _, _, TINY = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
MEMORY = """
from augury.plugin import Contiguous, hookimpl


class Forgetful(Contiguous):
    name = "forgetful"

    def open(self, tokens, *, may_reuse, slot=None):
        return super().open(tokens, may_reuse=False, slot=slot)


@hookimpl
def augury_memory_managers():
    return [Forgetful]
"""
ARCHITECTURE = """
from augury.model import Architecture, Decoder, Layer, hookimpl


class Oracular(Architecture):
    name = "oracular"

    @classmethod
    def plans(cls, file):
        decoder = Decoder(file)
        layers = range(decoder.n_layers)
        return {"main": decoder.plan(Layer(decoder.attention(i, decoder.rope()), decoder.feed_forward(i)) for i in layers)}


@hookimpl
def augury_architectures():
    return [Oracular]
"""
EMITTER = """
from typing import Any

import numpy as np
from augury.backend.numba_cpu import OperationEmitter, Record, StridedRows, Work
from augury.backend.numba_cpu import get_f32, kernel, nested, put_f32, row_of, struct


@struct
class Soften(Record):
    x: Any = nested(StridedRows)
    out: Any = nested(StridedRows)
    size: int
    slope: float


@kernel(record=Soften)
def soften(record, state, thread, n_threads):
    n = state.n_tokens * record.size
    for item in range(n * thread // n_threads, n * (thread + 1) // n_threads):
        t, i = item // record.size, item % record.size
        x = np.float64(get_f32(row_of(record.x, t) + 4 * i))
        put_f32(row_of(record.out, t) + 4 * i, np.float32(record.slope * x / (1.0 + abs(x))))


class SoftenEmitter(OperationEmitter):
    kernels = (soften,)

    def emit(self, tape):
        operation, x, out = self.operation, self.placed.at(self.operation.x), self.placed.at(self.operation.out)
        tape.add(Work("softened"), soften, x=x, out=out, size=operation.x.width, slope=operation.slope)
"""
OPERATION = (
    SOFT.replace('"numba-cpu": soften', '"numba-cpu": "stranger_operation_cpu:SoftenEmitter"')
    + """
from augury.model import Architecture, Decoder, Layer, hookimpl


class Soft(Architecture):
    name = "soft"

    @classmethod
    def plans(cls, file):
        decoder = Decoder(file)
        layers = range(decoder.n_layers)
        return {"main": decoder.plan(Layer(decoder.attention(i, decoder.rope()), cls.feed(decoder, i)) for i in layers)}

    @staticmethod
    def feed(decoder, layer):
        plain = decoder.feed_forward(layer)
        return SoftFeedForward(plain.norm, plain.up, plain.down)


@hookimpl
def augury_architectures():
    return [Soft]
"""
)
DRAFTER = """
from augury import Draft, Drafter, hookimpl


class Stranger(Drafter):
    name = "{name}"
    {more}

    def draft(self, history, limit):
        return Draft()


@hookimpl
def {hook}():
    return [Stranger]
"""
MODULES = {
    "memory": MEMORY,
    "architecture": ARCHITECTURE,
    "block": TIDAL,
    "operation": OPERATION,
    "broken": "raise OSError('no such device')\n",
    "leaving": "raise SystemExit('cannot run here')\n",
    "misspelt": DRAFTER.format(name="misspelt", more="", hook="augury_drafter"),
    "clash": DRAFTER.format(name="suffix", more="", hook="augury_drafters"),
    "future": DRAFTER.format(name="future", more="api_version = 99", hook="augury_drafters"),
    "past": DRAFTER.format(name="past", more="api_version = 0", hook="augury_drafters"),
    "nameless": DRAFTER.format(name="", more="del name", hook="augury_drafters"),
}
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "stranger-{name}"
version = "1.2"

[project.entry-points.augury]
{name} = "stranger_{name}"

[tool.setuptools]
py-modules = {modules}
"""
# pip takes longer to start than setuptools to build, and setuptools longer to be imported
BUILD = """
import os, sys
from setuptools import build_meta
_, folder, *projects = sys.argv
for project in projects:
    os.chdir(project)
    build_meta.build_wheel(folder)
"""
# commands one after another, in one process that imports augury once: how each ends, and what it prints
COMMANDS = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from pkgutil import resolve_name
main = resolve_name("augury.cli.command_line:main")
ended = []
for plugins, words in json.loads(sys.argv[1]):
    os.environ["AUGURY_PLUGINS"] = plugins
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(words)
    ended.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(ended))
"""
PROMPT = ",".join(["40,41,42,43,44,45"] * 6)


class Environment:
    """A virtual environment with strangers' packages in it, and a model that one of them knows."""

    def __init__(self, folder):
        self.folder = folder
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        site = Path(self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
        # what augury needs is taken from where the tests run, so that nothing is downloaded
        (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        self.augury("new-drafter", "trail")
        for name, source in MODULES.items():
            project = folder / name
            project.mkdir()
            sources = {f"stranger_{name}": source} | ({"stranger_operation_cpu": EMITTER} if name == "operation" else {})
            for module, text in sources.items():
                (project / f"{module}.py").write_text(text)
            (project / "pyproject.toml").write_text(PROJECT.format(name=name, modules=[*sources]))
        projects = [folder / name for name in MODULES]
        build = subprocess.Popen([sys.executable, "-c", BUILD, folder, *projects], stdout=subprocess.DEVNULL)
        words = ["wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "trail")]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        assert build.wait() == 0
        wheels = [str(path) for path in folder.glob("*.whl")]
        assert len(wheels) == len(MODULES) + 1
        words = ["--python", str(self.python), "install", "-q", "--no-index", "--no-deps", *wheels]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        self.model = str(folder / "oracle.gguf")
        write_tiny_model(Path(self.model), architecture="oracular")
        write_tiny_model(folder / "soft.gguf", architecture="soft")
        self.run("-c", TINY).check_returncode()

    def run(self, *words, plugins=""):
        return subprocess.run(
            [self.python, *words],
            cwd=self.folder,
            env=os.environ | {"AUGURY_PLUGINS": plugins},
            capture_output=True,
            text=True,
            check=False,
        )

    def augury(self, *words, plugins=""):
        return self.run("-m", "augury", *words, plugins=plugins)

    def commands(self, *commands):
        """Exit codes, standard output and standard error of commands, each the plugins that are used and its words."""
        ended = self.run("-c", COMMANDS, json.dumps(commands))
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def answers(self, *of_each, plugins, model=None, backend="reference"):
        """Answers to one prompt, with more words for each."""
        words = ["-m", model or self.model, "--backend", backend, "-c", "128", "--temp", "0", "-n", "24", "--json"]
        ended = self.commands(*((plugins, ["run", *words, *more, "--prompt-tokens", PROMPT]) for more in of_each))
        assert [code for code, *_ in ended] == [0] * len(of_each), ended
        return [json.loads(out) for _, out, _ in ended]


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("strangers"))


def test_strangers_plugins_are_listed_with_their_distributions(strangers):
    ended = strangers.augury("plugins", "--json", plugins="augury-trail,stranger-memory,stranger-architecture")
    told = json.loads(ended.stdout)
    theirs = {(each["kind"], each["name"], each["distribution"], each["version"]) for each in told["plugins"]}
    assert {each for each in theirs if each[2] != "augury"} == {
        ("drafter", "trail", "augury-trail", "0.1.0"),
        ("memory", "forgetful", "stranger-memory", "1.2"),
        ("architecture", "oracular", "stranger-architecture", "1.2"),
    }
    assert told["broken"] == []


def test_a_drafter_a_memory_manager_and_an_architecture_work_together(strangers):
    plugins = "augury-trail,stranger-memory,stranger-architecture"
    words = ("--spec-type", "trail:length=3", "--spec-fixed", "--memory", "forgetful", "--spec-trail-length", "3")
    plain, drafted = strangers.answers((), words, plugins=plugins)
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["spec_type"] == "trail:length=3"
    assert drafted["draft"]["accepted"] > 0


@pytest.mark.parametrize(("name", "model"), [("block", "tiny.gguf"), ("operation", "soft.gguf")])
def test_a_block_and_an_operation_of_a_package_write_the_same_with_drafts(strangers, name, model):
    words = [("--spec-fixed", "--spec-type", spec) for spec in ("none", "suffix")]
    plain, drafted = strangers.answers(*words, plugins=f"stranger-{name}", model=model, backend="numba-cpu")
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["draft"]["accepted"] > 0


def test_the_architectures_of_packages_keep_their_contracts(strangers):
    checked = "from augury.testing import check_architecture as check; check('tidal', 'tiny.gguf'); check('soft', 'soft.gguf')"
    ended = strangers.run("-c", checked, plugins="stranger-block,stranger-operation")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.sample(0)
def test_the_new_drafters_own_tests_pass(strangers):
    ended = strangers.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "trail", plugins="augury-trail")
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout


BROKEN = {
    "broken": "OSError: no such device",
    "leaving": "SystemExit: cannot run here",
    "future": "PluginError: future was written for plugin API 99, this augury has 1; upgrade augury",
    "past": "PluginError: past was written for plugin API 0, this augury has 1; upgrade stranger-past",
    "nameless": "PluginError: drafter Stranger states no name; expected a class attribute `name`",
}


UNRESOLVED = {
    "misspelt": "plugin 'misspelt' implements no known hook 'augury_drafter'; did you mean 'augury_drafters'?",
    "clash": "two drafter plugins are called 'suffix': one of stranger-clash 1.2, one of augury",
}


@pytest.fixture(scope="module")
def refused(strangers):
    """By name, how a command ends that is refused for what a plugin is."""
    commands = {name: ["run", "--spec-type", name, "-p", "hello"] for name in BROKEN}
    commands |= {name: ["plugins"] for name in UNRESOLVED}
    ended = strangers.commands(*((f"stranger-{name}", words) for name, words in commands.items()))
    return dict(zip(commands, ended, strict=True))


def test_broken_plugins_are_warnings_and_lines_in_the_list(strangers):
    ended = strangers.augury("plugins", plugins=",".join(f"stranger-{name}" for name in BROKEN))
    assert ended.returncode == 0
    for name, reason in BROKEN.items():
        assert f"broken: {name} of stranger-{name} 1.2: {reason}" in ended.stdout.splitlines()
        assert f'WARNING augury.registry event="plugin cannot be used" plugin={name}' in ended.stderr


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_that_is_asked_for_is_an_error(refused, name):
    code, _, err = refused[name]
    assert code == 1
    assert f"{name} of stranger-{name} is broken: {BROKEN[name]}" in err


@pytest.mark.parametrize("name", UNRESOLVED)
def test_what_only_its_author_or_user_can_resolve_is_an_error(refused, name):
    code, _, err = refused[name]
    assert code == 1
    assert UNRESOLVED[name] in err
    assert "Traceback" not in err
