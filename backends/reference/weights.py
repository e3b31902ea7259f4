"""A plan's weights as float32 arrays, and products with them."""

from __future__ import annotations

import math
from collections.abc import Container

import numpy as np

from augury.backends.reference.formula import norm, products
from augury.blocks import Linear, Matrices, ModelPlan, Norm
from augury.files.gguf import ModelFile
from augury.interfaces import Progress

_N_ROWS = 1024  # rows of a matrix made float64 at a time, so that they stay in the CPU's cache for all tokens of a pass


class Weights:
    """The tensors of a plan by name, dequantised to float32, which holds every weight type's values exactly as defined.

    Whole numbers stay int32.
    """

    def __init__(self, arrays: dict[str, np.ndarray], lent: Container[str] = ()) -> None:
        """Hold arrays by the names of tensors; another model accounts for the memory of `lent` ones."""
        self._arrays = arrays
        self._lent = lent

    @classmethod
    def load(cls, file: ModelFile, plan: ModelPlan, progress: Progress) -> Weights:
        """Dequantise the tensors of `plan`, each once. Raises ModelFileError: a tensor is missing or has another shape."""
        tensors = [file.tensor(name, shape) for name, shape in plan.shapes().items()]
        arrays, lent = dict[str, np.ndarray](), set[str]()
        done, total = 0, sum(tensor.n_bytes for tensor in tensors)
        for tensor in tensors:
            progress("load weights", done, total)
            owner, name = file.owner(tensor.name)
            found = None if owner is file else owner.in_memory.get(("reference", name))
            if found is None:
                kind = tensor.type.integers
                values = tensor.floats() if kind is None else tensor.data.view(kind).reshape(tensor.shape)
                found = owner.in_memory["reference", name] = np.array(values)  # float32 or int32
            else:
                lent.add(tensor.name)
            arrays[tensor.name] = found
            done += tensor.n_bytes
        progress("load weights", done, total)
        return cls(arrays, lent)

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays that are its own."""
        return sum(array.nbytes for name, array in self._arrays.items() if name not in self._lent)

    def matrix(self, linear: Linear) -> np.ndarray:
        """The matrix (n_out, n_in) float32 as the file has it."""
        return linear.of(self._arrays[linear.weight])

    def rows(self, name: str, indices: np.ndarray) -> np.ndarray:
        """Some rows (n, E) float64 of the matrix `name`."""
        rows: np.ndarray = self._arrays[name][indices].astype(np.float64)
        return rows

    def integers(self, name: str) -> np.ndarray:
        """The whole numbers of the tensor `name`, int32 in its shape."""
        return self._arrays[name].astype(np.int32, copy=False)

    def vector(self, name: str) -> np.ndarray:
        """The tensor `name` (n,) float64."""
        return self._arrays[name].astype(np.float64)

    def product(self, layer: Linear, x: np.ndarray) -> np.ndarray:
        """Compute scale * (W x) + bias_scale * b for every token: x (n, n_in) → (n, n_out) float64; see `products`."""
        matrix = self.matrix(layer)
        y = np.empty((len(x), layer.n_out))
        for start in range(0, layer.n_out, _N_ROWS):
            y[:, start : start + _N_ROWS] = products(matrix[start : start + _N_ROWS].astype(np.float64), x)
        y *= layer.scale
        if layer.bias is not None:
            y += layer.bias_of(self.vector(layer.bias))
        return y

    def product_of(self, part: Matrices, index: int, x: np.ndarray) -> np.ndarray:
        """The products of one matrix of several and vectors: x (..., n_in) → (..., n_out) float64."""
        matrix = part.of(self._arrays[part.weight])[index].astype(np.float64)
        y = products(np.ascontiguousarray(matrix.T) if part.is_transposed else matrix, x)
        if part.scales is not None:
            y *= part.scales[index]
        if part.bias is not None:
            y += self._arrays[part.bias][index, part.first : part.first + part.n_out]
        return y


def each_normed(x: np.ndarray, block: Norm | None, weights: Weights) -> np.ndarray:
    """Norm every token of x (n, …, size) by itself; where the plan has no such norm, x.

    Of heads x (n, H, D) a norm of D values goes over each, one of H * D over all together.
    """
    if block is None:
        return x
    normed = norm(x.reshape(len(x), math.prod(x.shape[1:]) // block.size, block.size), block.eps, block.kind)
    if block.weight is not None:
        normed *= weights.vector(block.weight)
    if block.bias is not None:
        normed += weights.vector(block.bias)
    return normed.reshape(x.shape)
