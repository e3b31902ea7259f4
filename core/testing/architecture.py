"""`check_architecture`: the conformance suite of architectures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import frozen

from augury.blocks import Attention, Block, Linear, ModelPlan, Norm
from augury.errors import AuguryError, ModelFileError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.registry import Registry
from augury.testing.contract import Checks, Contract
from augury.testing.toys import registry_with_toys

_WHERE = "augury.model.Architecture.plans"
NAME = Contract("An architecture has the name that its files state as general.architecture.", "augury.model.Architecture")
PLANS = Contract("`plans` gives a ModelPlan for each name, `main` among them.", _WHERE)
TENSORS = Contract("The file has every tensor of a plan, in the shape that the plan says.", "augury.model.ModelPlan.shapes")
SIZES = Contract("The blocks of a plan fit each other.", "augury.model")
NUMBERS = Contract("The numbers of a plan are finite and in range.", "augury.model")
DAMAGED = Contract(
    "Metadata or tensors that are missing or make no sense are a ModelFileError, or an UnsupportedError.", _WHERE
)

_VALUES: tuple[Any, ...] = (  # that may stand anywhere in a damaged or strange file
    *(0, 1, -1, 2, 3, 7, 255, 2**20 + 1, 2**31, 2**40, 2**63, 2**64 - 1),
    *(0.0, 0.5, -1.5, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *("", "linear", "yarn", "nothing known", True, False, [], ["a"]),
    *(np.array(values) for values in ([0], [1, 0], [2, 2, 2], [-1, 2**40], [0.5, 1.0])),
    *(np.array([], int), np.array([True, False])),
)
_REFUSALS = (ModelFileError, UnsupportedError)
ARCHITECTURE_CHECKS = Checks()


@frozen(eq=False)
class ArchitectureSubject:
    """An architecture, and a file of its family."""

    architecture: type[Architecture]
    file: ModelFile

    def plans(self) -> Mapping[str, ModelPlan]:
        """The plans of the file, which must be good ones."""
        with PLANS.kept(self.architecture.name):
            plans: Any = self.architecture.plans(self.file)
        self.check(plans, self.file, "")
        return plans

    def check(self, plans: Any, file: ModelFile, detail: str) -> None:
        """See that plans are such, and fit their file, or raise a ContractError."""
        if not (isinstance(plans, Mapping) and "main" in plans and all(isinstance(each, ModelPlan) for each in plans.values())):
            raise PLANS.broken(self.architecture.name, f"{plans!r:.80}{detail}")
        for name, plan in plans.items():
            for contract, seen in _flaws(plan, file):
                raise contract.broken(self.architecture.name, f"{seen}, in plan {name!r}{detail}")


@ARCHITECTURE_CHECKS.add
def whole_file(subject: ArchitectureSubject) -> None:
    """Writes consistent plans of a whole file."""
    if subject.architecture.name != subject.file.architecture:
        raise NAME.broken(subject.architecture.name, f"a file of {subject.file.architecture!r}")
    subject.plans()


@ARCHITECTURE_CHECKS.add
def damaged_metadata(subject: ArchitectureSubject) -> None:
    """Refuses damaged metadata with a message.

    For any value of one key there is a good plan or an error of ours. A key that is never read does not count.
    """
    file, watched = subject.file, _Watched(subject.file.metadata)
    _try(subject, watched, file.tensors, "where nothing is changed")
    for key in sorted(key for key in watched.read & file.metadata.keys() if key.startswith(f"{file.architecture}.")):
        rest = {other: value for other, value in file.metadata.items() if other != key}
        _try(subject, rest, file.tensors, f"without {key!r}")
        for value in _VALUES:
            _try(subject, rest | {key: value}, file.tensors, f"where {key!r} is {value!r}")


@ARCHITECTURE_CHECKS.add
def damaged_tensors(subject: ArchitectureSubject) -> None:
    """Refuses damaged tensors with a message."""
    file = subject.file
    for name in {name for plan in subject.plans().values() for name in plan.shapes()}:
        tensor = file.tensors[name]
        _try(subject, file.metadata, {other: file.tensors[other] for other in file.tensors if other != name}, f"without {name}")
        for shape in ((*tensor.shape[:-1], tensor.shape[-1] + 1), (2, *tensor.shape), tensor.shape[:-1] or (1,)):
            changed = attrs.evolve(tensor, shape=shape)
            _try(subject, file.metadata, {**file.tensors, name: changed}, f"where {name} has shape {shape}")


class _Watched(Mapping[str, object]):
    """Metadata, and which of its keys were read."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self.read.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        self.read.update(self._values)
        return len(self._values)


def _try(subject: ArchitectureSubject, metadata: Mapping[str, object], tensors: Mapping[str, Any], detail: str) -> None:
    whole = subject.file
    file = ModelFile(whole.path, whole.paths, whole.n_bytes, {}, tensors)
    file.metadata = metadata
    try:
        with DAMAGED.kept(subject.architecture.name, f", {detail}", _REFUSALS):
            plans = subject.architecture.plans(file)
    except _REFUSALS:
        return
    subject.check(plans, file, f", {detail}")


def _flaws(plan: ModelPlan, file: ModelFile) -> Iterator[tuple[Contract, str]]:
    for name, shape in plan.shapes().items():
        try:
            file.tensor(name, shape)
        except ModelFileError as error:
            yield TENSORS, str(error)
    try:
        numbers = [(NUMBERS, f"{what} is {number}") for what, number, is_good in _numbers(plan) if not is_good]
    except TypeError as error:
        numbers = [(NUMBERS, f"not a number where one is needed: {error}")]
    yield from numbers
    for i, block in ((i, block) for i, layer in enumerate(plan.layers) for block in layer.blocks):
        if type(block).lower is not Block.lower:
            yield from ((SIZES, f"layer {i}, {misfit}") for misfit in _misfits(block, plan.n_seen(block)))
    for end in (plan.embedding, plan.output):
        yield from ((SIZES, misfit) for misfit in _misfits(end, plan.embedding.n_embd))


def _misfits(block: Block, n_embd: int) -> Iterator[str]:
    try:
        block.lowered(n_embd)
    except AuguryError as error:
        yield str(error)
    if isinstance(block, Attention):
        if block.n_heads % block.n_kv_heads:
            yield f"Attention has {block.n_heads} heads, expected a multiple of its {block.n_kv_heads} KV heads"
        for name in ("norm", "post_norm"):
            if (norm := getattr(block, name)) is not None and norm.size != n_embd:
                yield f"{name} of Attention has {norm.size} values, expected {n_embd}"


def _numbers(plan: ModelPlan) -> Iterator[tuple[str, float, bool]]:
    yield "n_ctx_train", plan.n_ctx_train, plan.n_ctx_train >= 1
    yield "the embedding's scale", plan.embedding.scale, math.isfinite(plan.embedding.scale)
    for part in plan.tensors():
        if isinstance(part, Norm):
            yield f"eps of {part.weight}", part.eps, 0 < part.eps < math.inf
        elif isinstance(part, Linear):
            yield f"the scale of {part.weight}", part.scale, math.isfinite(part.scale)
    for block in plan.mixers:
        if isinstance(block, Attention):
            window = 1 if block.window is None else block.window
            yield "a scale of attention", block.scale, math.isfinite(block.scale)
            yield "a window", window, window >= 1
            if (rope := block.rope) is not None:
                worst = max(
                    float(np.abs(each).max(initial=0.0))
                    for each in (rope.frequencies, rope.long_frequencies)
                    if each is not None
                )
                yield "a rope's magnitude", rope.magnitude, math.isfinite(rope.magnitude)
                yield "a rope's largest frequency", worst, math.isfinite(worst)


def check_architecture(
    architecture: type[Architecture] | str, file: ModelFile | Path | str, *, registry: Registry | None = None
) -> None:
    """Prove that an architecture keeps its contracts: on a file, and on all that differ from it in one key or tensor.

    Whether the numbers are right, only a comparison with another implementation can tell. The file is a small model of the
    family, or where it is; one that cannot be read is a ModelFileError. For the rest see `augury.testing`.
    """
    found = (registry or registry_with_toys()).find("architecture", architecture)
    opened = file if isinstance(file, ModelFile) else ModelFile.open(file)
    ARCHITECTURE_CHECKS.run(ArchitectureSubject(found, opened))
