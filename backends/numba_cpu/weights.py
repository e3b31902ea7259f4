"""A plan's weights, from a model file into memory that kernels read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

import numpy as np

from augury.backends.numba_cpu.kernels.format import PANEL_ROWS
from augury.backends.numba_cpu.kernels.jit import address, prepare
from augury.backends.numba_cpu.kernels.matmul import matmul_kernels
from augury.backends.numba_cpu.kernels.repack import repack_kernel
from augury.backends.numba_cpu.kernels.step import NormTable
from augury.backends.numba_cpu.kernels.struct import table
from augury.backends.numba_cpu.memory import Arena
from augury.backends.numba_cpu.packed_file import WORTH_BYTES, PackedFile
from augury.backends.numba_cpu.packing import PackedLayout, PackedMatrix, aligned, pack_tensor, packed_format, rows_and_columns
from augury.blocks import Integers, Linear, Matrices, ModelPlan, Norm, NormKind, Vector
from augury.errors import CapacityError
from augury.files.atomic_file import is_being_written
from augury.files.gguf import BORROWED, ModelFile, Tensor
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.log import get_logger

PURPOSE = "weights"
_LOGGER = "augury.backends.numba_cpu"
_BACKEND = "numba-cpu"


def matrices_of(file: ModelFile, plan: ModelPlan) -> dict[str, Tensor]:
    """The tensors of a plan's matrices by name, without lent ones."""
    lent, parts = lent_matrices(file, plan), (part for part in plan.tensors() if isinstance(part, Linear | Matrices))
    return {name: _stored(file, part) for part in parts if (name := _name(part)) not in lent}


def lent_matrices(file: ModelFile, plan: ModelPlan) -> dict[str, PackedMatrix]:
    """Those matrices of a plan that are the target's, as a loaded model holds them, by name."""
    names = {_name(part) for part in plan.tensors() if isinstance(part, Linear | Matrices)}
    owners = {name: file.owner(name) for name in names if name.startswith(BORROWED)}
    found = {name: owner.in_memory.get((_BACKEND, own)) for name, (owner, own) in owners.items()}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


class Weights:
    """The matrices of a plan, packed, and its vectors as float32; both by tensor name, each loaded once."""

    def __init__(self, file: ModelFile, plan: ModelPlan, arena: Arena, isa: str, n_slots: int = 1) -> None:
        self.scales = np.zeros((n_slots, plan.n_adapters), np.float32)  # see `Batch.scales`
        self._file = file
        self._arena = arena
        self._matrices = lent_matrices(file, plan)
        self._tensors = matrices_of(file, plan)
        kinds = {packed_format(tensor.type).kind for tensor in self._tensors.values()}
        self.kernels = matmul_kernels(kinds | {matrix.kind for matrix in self._matrices.values()}, isa)

    def load(self, more_kernels: Iterable[object], threads: int, progress: Progress, *, keep: bool, n_free: int) -> None:
        """Compile the model's kernels and pack its matrices, or find these as an earlier start has kept them.

        Args:
            more_kernels: Kernels to compile beside those of the matrices.
            threads: How many share the work.
            progress: Called with the progress.
            keep: Whether to keep the packed matrices in a file, if that is worth it.
            n_free: Bytes of memory that the matrices may take; if they need more, they are mapped from a file in any case.

        Raises:
            CapacityError: They need more, and there is no room for the file.
        """
        layout = PackedLayout.of(self._tensors)
        fits, is_worth_it = layout.n_bytes <= n_free, keep and layout.n_bytes >= WORTH_BYTES
        kept = None
        if self._file.identity and (is_worth_it or not fits):
            kept = PackedFile(self._file, self._tensors, layout, is_needed=not fits)
        if not fits:
            sizes = {"weights": f"{layout.n_bytes / 2**30:.1f} GiB", "memory": f"{n_free / 2**30:.1f} GiB"}
            if kept is None:
                raise CapacityError(
                    f"{sizes['weights']} of weights do not fit into {sizes['memory']} of memory; take a smaller model"
                )
            get_logger(_LOGGER).warning("weights do not fit into memory and are read from disk as they are needed", **sizes)
        self._threads, self._kept = threads, kept
        own = [kernel for kernels in self.kernels.values() for kernel in (kernels.quantize, kernels.matmul, kernels.embed)]
        compile_all = partial(prepare, [*dict.fromkeys([*more_kernels, *own])], progress)
        pack = partial(self._pack, layout, threads, progress, compile_all)
        if kept is None:
            pack(memory := aligned(layout.n_bytes))
        else:
            if is_being_written(kept.path):  # the process that packs compiles, too: share that before waiting for it
                compile_all()
            memory = kept.matrices(pack, threads, progress)
            compile_all()  # kernels that packing has not compiled
        for name, tensor in self._tensors.items():
            rows, columns = rows_and_columns(tensor)
            matrix = PackedMatrix(packed_format(tensor.type).kind, rows, columns, memory[layout.spans[name]])
            self._matrices[name] = self._file.in_memory[_BACKEND, name] = matrix
        self._arena.count(PURPOSE, layout.n_bytes)

    def _pack(
        self, layout: PackedLayout, threads: int, progress: Progress, meanwhile: Callable[[], None], memory: np.ndarray
    ) -> None:
        """Pack the matrices into `memory`; kernels that are compiled meanwhile take as long, and one core."""
        for name in {tensor.type.name.lower() for tensor in self._tensors.values()}:
            address(repack_kernel(name))
        total, done = sum(tensor.n_bytes for tensor in self._tensors.values()), 0
        packer = ThreadPoolExecutor(1)
        try:
            packed = [
                (tensor, packer.submit(pack_tensor, tensor, threads, memory[layout.spans[name]]))
                for name, tensor in self._tensors.items()
            ]
            meanwhile()
            for tensor, matrix in packed:
                progress("load", done, total)
                matrix.result()
                done += tensor.n_bytes
            progress("load", total, total)
        finally:
            packer.shutdown(cancel_futures=True)

    def check(self) -> None:
        """See that nobody has changed the file that the matrices are mapped from; see `Model.check`."""
        if self._kept is not None:
            self._kept.check(self._threads)

    def matrix(self, part: Linear | Matrices) -> PackedMatrix:
        """A matrix of the plan; those of experts, all stored rows of them, are one below the other."""
        return self._matrices[_name(part)]

    def activation(self, part: Linear | Matrices) -> str:
        """The kind of activations that a matrix is multiplied with."""
        return self.kernels[self.matrix(part).kind].activation

    def address(self, kind: str, kernel: str) -> int:
        """The address of a kernel (`matmul`, `quantize`, `embed`) of a weight type."""
        return address(getattr(self.kernels[kind], kernel))

    def bias(self, linear: Linear) -> int:
        """The address of a product's bias, scaled; 0 if there is none."""
        if linear.bias is None:
            return 0
        stored = partial(self.values, linear.bias, linear.shapes[linear.bias])
        key = ("bias", linear.bias, linear.bias_scale, None if linear.has_own_bias else linear.rows)
        return self._arena.shared(key, lambda: linear.bias_of(stored()), PURPOSE)

    def vector(self, part: Vector | None) -> int:
        """The address of a vector, float32; 0 if there is none."""
        return 0 if part is None else self._arena.shared(("vector", part.weight), lambda: self.floats(part), PURPOSE)

    def floats(self, part: Vector) -> np.ndarray:
        """The numbers of a vector, (size,) float32, to stay when the file is closed."""
        return np.array(self.values(part.weight, part.shapes[part.weight]), np.float32).reshape(-1)

    def values(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A small tensor as float32, in its shape."""
        return self._file.tensor(name, shape).floats()

    def integers(self, part: Integers, n: int) -> int:
        """The address of whole numbers, int32, from 0 to n - 1."""
        return self._arena.shared(part, lambda: np.array(self._file.integers(part.weight, part.shape, n)), PURPOSE)

    def norm(self, norm: Norm | None) -> int:
        """The address of a norm's record for kernels, see `kernels/norm.py`; 0 if there is none."""
        if norm is None:
            return 0
        bias = self.vector(None if norm.bias is None else Vector(norm.bias, norm.size))
        is_centred, step = norm.kind is NormKind.LAYER, norm.size if norm.weight_shape else 0
        made = NormTable(weight=self._norm_weight(norm), bias=bias, eps=norm.eps, is_centred=is_centred, step=step)
        return self._arena.shared(made, lambda: table([made]), "scratch")

    def _norm_weight(self, norm: Norm) -> int:
        if norm.weight is None:
            return self._arena.shared(("ones", norm.size), lambda: np.ones(norm.size, np.float32), PURPOSE)
        if norm.weight_shape is None:
            return self.vector(Vector(norm.weight, norm.size))
        name, shape, size = norm.weight, norm.weight_shape, norm.size  # (H, D), or one for all of a head
        stored = partial(self.values, name, shape)
        return self._arena.shared((name, size), lambda: np.array(np.broadcast_to(stored(), (shape[0], size))), PURPOSE)

    def close_file(self) -> None:
        """Let go of the file, once everything is loaded."""
        del self._file
        self._tensors.clear()


def panels_of(part: Matrices) -> tuple[int, int]:
    """The first panel of each of several matrices, and how many panels there are from one to the next."""
    return (0, -(-part.n_out // PANEL_ROWS)) if _is_own(part) else (part.first // PANEL_ROWS, part.n_rows // PANEL_ROWS)


def _is_own(part: Matrices) -> bool:
    """Whether matrices cannot be read where the tensor has them: they are turned about, or do not lie in whole panels."""
    return part.is_transposed or any(n % PANEL_ROWS for n in (part.n_out, part.first, part.n_rows))


class _Panels:
    """The matrices of a part that is packed for itself, each in whole panels; made from the tensor when it is packed."""

    def __init__(self, tensor: Tensor, part: Matrices) -> None:
        self._tensor, self._part = tensor, part

    @property
    def type(self) -> TensorType:
        return TensorType.F32 if self._part.is_transposed else self._tensor.type

    @property
    def size(self) -> int:
        return self._tensor.data.size

    def __array__(self, *_: object) -> np.ndarray:
        part = self._part
        used = part.of(self._tensor.floats() if part.is_transposed else self._tensor.data)
        if part.is_transposed:
            used = np.ascontiguousarray(used.transpose(0, 2, 1)).view(np.uint8)
        return np.pad(used, ((0, 0), (0, -part.n_out % PANEL_ROWS), (0, 0))).reshape(-1)


def _name(part: Linear | Matrices) -> str:
    """The name of a matrix here: rows of a stored one are a matrix of their own."""
    if isinstance(part, Matrices):
        return f"{part.weight}[{part.first}:, {part.n_in}, {part.n_out}]" if _is_own(part) else part.weight
    if (rows := part.rows) is None:
        return part.weight
    return f"{part.weight}[{rows.first}:{rows.first + rows.size} of every {rows.step}]"


def _stored(file: ModelFile, part: Linear | Matrices) -> Tensor:
    """The tensor of a matrix, as if its rows were stored as one; no byte is read."""
    tensor = file.tensor(part.weight, part.shapes[part.weight])
    if isinstance(part, Matrices):
        if not _is_own(part):
            return tensor
        panels = _Panels(tensor, part)
        n_rows = -(-part.n_out // PANEL_ROWS) * PANEL_ROWS
        return Tensor(_name(part), (part.n, n_rows, part.n_in), panels.type, cast("np.ndarray", panels))
    if part.rows is None:
        return tensor
    rows = part.rows.of(tensor.data.reshape(part.rows.n_stored, -1))
    return Tensor(_name(part), (part.n_out, part.n_in), tensor.type, rows)
