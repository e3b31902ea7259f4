"""What a file of a family says: its keys, and the parts of blocks by the names of their tensors; all of it is checked."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import attrs
import numpy as np

from augury.blocks import BlockTensors, Linear, Norm, NormKind, RowSelection, Vector
from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.tensor_type import TensorType

AnyPart = TypeVar("AnyPart", bound=BlockTensors)
Number = TypeVar("Number", int, float)

MOST = 1 << 20  # of anything but positions: no model has wider layers, and arrays of this size are harmless


class Keys:
    """Reads the keys that begin with the architecture's name, such as `llama.block_count` as `block_count`."""

    def __init__(self, file: ModelFile, architecture: str | None = None) -> None:
        self.file = file
        self._architecture = file.architecture if architecture is None else architecture

    def __contains__(self, key: str) -> bool:
        return self.full(key) in self.file.metadata

    def full(self, key: str) -> str:
        """The key as the file has it."""
        return f"{self._architecture}.{key}"

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        """A whole number from `least` to `most`; required where there is no default."""
        value = self._get(key, int, default)
        if not least <= value <= most:
            self.fail(key, value, f"{least} to {most}")
        return value

    def n_mtp(self, most: int = MOST) -> int:
        """How many layers that predict further tokens are stated."""
        return self.count("nextn_predict_layers", 0, least=0, most=most)

    def counts(self, key: str, n: int, default: tuple[int, ...] | None = None, *, least: int = 1) -> tuple[int, ...]:
        """`n` counts of at least `least`, one per layer; files state a number for all of them or an array."""
        if not isinstance(self.file.metadata.get(self.full(key)), np.ndarray):
            return (self.count(key, least=least),) * n if default is None or key in self else default
        values = self.file.get(self.full(key), list[int])
        if len(values) != n or not all(least <= value <= MOST for value in values):
            self.fail(key, f"an array of {len(values)} numbers ({values[:8]})", f"{n} of {least} to {MOST}, one per layer")
        return tuple(values)

    def number(self, key: str, default: float | None = None, *, least: float = 0.0, most: float = 1e12) -> float:
        """A number from `least` to `most`; required where there is no default."""
        value = self._get(key, float, default)
        if not least <= value <= most:  # never true of NaN
            self.fail(key, value, f"a finite number of at least {least:g} and at most {most:g}")
        return value

    def numbers(self, key: str, n: int, most: int | None = None) -> tuple[float, ...]:
        """`n` numbers of at least 0, one per layer, or up to `most`; files state a number for all of them or an array."""
        if not isinstance(self.file.metadata.get(self.full(key)), np.ndarray):
            return (self.number(key),) * (most or n)
        values = self.file.get(self.full(key), list[float])
        if len(values) < n or not all(0.0 <= value < math.inf for value in values):
            self.fail(key, f"an array of {len(values)} numbers ({values[:8]})", f"{n} of at least 0, one per layer")
        return tuple(values[: most or n])

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; required where there is no default."""
        value = self._get(key, float, default)
        if not (math.isfinite(value) and value > 0.0):
            self.fail(key, value, "a finite number above 0")
        return value

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """Whether something is so; required where there is no default."""
        name = self.full(key)
        return self.file.get(name, bool) if default is None else self.file.get(name, bool, default)

    def text(self, key: str, default: str) -> str:
        """A text."""
        return self.file.get(self.full(key), str, default)

    def fail(self, key: str, found: object, expected: str) -> NoReturn:
        """Say that a key's value makes no sense."""
        raise ModelFileError(f"{self.file.path}: metadata key {self.full(key)!r} is {found}, expected {expected}")

    def _get(self, key: str, kind: type[Number], default: Number | None) -> Number:
        name = self.full(key)
        return self.file.get(name, kind) if default is None else self.file.get(name, kind, default)


class Tensors:
    """Makes the parts of blocks.

    Attributes:
        file: Where they are.
        keys: Its metadata.
        prefix: Of the names of its tensors.
        n_embd: E, values of a token's residual stream.
        norm_kind: The kind of its norms.
        eps: The epsilon of its norms.
        head_dim: D, values of a query or key.
        n_ctx_train: The positions that the model was trained for.
    """

    n_embd: int
    norm_kind: NormKind
    eps: float
    head_dim: int
    n_ctx_train: int

    def __init__(self, file: ModelFile, architecture: str | None = None) -> None:
        """Make parts of a file's model, or of another one in it, whose keys and tensors begin with its architecture's name."""
        self.file = file
        self.keys = Keys(file, architecture)
        self.prefix = "" if architecture is None else f"{architecture}/"

    @cached_property
    def n_rot(self) -> int:
        """Values of a query or key that rope turns, from the first on; families without rope need not say."""
        n_rot = self.keys.count("rope.dimension_count", self.head_dim, least=2, most=self.head_dim)
        if n_rot % 2:
            self.keys.fail("rope.dimension_count", n_rot, "an even number")
        return n_rot

    def plain_norm(self, size: int | None = None) -> Norm:
        """A norm that has no weights, over E values unless `size` says otherwise."""
        return Norm(None, self.n_embd if size is None else size, self.eps, kind=self.norm_kind)

    def norm(
        self,
        name: str,
        size: int | None = None,
        *,
        shape: tuple[int, int] | None = None,
        suffix: str = ".weight",
        has_bias: bool = True,
    ) -> Norm:
        """The norm with the weights `name`.weight, over E values unless `size` says otherwise, and a bias where there is one.

        Every head has its own weights where they have a `shape`; `suffix` is that of their tensor.
        """
        size, name = self.n_embd if size is None else size, f"{self.prefix}{name}"
        self.file.tensor(f"{name}{suffix}", shape or (size,))
        bias = f"{name}.bias" if has_bias and f"{name}.bias" in self.file.tensors else None
        if bias is not None:
            self.file.tensor(bias, (size,))
        return Norm(f"{name}{suffix}", size, self.eps, bias, self.norm_kind, shape)

    def fused(self, at: str, names: tuple[str, ...], fused: str, sizes: tuple[int, ...], **marks: Any) -> list[Linear]:
        """Products of E values, with matrices of their own, or with rows of one that holds them one after the other."""
        tensors, total = self.file.tensors, sum(sizes)
        if names and f"{self.prefix}{at}.{fused}.weight" not in tensors:
            return [self.linear(f"{at}.{name}", self.n_embd, n, **marks) for name, n in zip(names, sizes, strict=True)]
        linears = []
        for i, n in enumerate(sizes):
            rows = RowSelection(sum(sizes[:i]), n, total, total)
            linear = self.linear(f"{at}.{fused}", self.n_embd, n, rows=rows, **marks)
            own = f"{self.prefix}{at}.{names[i]}.bias" if names and marks.get("has_bias", True) else ""
            if linear.bias is None and own in tensors:
                self.file.tensor(own, (n,))
                linear = attrs.evolve(linear, bias=own, has_own_bias=True)
            linears.append(linear)
        return linears

    def linear(
        self,
        name: str,
        n_in: int,
        n_out: int,
        *,
        has_scale: bool = True,
        scales_bias: bool = False,
        has_bias: bool = True,
        factor: float = 1.0,
        rows: RowSelection | None = None,
    ) -> Linear:
        """The product (n_in → n_out) with `name`.weight, with `name`.bias and `name`.scale where the file has them.

        Args:
            has_scale, has_bias: Whether the family takes note of such a tensor; `scales_bias`: whether it scales the bias.
            factor: The factor of the product.
            rows: Which rows of the tensor it is, if not all.
        """
        n_stored, scale = n_out if rows is None else rows.n_stored, self.scale(name) if has_scale else 1.0
        name = f"{self.prefix}{name}"
        self.file.tensor(f"{name}.weight", (n_stored, n_in))
        bias = f"{name}.bias" if has_bias and f"{name}.bias" in self.file.tensors else None
        if bias is not None:
            self.file.tensor(bias, (n_stored,))
        return Linear(
            weight=f"{name}.weight",
            n_in=n_in,
            n_out=n_out,
            bias=bias,
            scale=factor * scale,
            bias_scale=factor * (scale if scales_bias else 1.0),
            rows=rows,
        )

    def matrix(self, name: str, n_in: int, n_out: int, **others: Any) -> Linear:
        """The product with `name`.weight alone, where the family takes note of neither a bias nor a scale."""
        return self.linear(name, n_in, n_out, has_scale=False, has_bias=False, **others)

    def scale(self, name: str) -> float:
        """The value of `name`.scale; 1 if there is no such tensor."""
        return float(self.values(f"{name}.scale", 1)[0]) if f"{self.prefix}{name}.scale" in self.file.tensors else 1.0

    def vector(self, name: str, size: int, stored: tuple[int, ...] | None = None) -> Vector:
        """A small tensor, stored as (size,) unless it is said otherwise."""
        return self.check(Vector(f"{self.prefix}{name}", size, stored))

    def optional_vector(self, name: str, size: int) -> Vector | None:
        """A small tensor, where the file has it."""
        return self.vector(name, size) if f"{self.prefix}{name}" in self.file.tensors else None

    def check(self, part: AnyPart) -> AnyPart:
        """A part, once it is certain that the file has its tensors, in its shapes."""
        for name, shape in part.shapes.items():
            self.file.tensor(name, shape)
        return part

    def values(self, name: str, n: int) -> np.ndarray:
        """The numbers (n,) float64 of a small tensor that belongs in the plan itself."""
        name = f"{self.prefix}{name}"
        tensor = self.file.tensor(name, (n,))
        if tensor.type is not TensorType.F32:
            raise UnsupportedError(f"{self.file.path}: tensor {name!r} is stored as {tensor.type.name}, expected F32")
        values: np.ndarray = tensor.data.view(np.float32).astype(np.float64)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.file.path}: tensor {name!r} holds numbers that are not finite")
        return values
