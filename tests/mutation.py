"""Mutants: small faults planted one by one into a source file; those that no test notices are listed.

    python tests/mutation.py core/speculation/verification.py core/engine/loop.py    all mutants of some files
    python tests/mutation.py --share 0.2 --json found.json  a share of all files' below, drawn by a seed

A mutant lives in a forked process alone, whose import of the file is given the changed source; nothing is written. The process
runs those of the file's tests that run the changed line, and if they pass, another those of its neighbours, up to the first
failure. The tests that killed most come first, then the fastest. What takes much longer than without a mutant has failed, too.
For a file of compiled loops, all of these run as Python, which can be followed by lines and changed, without the tests that
need them compiled.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import json
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import cache
from itertools import accumulate
from math import ceil, inf
from pathlib import Path

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[1]
MATTER = "core/engine/*.py core/speculation/*.py drafters/**/*.py plugins/memory/*.py core/text/text_stream.py"
MATTER += "".join(f" core/{name}.py" for name in ("batch", "blocks", "constraint", "options", "passes", "types"))
FILES = [
    path.relative_to(ROOT).as_posix()
    for pattern in MATTER.split()
    for path in sorted(ROOT.glob(pattern))
    if path.name != "__init__.py"
]
NEIGHBOURS = {  # what else of the tests knows a folder's files
    "core": [
        "tests/backends/test_{family}*.py",
        "tests/core/engine/*.py",
        "tests/core/speculation/*.py",
        "tests/core/test_loader.py",
    ],
    "plugins": ["tests/core/engine/test_loop.py", "tests/core/engine/test_engine.py"],
    "drafters": ["tests/drafters/**/test_{family}*.py", "tests/drafters/test_*.py", "tests/drafters/{folder}/*.py"],
}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add}
NEAR_S = 20  # how long the neighbours' tests of a mutant may take: the quickest, of which there are hundreds
EVERY = ""  # in place of a test's name: what was run at import, or made for several tests


def changes(node):
    """What may be planted at a node: pairs of a description and a change of a copy of it."""
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                if (other := COMPARISONS.get(type(op))) is not None:
                    yield (
                        f"{type(op).__name__} is {other.__name__}",
                        lambda new, i=i, other=other: new.ops.__setitem__(i, other()),
                    )
        case ast.BoolOp():
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield f"{type(node.op).__name__} is {other.__name__}", lambda new: setattr(new, "op", other())
        case ast.BinOp() if (other := OPERATORS.get(type(node.op))) is not None:
            yield f"{type(node.op).__name__} is {other.__name__}", lambda new: setattr(new, "op", other())
        case ast.Constant(value=bool()):
            yield f"{node.value} is {not node.value}", lambda new: setattr(new, "value", not node.value)
        case ast.Constant(value=int()):
            yield f"{node.value} is {node.value + 1}", lambda new: setattr(new, "value", node.value + 1)
        case ast.Constant(value=float()):
            yield f"{node.value} is {node.value * 1.5 + 0.1}", lambda new: setattr(new, "value", node.value * 1.5 + 0.1)
        case ast.IfExp() | ast.If() | ast.While():
            yield "the condition is negated", lambda new: setattr(new, "test", ast.UnaryOp(ast.Not(), new.test))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "left out", None
        case ast.Break() | ast.Continue():
            yield "left out", None
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield "returns None", lambda new: setattr(new, "value", ast.Constant(None))


def is_code(node, parents):
    """Whether a node computes something: no annotation, no message of an error, no log line, no documentation."""
    if any(isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING" for each in [node, *parents]):
        return False
    for child, parent in zip([node, *parents], parents, strict=False):
        if isinstance(parent, ast.Raise | ast.JoinedStr | ast.Assert):
            return False
        if isinstance(parent, ast.AnnAssign | ast.arg) and child is parent.annotation:
            return False
        if isinstance(parent, ast.FunctionDef) and (child is parent.returns or child in parent.decorator_list):
            return False
        if isinstance(parent, ast.Call) and ast.unparse(parent.func).split(".")[-1] in {"option", "warning", "info", "debug"}:
            return False
    return True


def mutants(source):
    """All of a source's: (line, code, description, tree, lines of its statement)."""
    tree = ast.parse(source)
    found = []

    def visit(node, parents, path):
        for name, value in ast.iter_fields(node):
            for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    where = [*path, (name, i)]
                    if is_code(child, [node, *parents]):
                        near = next(each for each in [child, node, *parents] if isinstance(each, ast.stmt))
                        found.extend((child, where, lines_of(near), what, change) for what, change in changes(child))
                    visit(child, [node, *parents], where)

    visit(tree, [], [])
    for node, path, lines, what, change in found:
        mutated = parent = copy.deepcopy(tree)
        for name, i in path[:-1]:
            parent = getattr(parent, name) if i is None else getattr(parent, name)[i]
        name, i = path[-1]
        if change is None:
            getattr(parent, name)[i] = ast.copy_location(ast.Pass(), node)
        else:
            change(getattr(parent, name) if i is None else getattr(parent, name)[i])
        code = ast.unparse(node).splitlines()[0][:90]
        yield node.lineno, code, what, ast.fix_missing_locations(mutated), lines


def lines_of(statement):
    """The lines of a statement, or of its head."""
    body = getattr(statement, "body", None)
    return range(statement.lineno, max(statement.lineno, body[0].lineno - 1 if body else statement.end_lineno) + 1)


def tests_of(file):
    """The file's own tests, which find most and take the least time, and those of its neighbours."""
    path = Path(file)
    own = {*ROOT.glob(f"tests/{path.parent}/test_{path.stem}*.py")}
    names = {"family": path.stem.split("_")[0], "folder": path.parent.name}
    near = {name for pattern in NEIGHBOURS[path.parts[0]] for name in ROOT.glob(pattern.format(**names))}
    return [sorted(str(test.relative_to(ROOT)) for test in stage) for stage in (own, near - own) if stage]


class Watch:
    """A plugin of pytest that chooses tests and orders them, and tells what became of each and which lines of files it ran.

    `chosen` are tests, and how many seconds each takes without a mutant.
    """

    def __init__(self, chosen=None, traced=()):
        self.chosen, self.files = chosen, {str((ROOT / file).resolve()): file for file in traced}
        self.test = EVERY
        self.seconds, self.failed, self.lines = {}, [], defaultdict(set)
        self.of_code = {}  # by file name as code has it

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self):
        self.arm()
        # a failure is enough: no smaller one is looked for
        settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    def arm(self):
        if self.files:
            threading.settrace(self.trace)
            sys.settrace(self.trace)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        if self.chosen is not None:
            order = {test: i for i, test in enumerate(self.chosen)}
            items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.test = item.nodeid
        self.arm()
        if self.chosen is not None:
            signal.alarm(5 + 5 * ceil(self.chosen[item.nodeid]))
        start = time.monotonic()
        result = yield
        self.seconds[item.nodeid] = time.monotonic() - start
        if self.files and sys.gettrace() != self.trace:  # it traces by itself
            self.failed.append(item.nodeid)
        self.test = EVERY
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        test = self.test
        if fixturedef.scope != "function":  # what it makes is there for others, too
            self.test = EVERY
        try:
            return (yield)
        finally:
            self.test = test

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.append(report.nodeid)

    def trace(self, frame, event, arg):
        name = frame.f_code.co_filename
        if name not in self.of_code:
            self.of_code[name] = self.files.get(os.path.realpath(name))
        if self.of_code[name] is None:
            return None
        self.lines[self.test].add((self.of_code[name], frame.f_lineno))
        return self.trace


def run(tests, mutant=None, *, as_python=False, **options):
    """Run tests in a forked process, with a mutant up to the first failure: what a `Watch` saw, or None if it has no end."""
    with tempfile.NamedTemporaryFile() as told:
        if not (pid := os.fork()):
            try:
                os.setpgid(0, 0)
                sink = os.open(os.devnull, os.O_WRONLY)
                os.dup2(sink, 1)
                os.dup2(sink, 2)
                stop = []
                if as_python:
                    importlib.import_module("augury.compiled").compiled = lambda *types: lambda function: function
                if mutant is not None:
                    stop = ["-x"]
                    signal.alarm(60)  # until the first test
                    plant(*mutant)
                watch = Watch(**options)
                # plain, for pytest would load augury, which is a plugin of its own, by itself
                plain = ["-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
                code = int(pytest.main([*stop, *plain, *tests], [watch]))
                Path(told.name).write_bytes(pickle.dumps((code, watch.seconds, watch.failed, dict(watch.lines))))
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a mutant that cannot be imported is found out
                os._exit(99)
        _, status = os.waitpid(pid, 0)
        with suppress(ProcessLookupError):  # what it has started
            os.killpg(pid, signal.SIGKILL)
        if os.waitstatus_to_exitcode(status) == -signal.SIGALRM:
            return None
        return pickle.loads(told.read() or pickle.dumps((99, {}, [], {})))


@cache
def alone(module, files, as_python):
    """Of each test of a module: its seconds without a mutant, and which lines of the files it runs."""
    _, seconds, failed, lines = run([module], traced=files, as_python=as_python)
    if failed:  # those that cannot be traced
        _, _, really, _ = run([module], chosen=dict.fromkeys(failed, 100.0), as_python=as_python)
        assert as_python or not really, f"{module}: tests fail without a mutant: {really}"
        lines |= dict.fromkeys(failed, set().union(*lines.values()))
        seconds, lines = ({test: each[test] for test in each if test not in really} for each in (seconds, lines))
    return seconds, lines


def killer(file, tree, changed, stages, kills, as_python):
    """The test that notices a mutant of some lines; None: it survives."""
    for left_s, tests in zip((inf, NEAR_S), stages, strict=False):
        seconds = {}
        for of_all, lines in tests:
            near = {test for test, ran in lines.items() if not changed.isdisjoint(ran)}
            seconds |= of_all if EVERY in near else {test: of_all[test] for test in near}
        chosen = sorted(seconds, key=lambda test: (-kills[test], seconds[test]))
        sums = accumulate(seconds[test] for test in chosen)
        chosen = [test for test, sum_s in zip(chosen, sums, strict=True) if sum_s <= left_s]
        names = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
        chosen.sort(key=lambda test: names.index(test.partition("::")[0]))  # the tests of a module stay together
        if not chosen:
            continue
        ended = run(names, (file, tree), as_python=as_python, chosen={test: seconds[test] for test in chosen})
        if ended is None:
            return "time"
        if ended[0] != 0:
            found = ended[2][0] if ended[2] else "import"
            kills[found] += 1
            return found
    return None


def plant(file, tree):
    """Give the import of a file another source."""
    loader, module = importlib.machinery.SourceFileLoader, Path(file).name
    original = (ROOT / file).stat()

    def get_code(self, fullname):
        path = Path(self.path)
        if path.name == module and os.path.samestat(path.stat(), original):
            return compile(tree, self.path, "exec")
        return whole(self, fullname)

    whole, loader.get_code = loader.get_code, get_code


def main():
    """Run mutants and list those that survive."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "files", nargs="*", default=FILES, help="source files; without any, those whose faults would matter most"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--share", type=float, default=1.0, help="of each file's mutants so many, drawn by a fixed seed")
    parser.add_argument("--json", type=Path, help="write what became of each to a file")
    args = parser.parse_args()
    os.chdir(ROOT)
    for name in ("gguf", "numba"):
        importlib.import_module(name)  # once, before processes are forked: no mutant is in it
    ends_at, outcomes = time.monotonic() + 60 * args.minutes, []
    for file in args.files:
        source = (ROOT / file).read_text()
        every, as_python = list(mutants(source)), "import compiled" in source
        chosen = random.Random(file).sample(every, max(1, round(len(every) * args.share)))
        start, kills, n_survived = time.monotonic(), Counter(), 0
        stages = [[alone(name, tuple(args.files), as_python) for name in names] for names in tests_of(file)]
        for n, (line, code, what, tree, lines) in enumerate(chosen):
            if time.monotonic() > ends_at:
                chosen = chosen[:n]
                break
            by = killer(file, tree, {(file, each) for each in lines}, stages, kills, as_python)
            outcomes.append({"file": file, "line": line, "code": code, "what": what, "killer": by})
            if by is None:
                n_survived += 1
                print(f"{file}:{line}: {what}: {code}", flush=True)
            if args.json:
                args.json.write_text(json.dumps(outcomes, indent=1))
        took_s = time.monotonic() - start
        print(f"# {file}: {len(chosen)} of {len(every)} mutants, {n_survived} survived, {took_s:.0f} s", flush=True)
    survived = sum(each["killer"] is None for each in outcomes)
    print(f"{len(outcomes)} mutants, {len(outcomes) - survived} killed, {survived} survived")


if __name__ == "__main__":
    main()
