"""A model in stages: runs of its layers, each computed by a backend on a device of its own, in one pass.

The residual stream goes from stage to stage by way of the host. All that a layer keeps of its tokens lies with its stage, so
every stage applies changes of slots to its own part. A stage has the bits of these layers in the whole model on the same
backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import attrs
import numpy as np
from attrs import frozen

from augury.batch import Batch, check_batch
from augury.blocks import ModelPlan
from augury.devices import CPU
from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Backend, Model, Progress
from augury.options import NoOptions
from augury.passes import Pass, WrappedPass
from augury.types import Allocation, ModelInfo, ModelOptions, StateSpec


@frozen(eq=False)
class Stage:
    """Layers from `first` to before `end`, and their backend; see `ModelPlan.stage`."""

    backend: Backend
    first: int
    end: int
    device: str = CPU


class StagedBackend(Backend):
    """Loads each stage of a model with a backend of its own."""

    name = "stages"

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__(NoOptions())
        self._stages, self.computes_mtp = stages, stages[-1].backend.computes_mtp

    @property
    def title(self) -> str:
        return " + ".join(f"{each.backend.title} on {each.device} from layer {each.first}" for each in self._stages)

    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        plan = plan.for_context(options.n_ctx)  # as it is loaded
        return _joined([each.backend.state_spec(plan.stage(each.first, each.end), options) for each in self._stages])

    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:
        plan, models, isas = plan.for_context(options.n_ctx), list[Model](), dict[str, str]()
        try:
            for stage in self._stages:
                models.append(stage.backend.load(file, plan.stage(stage.first, stage.end), options, progress))
                isa = models[-1].isa
                _check_isa(stage, isa, isas.setdefault(stage.backend.computed_by, isa))
        except BaseException:
            for model in models:
                model.close()
            raise
        return StagedModel(ModelInfo.of(file, plan), plan, self._stages, models)


class StagedModel(Model):
    """Passes through all stages, one after the other."""

    def __init__(self, info: ModelInfo, plan: ModelPlan, stages: Sequence[Stage], models: Sequence[Model]) -> None:
        self.info, self.features, self.state_spec = info, plan.features, _joined([model.state_spec for model in models])
        self.n_threads = max(model.n_threads for model in models)
        self.isa = "+".join(dict.fromkeys(model.isa for model in models))
        self.options, parts = models[0].options, zip(stages, models, strict=True)
        self.memory_layout = "; ".join(f"{stage.first}: {model.identity}" for stage, model in parts)
        self.trip_s = sum(model.trip_s for model in models)
        self.is_asynchronous = models[-1].is_asynchronous  # the others are over when the last one begins
        self._plan, self._stages = plan, list(zip(stages, models, strict=True))

    def forward(self, batch: Batch) -> Pass:
        started = perf_counter()
        # as a whole, before the first stage changes anything
        known = (self._plan.embedding.n_vocab, self.info, self.state_spec, self.features)
        check_batch(batch, *known)
        first, end = batch.layers or self.info.parts[batch.part].layers
        self._plan.check_start(first)
        hidden, features = batch.hidden, dict[str, np.ndarray]()
        *before, (last, model) = self._stages
        for stage, earlier in before:
            begin, until = max(first, stage.first), min(end, stage.end)
            if begin >= until:
                _keep_accepted(earlier, batch, self._plan.n_hidden)
                continue
            sent = f"layer.{until - 1}"
            wanted = {name: _of_stage(name, stage) for name in (*batch.features, sent) if _is_in(name, begin, until)}
            part = _part(batch, earlier, (begin - stage.first, until - stage.first), hidden, tuple(wanted.values()))
            passed = earlier.forward(attrs.evolve(part, rows=batch.rows[:0]))
            found = {name: passed.features(own) for name, own in wanted.items()}
            hidden, features = found[sent], features | found
        layers = (max(first, last.first) - last.first, max(end, last.first) - last.first)
        wanted = {name: _of_stage(name, last) for name in batch.features if name not in features}
        part = _part(batch, model, layers, hidden, tuple(wanted.values()))
        before_s = perf_counter() - started
        return _StagedPass(model.forward(part), before_s, features, wanted)

    def check(self) -> None:
        for _, model in self._stages:
            model.check()

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        return [array for _, model in self._stages for array in model.slot_memory(slot, n, start)]

    def slot_written(self) -> None:
        for _, model in self._stages:
            model.slot_written()

    def copy(self, source: int, target: int, n: int) -> None:
        for _, model in self._stages:
            model.copy(source, target, n)

    @property
    def is_lost(self) -> bool:
        return any(model.is_lost for _, model in self._stages)

    def regain(self, wait_s: float) -> bool:
        return all([model.regain(wait_s) for _, model in self._stages])  # noqa: C419 - each is to begin

    def memory_table(self) -> Sequence[Allocation]:
        return [line for _, model in self._stages for line in model.memory_table()]

    def close(self) -> None:
        for _, model in self._stages:
            model.close()


class _StagedPass(WrappedPass):
    """The last stage's pass, with features and the time of earlier ones."""

    def __init__(self, last: Pass, before_s: float, features: Mapping[str, np.ndarray], of_last: Mapping[str, str]) -> None:
        super().__init__(last)
        self._before_s, self._features, self._of_last = before_s, features, of_last

    def wait(self) -> float | None:
        """See `Pass.wait`: earlier stages are over, the last one may still be computed."""
        last_s = self._whole.wait()
        return None if last_s is None else self._before_s + last_s

    def features(self, name: str) -> np.ndarray:
        return self._features[name] if name in self._features else super().features(self._of_last.get(name, name))

    def first(self, n: int) -> Pass:
        return _StagedPass(self._whole.first(n), self._before_s, self._features, self._of_last)


def _check_isa(stage: Stage, isa: str, other: str) -> None:
    if isa != other:
        name = stage.backend.computed_by
        raise UnsupportedError(
            f"{stage.device} computes with instruction set {isa}, devices before it with {other}: {name} has other bits then; "
            "set AUGURY_CPU_ISA to one that all of them have"
        )


def _joined(specs: Sequence[StateSpec]) -> StateSpec:
    return attrs.evolve(
        specs[0],
        n_bytes_per_position=sum(spec.n_bytes_per_position for spec in specs),
        n_bytes_per_sequence=sum(spec.n_bytes_per_sequence for spec in specs),
        can_keep_aside=all(spec.can_keep_aside for spec in specs),
        draft_max=min((spec.draft_max for spec in specs if spec.draft_max is not None), default=None),
    )


def _part(batch: Batch, model: Model, layers: tuple[int, int], hidden: np.ndarray | None, features: tuple[str, ...]) -> Batch:
    is_whole = batch.part != "main" or layers == (0, model.info.n_layers)
    part = attrs.evolve(batch, layers=None if is_whole else layers, hidden=hidden, features=features)
    if model.state_spec.n_bytes_per_sequence:
        return part
    accepted = None if part.accepted is None else part.accepted[part.accepted[:, 1] != part.accepted[:, 2]]
    return attrs.evolve(part, accepted=accepted, is_drafted=None, restores=None, saves=None)


def _keep_accepted(model: Model, batch: Batch, n_hidden: int) -> None:
    """Let a stage that a pass does not go through do the work for all layers; see `Batch`."""
    saves = None if batch.saves is None else batch.saves[batch.saves[:, 1] == 0]
    if any(each is not None and len(each) for each in (batch.accepted, batch.restores, saves)):
        none, given = np.empty(0, np.int32), np.empty((0, n_hidden), np.float32)
        nothing = Batch(none, none, none, none, accepted=batch.accepted, restores=batch.restores, saves=saves)
        model.forward(_part(nothing, model, (0, model.info.n_layers), given, ()))


def _is_in(name: str, first: int, end: int) -> bool:
    kind, _, number = name.partition(".")
    return first == 0 if kind == "embedding" else kind == "layer" and first <= int(number) < end


def _of_stage(name: str, stage: Stage) -> str:
    kind, _, number = name.partition(".")
    return name if kind != "layer" else f"layer.{int(number) - stage.first}"
