"""A method without a docstring is one that overrides: whoever looks for its docstring gets that of the overridden one."""

import ast

from support.sources import SOURCES


def classes_of(path):
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def methods_of(node):
    return [each for each in node.body if isinstance(each, ast.FunctionDef)]


def test_methods_have_a_docstring_or_inherit_one():
    bases, documented = {}, set()
    for node in (node for path in SOURCES for node in classes_of(path)):
        bases.setdefault(node.name, set()).update(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
        documented |= {(node.name, each.name) for each in methods_of(node) if ast.get_docstring(each)}

    def is_documented(name, method):
        return (name, method) in documented or any(is_documented(base, method) for base in bases.get(name, ()))

    public = [
        (node.name, each.name)
        for path in SOURCES
        for node in classes_of(path)
        for each in methods_of(node)
        if not node.name.startswith("_") and not each.name.startswith("_")
    ]
    assert len(public) > 1000
    assert [f"{name}.{method}" for name, method in public if not is_documented(name, method)] == []
