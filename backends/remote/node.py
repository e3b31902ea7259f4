"""A node: loads layers of models for others, and computes their passes, one after the other.

A connection has one model. What it sends is checked before anything is done with it; a message that breaks the format ends the
connection's model, and nobody else's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define

from augury.backends.remote.backend import SENT_OPTIONS, plan_digest, versions
from augury.backends.remote.connection import Doorkeeper, check_port, lock, tune, zmq_library
from augury.backends.remote.wire import Message, WireError, batch_of, spec_facts
from augury.errors import AuguryError, CapacityError, OptionError, UnsupportedError
from augury.files.models import open_model
from augury.files.quantized import quantized
from augury.interfaces import Model, Progress
from augury.loader import make_backend, plan_of
from augury.log import get_logger
from augury.memory_limit import n_bytes_of_machine
from augury.passes import Pass
from augury.registry import Registry
from augury.types import CACHE_TYPES, ModelOptions

if TYPE_CHECKING:
    from augury.blocks import ModelPlan
    from augury.files.gguf import ModelFile

_Told = tuple[dict[str, Any], dict[str, np.ndarray]]  # facts and arrays of an answer
_KINDS = ("hello", "spec", "load", "forward", "rows", "logits", "states", "write", "copy", "check")  # each a method here
_POLL_MS = 200  # between looks at whether the node is to end
_LOOK_S = 2.0  # after a connection has closed, for whose it was
_MOST = 1 << 24  # slots, positions and tokens: more than any model has


@define(eq=False)
class _Loaded:
    """What a connection has loaded, and the last pass of it."""

    model: Model
    vocabulary: np.ndarray | None = None
    passed: Pass | None = None
    n_rows: int = 0


class Node:
    """Computes layers for those who connect, until it is told to stop."""

    def __init__(
        self,
        listen: str,
        *,
        registry: Registry,
        backend: str = "auto",
        threads: int | None = None,
        delay_s: float = 0.0,
        key: bytes | None = None,
    ) -> None:
        """Listen.

        Args:
            listen: HOST:PORT; of port 0 or `*` the system chooses one, see `address`.
            registry: Plugins to choose from.
            backend: What computes, see `make_backend`.
            threads: None for as many as there are physical cores.
            delay_s: So much later each answer is sent, as over a longer way.
            key: That all who connect must have; None: everyone may.

        Raises:
            OptionError: It is no address of this machine, or taken.
        """
        zmq = zmq_library()
        check_port(listen)
        self._registry, self._threads, self._delay_s = registry, threads, delay_s
        self._backend = make_backend(registry, backend)
        self._loaded: dict[bytes, _Loaded] = {}  # by connection
        self._stops, self._look_until = threading.Event(), 0.0
        self._log = get_logger("augury.backends.remote")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        tune(self._socket, listen)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # to see who is gone
        self._door = None if key is None else Doorkeeper(self._context, key)
        if key is not None:
            lock(self._socket, key, is_node=True)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        host, _, port = listen.rpartition(":")
        try:
            self._socket.bind(f"tcp://{host or '127.0.0.1'}:{'*' if port == '0' else port}")
        except zmq.ZMQError as error:
            self.close()
            raise OptionError(f"--listen {listen}: {error}, expected HOST:PORT of this machine, such as 0.0.0.0:7070") from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")

    def run(self) -> None:
        """Answer until `stop`."""
        zmq = zmq_library()
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        try:
            while not self._stops.is_set():
                ready = dict(poller.poll(_POLL_MS))
                if self._monitor in ready:
                    self._monitor.recv_multipart()
                    self._look_until = monotonic() + _LOOK_S
                if monotonic() < self._look_until:
                    self._drop_those_gone()
                if self._socket in ready:
                    who, *frames = self._socket.recv_multipart()
                    self._answer(who, frames)
        finally:
            self.close()

    def stop(self) -> None:
        """End `run` soon. Any thread may call it."""
        self._stops.set()

    def close(self) -> None:
        """Close all models and the socket. May be called twice."""
        for who in [*self._loaded]:
            self._drop(who)
        if not self._socket.closed:
            if self._door is not None:
                self._door.stop()
            self._socket.disable_monitor()
            self._context.destroy(linger=0)

    def _drop(self, who: bytes) -> None:
        if (loaded := self._loaded.pop(who, None)) is not None:
            loaded.model.close()

    def _drop_those_gone(self) -> None:
        zmq = zmq_library()
        for who in [*self._loaded]:
            try:
                self._socket.send_multipart([who, Message("there").frame()], zmq.DONTWAIT)
            except zmq.Again:
                continue
            except zmq.ZMQError:
                self._drop(who)
                self._log.info("a connection has ended; its layers are closed")

    def _answer(self, who: bytes, frames: list[bytes]) -> None:
        try:
            message = Message.of(frames)
            facts, arrays = self._handler(message.kind)(who, message)
            answer = Message("done", facts, arrays)
        except WireError as error:
            self._drop(who)
            self._log.warning("a connection was ended", reason=str(error))
            answer = _refusal(error)
        except AuguryError as error:
            answer = _refusal(error)
        except Exception as error:  # noqa: BLE001 - one model's failure ends nobody else's
            self._log.warning("a pass or load failed", error=repr(error))
            answer = _refusal(AuguryError(repr(error)[:1000]))
        if self._delay_s:
            sleep(self._delay_s)
        try:
            self._socket.send_multipart([who, answer.frame()])
        except zmq_library().ZMQError:  # nobody waits for it any more
            self._drop(who)

    def _handler(self, kind: str) -> Callable[[bytes, Message], _Told]:
        if kind not in _KINDS:
            raise WireError(f"a message of kind {kind[:20]!r}, expected one of {', '.join(_KINDS)}")
        return getattr(self, f"_{kind}")

    def _hello(self, _: bytes, message: Message) -> _Told:
        _check_versions(message)
        return {"backend": self._backend.name, "n_bytes": n_bytes_of_machine()}, {}

    def _spec(self, _: bytes, message: Message) -> _Told:
        file, plan, options = self._opened(message)
        file.close()
        return spec_facts(self._backend.state_spec(plan, options)), {}

    def _load(self, who: bytes, message: Message) -> _Told:
        self._drop(who)
        file, plan, options = self._opened(message)
        model = self._backend.load(file, plan, options, Progress())
        file.close()
        self._loaded[who] = _Loaded(model)
        self._log.info("layers are loaded", model=message.text("reference"), span=str(plan.span), isa=model.isa)
        facts = {"identity": model.identity, "isa": model.isa, "n_threads": model.n_threads}
        memory = [[line.purpose, line.n_bytes] for line in model.memory_table()]
        return {**facts, **spec_facts(model.state_spec), "memory": memory}, {}

    def _opened(self, message: Message) -> tuple[ModelFile, ModelPlan, ModelOptions]:
        """This machine's copy of a model, and the plan that is asked for."""
        _check_versions(message)
        options = _options_of(message, self._threads)
        file = self._file(message.text("reference"), message.text("digest"), message.text("quant"))
        if target := message.text("target"):
            file.borrow_from(self._file(target, message.text("target_digest"), ""))
        span = message.facts.get("span")
        if span is not None and not (isinstance(span, list) and [type(each) for each in span] == [int, int]):
            raise WireError(f"span is {str(span)[:40]!r}, expected two numbers")
        wanted = message.text("plan")
        for name in self._registry.architectures[file.architecture].plans(file):
            whole = plan_of(file, self._registry, name)
            whole = whole if options.window is None else whole.with_window(options.window)
            for plan in (whole, whole.without_mtp()):
                with suppress(UnsupportedError, CapacityError):  # another one may be meant
                    part = plan.for_context(options.n_ctx)
                    part = part if span is None else part.stage(*span)
                    if plan_digest(part) == wanted:
                        return file, part, options
        raise UnsupportedError(f"{file.path} has another plan here; install the same plugins on both machines")

    def _file(self, reference: str, digest: str, quant: str) -> ModelFile:
        file = open_model(reference, self._registry, Progress())
        file = quantized(file, quant, Progress()) if quant else file
        if file.digest != digest:
            raise UnsupportedError(
                f"{reference} is {file.path} here, with digest {file.digest}, expected {digest}; have the same file on both "
                "machines"
            )
        return file

    # Of a model

    def _of(self, who: bytes) -> _Loaded:
        if who not in self._loaded:
            raise UnsupportedError("no layers are loaded by this connection; load some first")
        return self._loaded[who]

    def _forward(self, who: bytes, message: Message) -> _Told:
        loaded, model = self._of(who), self._of(who).model
        batch = batch_of(message, model.state_spec, model.info, loaded.vocabulary)
        n_passes = message.whole("n_passes", 1, model.state_spec.n_ctx)
        if batch.vocabulary is not None:
            loaded.vocabulary = batch.vocabulary
        loaded.passed = model.forward(batch) if n_passes == 1 else model.forward_chain(batch, n_passes)
        loaded.n_rows = len(batch.rows) * n_passes
        features = {name: loaded.passed.features(name) for name in batch.features}
        facts, arrays = self._rows(who, message) if loaded.n_rows else ({"n_first": 0}, {})
        loaded.passed.wait()
        return facts, {**arrays, **features}

    def _rows(self, who: bytes, message: Message) -> _Told:
        loaded, n_top = self._of(who), message.whole("n_top", 0, _MOST)
        passed, n_first = self._passed(loaded, message)
        arrays = {"argmax": passed.argmax()}
        if n_top:
            arrays["top_ids"], arrays["top"] = passed.top_k(np.arange(loaded.n_rows, dtype=np.int32), n_top)
        if message.facts.get("normalizers"):
            arrays["normalizers"] = np.array([passed.log_normalizer(row) for row in range(loaded.n_rows)], np.float64)
        return {"n_first": n_first}, arrays

    def _logits(self, who: bytes, message: Message) -> _Told:
        loaded = self._of(who)
        passed, _ = self._passed(loaded, message)
        row = message.whole("row", -1, loaded.n_rows - 1)
        return {}, {"logits": passed.rows() if row < 0 else passed.row(row)[None]}

    @staticmethod
    def _passed(loaded: _Loaded, message: Message) -> tuple[Pass, int]:
        """The last pass, over the tokens that are asked for."""
        if loaded.passed is None:
            raise WireError("rows of a pass are asked for before there was one")
        n_first = message.whole("n_first", 0, loaded.model.info.n_vocab)
        return loaded.passed.first(n_first) if n_first else loaded.passed, n_first

    def _states(self, who: bytes, message: Message) -> _Told:
        return {}, {str(i): array for i, array in enumerate(self._memory(who, message))}

    def _write(self, who: bytes, message: Message) -> _Told:
        memory = self._memory(who, message)
        given = [message.array(str(i), each.dtype.str[1:], each.shape) for i, each in enumerate(memory)]
        for here, array in zip(memory, given, strict=True):
            here[...] = array
        self._of(who).model.slot_written()
        return {}, {}

    def _memory(self, who: bytes, message: Message) -> list[np.ndarray]:
        model = self._of(who).model
        slot, n = message.whole("slot", 0, model.state_spec.n_slots - 1), message.whole("n", 0, model.state_spec.n_ctx)
        start = message.whole("start", -1, n)
        return list(model.slot_memory(slot, n) if start < 0 else model.slot_memory(slot, n, start))

    def _copy(self, who: bytes, message: Message) -> _Told:
        model = self._of(who).model
        source, target = (message.whole(name, 0, model.state_spec.n_slots - 1) for name in ("source", "target"))
        model.copy(source, target, message.whole("n", 0, model.state_spec.n_ctx))
        return {}, {}

    def _check(self, who: bytes, _: Message) -> _Told:
        self._of(who).model.check()
        return {}, {}


def _refusal(error: AuguryError) -> Message:
    return Message("error", {"error": type(error).__name__, "text": str(error)[:4000]})


def _check_versions(message: Message) -> None:
    """Refuse a machine whose bits may be others."""
    own, theirs = versions(), message.facts.get("versions")
    if theirs != own:
        asked = theirs if isinstance(theirs, dict) else {}
        odd = next((name for name in own if asked.get(name) != own[name]), "others")
        raise UnsupportedError(
            f"{odd} is {own.get(odd)} here and {str(asked.get(odd))[:40]} there; install the same version on both machines"
        )


def _options_of(message: Message, threads: int | None) -> ModelOptions:
    sizes = {name: message.whole(name, 1, _MOST) for name in SENT_OPTIONS if not name.startswith("cache")}
    types = {name: message.text(name) for name in SENT_OPTIONS if name.startswith("cache")}
    if odd := [each for each in types.values() if each not in CACHE_TYPES]:
        raise WireError(f"cache type {odd[0][:20]!r}, expected one of {', '.join(CACHE_TYPES)}")
    window = message.whole("window", -1, _MOST)
    made: Any = {**sizes, **types, "threads": threads, "window": None if window < 0 else window}
    return ModelOptions(**made)
