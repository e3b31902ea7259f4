"""A plan's weights, from a model file into memory that kernels read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cpu.kernels.jit import address, prepare
from augury.backends.numba_cpu.kernels.matmul import matmul_kernels
from augury.backends.numba_cpu.kernels.repack import repack_kernel
from augury.backends.numba_cpu.memory import bits
from augury.backends.numba_cpu.packed_file import WORTH_BYTES, PackedFile
from augury.backends.numba_cpu.packing import Layout, PackedMatrix, aligned, pack_tensor, packed_format, rows_and_columns
from augury.blocks import Linear
from augury.files.atomic_file import is_being_written
from augury.files.gguf import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from augury.backends.numba_cpu.memory import Arena
    from augury.blocks import ModelPlan, Norm
    from augury.files.gguf import ModelFile, Tensor
    from augury.interfaces import Progress

PURPOSE = "weights"


class Weights:
    """The matrices of a plan, packed, and its vectors as float32; both by tensor name, each loaded once."""

    def __init__(self, file: ModelFile, plan: ModelPlan, arena: Arena) -> None:
        self._file = file
        self._arena = arena
        self._matrices: dict[str, PackedMatrix] = {}
        self._vectors: dict[tuple[str, float], int] = {}
        linears = (part for part in plan.parts() if isinstance(part, Linear))
        self._tensors = {linear.weight: file.tensor(linear.weight, (linear.n_out, linear.n_in)) for linear in linears}
        self.kernels = matmul_kernels({packed_format(tensor.type).kind for tensor in self._tensors.values()})

    def load(self, more_kernels: Iterable[object], threads: int, progress: Progress, *, keep: bool) -> None:
        """Compile the model's kernels and pack its matrices, or find these as an earlier start has kept them."""
        layout = Layout.of(self._tensors)
        is_worth_it = keep and self._file.identity and layout.n_bytes >= WORTH_BYTES
        kept = PackedFile(self._file, self._tensors, layout) if is_worth_it else None
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
            compile_all()  # what packing has not compiled
        for name, tensor in self._tensors.items():
            rows, columns = rows_and_columns(tensor)
            self._matrices[name] = PackedMatrix(packed_format(tensor.type).kind, rows, columns, memory[layout.spans[name]])
        self._arena.count(PURPOSE, layout.n_bytes)

    def _pack(
        self, layout: Layout, threads: int, progress: Progress, meanwhile: Callable[[], None], memory: np.ndarray
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

    def matrix(self, name: str) -> PackedMatrix:
        """A matrix of the plan."""
        return self._matrices[name]

    def address(self, kind: str, kernel: str) -> int:
        """The address of a kernel (`matmul`, `quantize`, `embed`) of a weight type."""
        return address(getattr(self.kernels[kind], kernel))

    def vector(self, name: str, size: int, factor: float = 1.0) -> int:
        """The address of a vector, float32, times `factor`."""
        key = (name, factor)
        if key not in self._vectors:
            values = _floats(self._file.tensor(name, (size,)))
            self._vectors[key] = self._arena.keep(values * np.float32(factor), PURPOSE)  # a copy: the file may be closed
        return self._vectors[key]

    def values(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A small tensor as float32, in its shape."""
        return _floats(self._file.tensor(name, shape)).reshape(shape)

    def norm(self, norm: Norm | None) -> int:
        """The address of what kernels know of a norm, see `kernels/norm.py`; 0 where there is none."""
        if norm is None or norm.weight is None:
            return 0
        fields = [self.vector(norm.weight, norm.size), 0, bits(norm.eps), 0, 0]
        return self._arena.shared(("norm", *fields), lambda: np.array(fields, np.int64), "scratch")

    def close_file(self) -> None:
        """Let go of the file, once everything is loaded."""
        del self._file
        self._tensors.clear()


def _floats(tensor: Tensor) -> np.ndarray:
    """A tensor's weights as float32, (n,)."""
    if tensor.type is TensorType.F32:
        return tensor.data.view(np.float32)
    if tensor.type is TensorType.F16:
        return tensor.data.view(np.float16).astype(np.float32)
    import gguf

    kind = gguf.GGMLQuantizationType[tensor.type.name]
    values: np.ndarray = gguf.quants.dequantize(tensor.data, kind).reshape(-1)
    return values
