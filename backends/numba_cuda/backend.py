"""The backend's class: says whether it can run here, checks options and loads models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from augury.backends.numba_cuda import probe
from augury.blocks import Linear, Matrices, ModelPlan
from augury.errors import CapacityError
from augury.interfaces import Backend, Model, Progress
from augury.options import option
from augury.types import Allocation, ModelInfo, ModelOptions, StateSpec

if TYPE_CHECKING:
    from augury.backends.numba_cuda.gpu import Gpu
    from augury.devices import DeviceInfo
    from augury.files.gguf import ModelFile


@frozen
class NumbaCudaOptions:
    """Options of `numba-cuda`."""

    device: int = option(0, help="number of the GPU, as nvidia-smi lists them", ge=0)
    products: str = option(
        "bytes",
        help="what activations are rounded to: bytes, or float16, which is more exact (weights, too); not yet timed on a GPU",
        choices=("bytes", "halves"),
    )
    graphs: bool = option(True, help="record each size of pass as a CUDA graph; off: launch kernel by kernel")


class NumbaCuda(Backend):
    """Runs on an NVIDIA GPU, with kernels that numba compiles."""

    name = "numba-cuda"
    aliases = ("cuda",)
    computes_mtp = True
    options_class = NumbaCudaOptions
    options: NumbaCudaOptions

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return probe.unavailable_reason()

    @classmethod
    def devices(cls) -> Sequence[DeviceInfo]:
        return probe.devices() if cls.unavailable_reason() is None else ()

    def memory_needed(self, file: ModelFile, plan: ModelPlan, options: ModelOptions) -> Sequence[Allocation]:
        """Weights, the slots' memory and work space; the driver's own memory and graphs are added to that."""
        from augury.backends.numba_cuda.device import Device
        from augury.backends.numba_cuda.lowering import Lowering
        from augury.backends.numba_cuda.weights import PURPOSE, check_types, n_bytes_of

        options.check_cache_types(plan)
        lowering, counting = Lowering(plan, options), Device(self.options.device)
        check_types(file, lowering.plan)
        lowering.allocate(counting)
        n_bytes = n_bytes_of(file, lowering.plan, counting.label, as_halves=self._has_halves)
        return (Allocation(PURPOSE, n_bytes, counting.label), *counting.table())

    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        from augury.backends.numba_cuda.lowering import Lowering  # which imports numba

        options.check_cache_types(plan)
        return Lowering(plan, options).state_spec

    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:
        from augury.backends.numba_cuda.lowering import Lowering
        from augury.backends.numba_cuda.model import CudaModel
        from augury.backends.numba_cuda.weights import Weights, check_types, lent

        options.check_cache_types(plan)
        lowering = Lowering(plan, options)
        check_types(file, lowering.plan)
        parts = [part for part in lowering.plan.tensors() if isinstance(part, Linear | Matrices)]
        device = self._open()
        own = [part for part in parts if lent(file, part.weight, device.label, as_halves=self._has_halves) is None]
        total = sum({part.weight: file.tensor(part.weight, part.shapes[part.weight]).n_bytes for part in own}.values())
        try:
            weights = Weights(file, device, total, options.threads, progress, as_halves=self._has_halves)
            lowering.place(device, weights)
            device.prepare(lowering.kernels(), progress)
            return CudaModel(ModelInfo.of(file, plan), lowering, device, CudaModel.tokens_of(file, lowering))
        except MemoryError as error:
            device.close()
            wanted = f"{file.path.name} with {options.slots_in_words}"
            raise CapacityError(
                f"{wanted} does not fit: {error}; ask for a smaller context or fewer slots, or -ngl auto"
            ) from error
        except BaseException:
            device.close()
            raise

    @property
    def _has_halves(self) -> bool:
        return self.options.products == "halves"

    def _open(self) -> Gpu:
        from augury.backends.numba_cuda.gpu import Gpu

        return Gpu(self.options.device, has_graphs=self.options.graphs)
