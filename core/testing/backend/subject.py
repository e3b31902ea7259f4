"""A backend under test, and the tiny models that it loads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from augury.batch import Batch
from augury.files.gguf import ModelFile
from augury.interfaces import Backend, Model, Progress
from augury.loader import make_backend, plan_of
from augury.passes import Pass
from augury.registry import Registry
from augury.testing.backend import contract
from augury.testing.contract import Contract
from augury.testing.tiny_model import MTP, N_EMBD, write_tiny_model
from augury.types import ModelOptions

N_CTX = 160
# the projection of a layer that predicts further tokens, which hidden states take part in
_MIXING = {f"{MTP}.eh_proj.weight": np.random.default_rng(5).standard_normal((N_EMBD, 2 * N_EMBD)) / N_EMBD**0.5}


@frozen(eq=False)
class BackendSubject:
    """A backend with options."""

    backend: type[Backend]
    options: Any
    registry: Registry
    tolerance: float
    n_examples: int

    def load(
        self,
        weight_type: str = "F32",
        *,
        is_reference: bool = False,
        output_norm: float = 1.0,
        has_mtp: bool = False,
        **given: Any,
    ) -> Model:
        """A tiny model on it, or on the reference backend."""
        device = make_backend(self.registry, "reference") if is_reference else self.backend(self.options)
        options = ModelOptions(**{"n_slots": 2, "n_ctx": N_CTX, "threads": 2, **given})
        with tempfile.TemporaryDirectory(prefix="augury-tiny-") as folder:
            path = Path(folder) / "tiny.gguf"
            write_tiny_model(
                path, weight_type=weight_type, output_norm=output_norm, has_mtp=has_mtp, tensors=_MIXING if has_mtp else {}
            )
            file = ModelFile.open(path)
            try:
                plan = plan_of(file, self.registry)
                spec = device.state_spec(plan, options)
                model = device.load(file, plan, options, Progress())
            finally:
                file.close()
        if spec != model.state_spec:
            model.close()
            raise contract.SPEC.broken(self.backend.name, f"{spec} before, {model.state_spec} after it was loaded")
        model.forward = partial(self._forward, model.forward)  # type: ignore[method-assign]
        return model

    def _forward(self, forward: Callable[[Batch], Pass], batch: Batch) -> Pass:
        passed: Any = forward(batch)
        if not isinstance(passed, Pass):
            raise contract.HANDLE.broken(self.backend.name, f"forward returned a {type(passed).__name__}")
        return passed

    def near(self, promise: Contract, found: np.ndarray, right: np.ndarray, detail: str) -> None:
        """See that numbers are the reference's, up to the tolerance, or raise a ContractError."""
        error = float(np.mean((found.astype(np.float64) - right) ** 2) / np.mean(right.astype(np.float64) ** 2))
        if not error <= self.tolerance:
            raise promise.broken(self.backend.name, f"{detail}: error {error:.2g}, tolerance {self.tolerance:.2g}")

    def same(self, promise: Contract, found: np.ndarray, expected: np.ndarray, detail: str) -> None:
        """Check that logits are the same to the bit, or raise a ContractError."""
        if found.shape != expected.shape or not np.array_equal(found, expected):
            raise promise.broken(self.backend.name, f"other logits {detail}")
