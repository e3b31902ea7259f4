"""Records of kernels: fields by name, offsets from their declarations, and none that nobody reads."""

import ast
import re
from typing import Any

import attrs
import numpy as np
import pytest
from support.sources import MODULES

from augury.backends.numba_cpu.kernels import jit, step
from augury.backends.numba_cpu.kernels.simd import invoke, put_f64, put_i64
from augury.backends.numba_cpu.kernels.struct import nested, pointer_maker, pointer_to, struct, table, view
from augury.backends.numba_cpu.kernels.team import Record, record_of
from augury.backends.numba_cpu.tape import ThreadRows
from augury.backends.numba_cpu.team import PassMemory, Team

TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items() if "numba_cpu" in name}  # in packages, too


@struct
class Item:
    count: int
    weight: float


@struct
class Whole(Record):
    rows: Any = nested(Item)
    is_long: bool
    items: int = pointer_to(Item)
    out: int


items_at = pointer_maker(Item)


@jit.kernel(whole=Whole)
def read_all(whole):
    put_i64(whole.out, whole.kernel)
    put_i64(whole.out + 8, whole.rows.count + whole.is_long + whole.waits)
    put_f64(whole.out + 16, whole.rows.weight)
    last = whole.items[whole.rows.count]
    put_f64(whole.out + 24, last.weight)
    put_i64(whole.out + 32, items_at(whole.items + 16).count)
    last.count = 9
    last.weight = 7


Long = struct(type("Long", (Record,), {"__annotations__": {**{f"field_{i}": int for i in range(40)}, "out": int}}))


@jit.kernel(record=Long)
def write_last(record, state, thread, n_threads):
    put_i64(record.out, record.field_39)


@jit.kernel
def call(function, whole):
    invoke(function, (whole,))


def test_a_kernel_reads_and_writes_what_stands_in_a_struct():
    items, out = table([Item(count=i, weight=i + 0.5) for i in range(3)]), np.zeros(5, np.int64)
    places = {"items": items.ctypes.data, "out": out.ctypes.data}
    whole = table([Whole(kernel=41, waits=True, n_bytes=0, rows=Item(count=2, weight=0.25), is_long=True, **places)])
    call(jit.address(read_all), whole.ctypes.data)
    assert [out[0], out[1], out[4]] == [41, 4, 1]
    assert out[2:4].view(np.float64).tolist() == [0.25, 2.5]
    assert items.tolist() == [(0, 0.5), (1, 1.5), (9, 7.0)]


def test_a_record_has_its_fields_one_after_the_other():
    rows, to = ThreadRows(1, 2, 3), ThreadRows(4, 5, 3)
    row = record_of(step.copy_rows, x=rows, y=to, size=3, n_times=1, is_private=True, is_output=False)
    assert row.tolist() == [jit.address(step.copy_rows), 0, 104, 1, 2, 3, 4, 5, 3, 3, 1, 1, 0]
    assert record_of(step.copy_rows, x=rows, y=to, size=3, n_times=1, is_private=False, is_output=False)[1] == 1
    seen = view(row, step.CopyRows)
    seen["y"]["address"] = 6
    assert seen.tolist() == (row[0], 0, 104, (1, 2, 3), (6, 5, 3), 3, 1, 1, 0)


@pytest.mark.parametrize("changed", [{"width": 3}, {"size": None}])
def test_a_record_needs_all_of_its_fields_and_no_others(changed):
    rows = {"x": ThreadRows(1, 2, 3), "y": ThreadRows(4, 5, 3), "size": 3, "n_times": 1}
    fields = {**rows, "is_private": True, "is_output": False, **changed}
    with pytest.raises(TypeError, match=next(iter(changed))):
        record_of(step.copy_rows, **{name: value for name, value in fields.items() if value is not None})


def test_records_of_any_length_follow_one_another_on_a_tape():
    out, team = np.zeros(2, np.int64), Team(1)
    many = {f"field_{i}": i for i in range(39)}
    records = [record_of(write_last, **many, field_39=n, out=out[n:].ctypes.data) for n in range(2)]
    rows = {"x": ThreadRows(0, 0), "y": ThreadRows(0, 0)}
    short = record_of(step.copy_rows, **rows, size=0, n_times=0, is_private=True, is_output=False)
    team.run(np.concatenate([records[0], short, records[1]]), PassMemory())
    team.close()
    assert out.tolist() == [0, 1]


def structs():
    """The structs that are declared: the file, the class as it is written."""
    return [
        (name, each)
        for name, tree in TREES.items()
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and any(isinstance(by, ast.Name) and by.id == "struct" for by in each.decorator_list)
    ]


@pytest.mark.parametrize(("name", "declared"), [pytest.param(*each, id=f"{each[0]}:{each[1].name}") for each in structs()])
def test_kernels_read_each_field_of_a_struct(name, declared):
    users = [TREES[name], *(tree for tree in TREES.values() if name in imported(tree))]
    read = {each.attr for tree in users for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    annotated = [each for each in declared.body if isinstance(each, ast.AnnAssign)]
    fields = {each.target.id for each in annotated if not ast.unparse(each.annotation).startswith("ClassVar")}
    assert fields
    assert fields <= read


def imported(tree):
    """The modules that names come from."""
    found = [each for each in tree.body if isinstance(each, ast.ImportFrom)]
    return {each.module for each in found} | {f"{each.module}.{name.name}" for each in found for name in each.names}


def test_all_records_begin_alike():
    found = [Record]
    for each in found:
        found += [kind for kind in each.__subclasses__() if kind.__module__.startswith("augury")]
    assert len(found) > 10
    assert all(attrs.fields_dict(each).keys() >= {"kernel", "waits", "n_bytes"} for each in found)


@pytest.mark.parametrize("name", sorted(TREES))
def test_no_field_is_read_or_written_by_a_number(name):
    found = re.findall(r"\b(?:get|put)_[iuf]\d+\(\w+ \+ \d+[,)]", ast.unparse(TREES[name]))
    assert not found


@pytest.mark.parametrize("name", sorted(TREES))
def test_nothing_takes_more_than_12_arguments_by_position(name):
    taken = [each for each in ast.walk(TREES[name]) if isinstance(each, ast.FunctionDef)]
    called = [each for each in ast.walk(TREES[name]) if isinstance(each, ast.Call)]
    most = max([*(len(each.args.args) for each in taken), *map(n_positional, called), 0])
    assert most <= 12


def n_positional(call):
    """Positional arguments of a call, also those that are written as starred tuples."""
    values = [each.value if isinstance(each, ast.Starred) else each for each in call.args]
    return sum(len(value.elts) if isinstance(value, ast.Tuple) else 1 for value in values)
