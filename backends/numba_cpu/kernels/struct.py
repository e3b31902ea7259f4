"""Structs in memory. A class declares one field by field: with it structs are written, and by it kernels find the fields.

The fields lie in their order, 8 bytes each: an `int` (a number or an address), a `bool` (0 or 1) or a `float` (float64). A
kernel gets pointers to structs (see `jit.kernel`), from fields that are `pointer_to` others, too:

    entry.scale     reads a field; `entry.scale = 1.0` writes it
    entries[2]      points to the third of structs that follow one another
    entries + 8     is an address, as a pointer is wherever an int64 is wanted
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cache
from typing import Any, dataclass_transform

import attrs
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import types
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global, signature
from numba.np.numpy_support import from_dtype

from augury.backends.numba_cpu.kernels.simd import I64, load, store


def pointer_to(kind: type) -> Any:
    """Declare a field that is the address of a struct, or of several that follow one another."""
    return attrs.field(metadata={"pointer": kind})


def nested(kind: type) -> Any:
    """Declare a field that is a struct itself. It is written from any object that has attributes of its fields' names."""
    return attrs.field(metadata={"nested": kind})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(pointer_to, nested))
def struct(declared: type) -> Any:
    """Make a class of annotated fields a struct, which is written with all of them by name."""
    return attrs.frozen(kw_only=True)(declared)


@cache
def dtype(kind: type) -> Any:
    """The layout of a struct."""
    return np.dtype([(each.name, _number_of(each)) for each in attrs.fields(kind)])


def index(kind: type, field: str) -> int:
    """Which int64 of a struct a field is."""
    return int(dtype(kind).fields[field][1]) // 8


def values(written: Any, kind: type | None = None) -> tuple[Any, ...]:
    """The fields of a struct, as an array of its dtype takes them."""
    fields = [(getattr(written, each.name), each.metadata.get("nested")) for each in attrs.fields(kind or type(written))]
    return tuple(value if nested is None else values(value, nested) for value, nested in fields)


def table(structs: Sequence[Any]) -> np.ndarray:
    """Structs of one kind that follow one another, (n,) of its dtype."""
    return np.array([values(each) for each in structs], dtype(type(structs[0])))


def view(row: np.ndarray, kind: type) -> Any:
    """Int64 of which the first are a struct, as that struct: its fields can be changed."""
    layout = dtype(kind)
    return row[: layout.itemsize // 8].view(layout)[0]


def _number_of(field: Any) -> Any:
    if "nested" in field.metadata:
        return dtype(field.metadata["nested"])
    return np.float64 if field.type in {float, "float"} else np.int64


class Pointer(types.Type):  # type: ignore[misc]
    """The numba type of a struct's address."""

    def __init__(self, kind: type) -> None:
        super().__init__(f"pointer to {kind.__module__}.{kind.__qualname__}")
        self.kind = kind

    def __reduce__(self) -> Any:
        """Be known by the class in compiled code that is kept: its fields are in the key of the cache."""
        return Pointer, (self.kind,)

    def can_convert_to(self, _: Any, other: Any) -> Any:
        """See `numba.types.Type`: it is an int64 where one is wanted."""
        return Conversion.promote if other == types.int64 else None

    def type_of(self, field: str) -> Any:
        """The numba type of a field."""
        declared = getattr(attrs.fields(self.kind), field)
        for pointed in declared.metadata.values():
            return Pointer(pointed)
        return from_dtype(np.dtype(_number_of(declared)))


@extending.register_model(Pointer)
class _Model(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, I64)


@extending.infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Pointer

    def generic_resolve(self, pointer: Any, name: str) -> Any:
        return pointer.type_of(name) if name in dtype(pointer.kind).names else None


@infer_global(operator.getitem)
class _Items(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, _: Any) -> Any:
        return signature(args[0], args[0], types.int64) if isinstance(args[0], Pointer) else None


def _place(builder: ir.IRBuilder, pointer: Any, address: ir.Value, name: str) -> ir.Value:
    return builder.add(address, ir.Constant(I64, dtype(pointer.kind).fields[name][1]))


@extending.lower_getattr_generic(Pointer)
def _get(context: Any, builder: ir.IRBuilder, pointer: Any, address: ir.Value, name: str) -> ir.Value:
    place = _place(builder, pointer, address, name)
    if "nested" in getattr(attrs.fields(pointer.kind), name).metadata:
        return place
    return load(builder, place, context.get_value_type(pointer.type_of(name)))


@extending.lower_setattr_generic(Pointer)
def _set(context: Any, builder: ir.IRBuilder, signature: Any, args: Any, name: str) -> None:
    pointer, given = signature.args
    store(builder, _place(builder, pointer, args[0], name), context.cast(builder, args[1], given, pointer.type_of(name)))


@extending.lower_builtin(operator.getitem, Pointer, types.int64)
def _item(_: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    return builder.add(args[0], builder.mul(args[1], ir.Constant(I64, dtype(signature.args[0].kind).itemsize)))


@extending.lower_cast(Pointer, types.int64)
def _to_int64(_context: Any, _builder: Any, _from: Any, _to: Any, address: ir.Value) -> ir.Value:
    return address


def pointer_maker(kind: type) -> Any:
    """The function that kernels call to make an address a pointer to a struct."""
    pointer = Pointer(kind)

    def make(_: Any, address: Any) -> Any:
        return pointer(types.int64), lambda _context, _builder, _signature, args: args[0]

    return extending.intrinsic(make)
