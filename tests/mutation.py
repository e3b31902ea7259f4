"""Mutants: small faults planted one by one into a source file; those that no test notices are listed.

    python tests/mutation.py core/verify.py core/loop.py    all mutants of some files
    python tests/mutation.py --share 0.2 --json found.json  a share of all files' below, drawn by a seed

A mutant lives in a forked process alone, whose import of the file is given the changed source; nothing is written. The process
runs the tests of the file, and if they pass, another those of its neighbours, up to the first failure. What takes much longer
than without a mutant has failed, too.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import json
import os
import random
import signal
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = "loop part sequence verify sampling planner acceptance pass_costs choice track draft_cost drafting drafted guard tree"
CORE += " drafter_guard session blocks options stats request speculation running worker text logits types"
FILES = [f"core/{name}.py" for name in CORE.split()] + ["plugins/memory/contiguous.py"]
FILES += sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("drafters/*.py") if path.name != "__init__.py")
NEIGHBOURS = {  # what else of the tests knows a folder's files
    "core": [
        "tests/backends/test_{family}*.py",
        *(f"tests/core/test_{name}.py" for name in ("request", "loop", "drafting", "sequence", "engine", "loader")),
    ],
    "plugins": ["tests/core/test_loop.py", "tests/core/test_engine.py"],
    "drafters": ["tests/drafters/test_{family}*.py"],
}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add}


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
    """All of a source's: (line, code, description, tree)."""
    tree = ast.parse(source)
    found = []

    def visit(node, parents, path):
        for name, value in ast.iter_fields(node):
            for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    where = [*path, (name, i)]
                    if is_code(child, [node, *parents]):
                        found.extend((child, where, what, change) for what, change in changes(child))
                    visit(child, [node, *parents], where)

    visit(tree, [], [])
    for node, path, what, change in found:
        mutated = parent = copy.deepcopy(tree)
        for name, i in path[:-1]:
            parent = getattr(parent, name) if i is None else getattr(parent, name)[i]
        name, i = path[-1]
        if change is None:
            getattr(parent, name)[i] = ast.copy_location(ast.Pass(), node)
        else:
            change(getattr(parent, name) if i is None else getattr(parent, name)[i])
        code = ast.unparse(node).splitlines()[0][:90]
        yield node.lineno, code, what, ast.fix_missing_locations(mutated)


def tests_of(file):
    """The file's own tests, which find most and take the least time, and those of its neighbours."""
    path = Path(file)
    own = ROOT / "tests" / path.with_name(f"test_{path.name}")
    near = [name for pattern in NEIGHBOURS[path.parts[0]] for name in ROOT.glob(pattern.format(family=path.stem.split("_")[0]))]
    stages = [own], sorted({*near} - {own})
    return [found for stage in stages if (found := [str(test) for test in stage if test.exists()])]


def run(file, tree, tests, limit_s=None):
    """Run tests in a forked process with a mutant, or with the file as it is; returns (whether they passed, seconds)."""
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            if tree is not None:
                plant(file, tree)
            import pytest

            # plain, for pytest would load augury, which is a plugin of its own, by itself
            os._exit(int(pytest.main(["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])))
        except BaseException:  # noqa: BLE001 - a mutant that cannot be imported is found out
            os._exit(99)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0, time.monotonic() - start
        if limit_s is not None and time.monotonic() - start > limit_s:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False, time.monotonic() - start
        time.sleep(0.02)


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
    for name in ("gguf", "hypothesis", "numba", "pytest"):
        importlib.import_module(name)  # once, before processes are forked: no mutant is in it
    ends_at, outcomes = time.monotonic() + 60 * args.minutes, []
    plan = {}
    for file in args.files:
        every = list(mutants((ROOT / file).read_text()))
        plan[file] = random.Random(file).sample(every, max(1, round(len(every) * args.share)))
    for file, chosen in plan.items():
        stages = [(tests, *run(file, None, tests)) for tests in tests_of(file)]
        assert all(passed for _, passed, _ in stages), f"{file}: the tests fail without a mutant"
        seconds = sum(took_s for *_, took_s in stages)
        for line, code, what, tree in chosen:
            if time.monotonic() > ends_at:
                break
            start = time.monotonic()
            survived = all(run(file, tree, tests, limit_s=5 * alone_s + 20)[0] for tests, _, alone_s in stages)
            took_s = time.monotonic() - start
            outcomes.append({"file": file, "line": line, "code": code, "what": what, "survived": survived, "seconds": took_s})
            if survived:
                print(f"{file}:{line}: {what}: {code}", flush=True)
        here = [each["survived"] for each in outcomes if each["file"] == file]
        print(f"# {file}: {len(here)} mutants, {sum(here)} survived; tests take {seconds:.1f} s", flush=True)
    survived = sum(each["survived"] for each in outcomes)
    print(f"{len(outcomes)} mutants, {len(outcomes) - survived} killed, {survived} survived")
    if args.json:
        args.json.write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
