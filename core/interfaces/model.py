"""`Architecture`, which describes models, and `Backend` and `Model`, which compute them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np

from augury.batch import Batch
from augury.devices import CPU, DeviceInfo
from augury.files.gguf import BORROWED
from augury.interfaces.compiled import CompiledPass
from augury.interfaces.plugin import Plugin
from augury.memory_limit import n_bytes_of_machine
from augury.passes import ArrayPass
from augury.slot_states import SlotStates
from augury.types import Allocation

if TYPE_CHECKING:
    from augury.blocks import ModelPlan
    from augury.files.gguf import ModelFile
    from augury.interfaces.source import Progress
    from augury.passes import Pass
    from augury.types import ModelOptions, StateSpec


class Model(SlotStates, ABC):
    """A loaded model with the memory of its slots. One thread at a time may call it."""

    n_threads: int = 1  # that compute a pass
    pass_sizes: Sequence[int] = ()
    """The numbers of tokens that passes are computed for, rising; a pass of fewer takes as long as the next of these. Where it
    is empty each number has a time of its own."""
    features: Mapping[str, int] = MappingProxyType({})
    """The names that `Batch.features` may ask for, and their widths: `layer.I`, the residual stream after layer I,
    counted from 0, or several of them one after the other; `embedding`, the same before the first layer; `output`, the input of
    the output's matrix."""

    is_asynchronous: bool = False
    """Whether `forward` only begins a pass, on a device of its own, so that the CPU is free to draft until `Pass.wait`."""

    trip_s: float = 0.0
    """Seconds of each pass, or chain of them, that are the way to another machine and back; 0 where none computes some of it.
    `forward` waits for that machine, and this one's CPU is free meanwhile."""

    chain_rows: int = 0
    """How many rows of logits the passes of a `forward_chain` may have together for it to be quicker than pass after pass: it
    is waited for once, or little is done in between. 0, the default: it is no quicker."""

    @abstractmethod
    def forward(self, batch: Batch) -> Pass:
        """Compute one pass over any number of tokens of any number of slots, and store their states.

        A token's logits do not depend, to the bit, on the rest of the pass or on how earlier tokens were split into passes
        (row-invariance). Raises CapacityError: a position does not fit into a slot.
        """

    def forward_chain(self, batch: Batch, n_passes: int) -> Pass:
        """Compute a pass, then pass after pass over the most probable token after each row of the one before.

        A model that is quicker at that than pass after pass has `chain_rows`, and overrides this method. Here rows
        are joined to an array: where a backend's `Pass.log_normalizer` adds in an order of its own, last bits differ.

        Args:
            batch: A chain of certain tokens of each slot, the last of which has a row. With hidden states it names one feature:
                its values for the token of a row are the next pass's hidden states. Others name none.
            n_passes: How many in all.

        Returns:
            The rows of all passes, the first one's first, and the feature of the last one's tokens. After a row from which no
            token can be chosen, further rows of its slot mean nothing.

        Raises:
            CapacityError: A position does not fit into a slot.
        """
        passed, rows = self.forward(batch), list[np.ndarray]()
        for _ in range(n_passes - 1):
            rows.append(passed.rows().copy())
            positions = batch.positions[batch.rows] + np.int32(1)
            tokens, slots = np.maximum(passed.argmax(), 0), batch.slots[batch.rows]
            hidden = None if batch.hidden is None else passed.features(*batch.features)[batch.rows].copy()
            each = np.arange(len(tokens), dtype=np.int32)
            following = Batch(tokens, slots, positions, each, layers=batch.layers, vocabulary=batch.vocabulary, part=batch.part)
            batch = attrs.evolve(following, hidden=hidden, features=batch.features)
            passed = self.forward(batch)
        features = {name: passed.features(name) for name in batch.features}
        return ArrayPass(np.concatenate([*rows, passed.rows()]), features) if rows else passed

    def compiled_pass(
        self,
        slot: int,  # noqa: ARG002 - as above
        room: int,  # noqa: ARG002
        k: int,  # noqa: ARG002
        n_vocab: int,  # noqa: ARG002
        features: tuple[str, ...] = (),  # noqa: ARG002
        *,
        is_given: bool = False,  # noqa: ARG002
    ) -> CompiledPass | None:
        """Passes of up to `room` tokens of a slot for compiled rounds, with the best k of `n_vocab` tokens of each row.

        Features can be kept of their tokens; where it `is_given`, each token comes with a hidden state. It is asked for anew
        before such rounds. None, the default: the model has none.
        """
        return None

    def check(self) -> None:
        """Check that the files that the model reads its weights from are unchanged. Called at the start of every request.

        Raises ModelFileError: one was cut short or written over. Then every request is refused, before a pass reads it.
        """

    @property
    def is_lost(self) -> bool:
        """Whether a device is gone, as another machine may be. Then passes raise `LostDeviceError`. By default it cannot be."""
        return False

    def regain(self, wait_s: float) -> bool:  # noqa: ARG002 - for models that can
        """Wait so long for a lost device; returns whether it computes again. Its slots are empty then.

        Raises AuguryError: it is back, and computes something else now.
        """
        return True

    @abstractmethod
    def memory_table(self) -> Sequence[Allocation]:
        """The memory of the model, line by line; the lines sum to all that it allocated."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory; further calls are errors. May be called twice."""


class Backend(Plugin, ABC):
    """Computes plans on some device.

    `tolerance` bounds, for any type of weights, the mean squared error of its logits against those of the reference backend, as
    a share of their mean square.
    """

    tolerance: ClassVar[float] = 1e-3
    computes_mtp: bool = False
    """Whether it computes layers that predict further tokens, `ModelPlan.mtp`. It is given plans without them otherwise."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Why this backend cannot run on this machine, or None where it can."""
        return None

    @classmethod
    def note(cls) -> str | None:
        """A line of `augury plugins` about how it runs on this machine; None, as by default: nothing."""
        return None

    @classmethod
    def devices(cls) -> Sequence[DeviceInfo]:
        """The devices that it can compute on; by default the CPU."""
        n_bytes = n_bytes_of_machine()
        return (DeviceInfo(CPU, "this machine", n_bytes, n_bytes),)

    @classmethod
    def device(cls, name: str) -> DeviceInfo | None:  # noqa: ARG003 - for backends that know more than `devices` tells
        """A device that is found by its name alone, as on another machine; None, as by default: it is not one of these.

        Raises AuguryError: it is one, and cannot be used.
        """
        return None

    @property
    def title(self) -> str:
        """Its name in reports."""
        return self.name

    @property
    def computed_by(self) -> str:
        """The name of the backend whose kernels compute it. Stages of the same name have one instruction set."""
        return self.name

    @abstractmethod
    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        """The sizes of a plan's slots, before it is loaded: `Model.state_spec` will be the same.

        Raises UnsupportedError: the plan or an option is beyond this backend.
        """

    def memory_needed(self, file: ModelFile, plan: ModelPlan, options: ModelOptions) -> Sequence[Allocation]:
        """About the memory of a loaded plan, line by line, before anything is loaded; work space may be left out.

        Raises UnsupportedError: the plan or an option is beyond this backend. ModelFileError: a tensor is missing or of another
        shape.
        """
        spec = self.state_spec(plan, options)
        own = {name: shape for name, shape in plan.shapes().items() if not name.startswith(BORROWED)}
        n_bytes = sum(file.tensor(name, shape).n_bytes for name, shape in own.items())
        of_slot = spec.n_ctx * spec.n_bytes_per_position + spec.n_bytes_per_sequence
        return (Allocation("weights", n_bytes), Allocation("states", spec.n_slots * of_slot))

    @abstractmethod
    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:
        """Load the plan's weights from `file`, which may be closed afterwards; errors are those of `memory_needed`.

        Raises CapacityError: there is not enough memory.
        """


class Architecture(Plugin, ABC):
    """Writes the plans of one model family. `name` is the file's `general.architecture`."""

    @classmethod
    @abstractmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """The models in a file by name, of its metadata and tensor table: `main`, and others that it holds, such as a head.

        Raises ModelFileError: a key or tensor is missing or inconsistent. UnsupportedError: a valid variant that is not
        implemented.
        """
