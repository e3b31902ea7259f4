"""Loads models and tokenizers for one engine: the target first, second models for its drafters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import define, evolve, field

from augury.blocks import Integers, ModelPlan
from augury.blocks.adapted import with_adapters
from augury.devices import CPU
from augury.engine.adapters import Adapters
from augury.engine.checked_context import CheckedContext
from augury.engine.context import EngineContext
from augury.engine.mtp_states import MtpStates
from augury.engine.prompt_cache import PromptCache
from augury.engine.prompt_files import prompt_files
from augury.engine.shared import Shared
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.models import open_model
from augury.files.mtp_file import check_tokens, is_mtp_alone, missing_mtp, with_mtp
from augury.files.override import Scalar, Untyped
from augury.files.quantized import quant_like, quantized
from augury.guard import guarded
from augury.interfaces import Backend, MemoryManager, Model, Progress
from augury.log import get_logger
from augury.memory_limit import lack_of_memory, n_bytes_for_prompts
from augury.options import Spec, build, check_count, check_mapping, options_of, parse_specs
from augury.placement import place
from augury.registry import Registry
from augury.slot_states import SlotStates
from augury.text.chat_template import ChatTemplate
from augury.text.tokenizer import Tokenizer, load_tokenizer
from augury.types import Allocation, ModelInfo, ModelOptions, StateSpec

_NO_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

# What a file is where it is no model → what to do with it.
_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "adapter": "give it as an adapter (--lora, lora=) of the model that it was made for",
        "mmproj": "it encodes images, which models here do not see: take the file of the language model beside it",
        "imatrix": "it helps quantise a model: take the file of the model",
    }
)
_N_CTX = 4096  # unless asked for: room for most texts, in memory that most machines have


def make_backend(registry: Registry, text: str) -> Backend:
    """The backend that `name:key=value,...` asks for, or the preferred one for `auto`.

    Raises PluginError: there is none. OptionError: an option is wrong. UnsupportedError: it cannot run on this machine.
    """
    spec = only_spec("backend", text)
    backend: type[Backend] = registry.choose("backend", None) if spec.name == "auto" else registry.find("backend", spec.name)
    if (reason := backend.unavailable_reason()) is not None:
        raise UnsupportedError(f"backend {backend.name} cannot run here: {reason}")
    return backend(build(backend.options_class, dict(spec.values), f"--backend {backend.name}"))


def only_spec(what: str, text: Any) -> Spec:
    """The one plugin that `name:key=value,...` names. Raises OptionError: it is no text, malformed, or names several."""
    if not isinstance(text, str):
        raise OptionError(f"{what} is {text!r}, expected the name of a plugin, or 'auto'")
    specs = parse_specs(text, what)
    if len(specs) != 1:
        raise OptionError(f"{text!r} names {len(specs)} {what}s; a model has one")
    return specs[0]


def choose_memory(
    registry: Registry,
    text: str,
    model: ModelInfo,
    spec: StateSpec,
    options: Mapping[str, Mapping[str, Any]] = _NO_OPTIONS,
    implied: Mapping[str, Any] = _NO_OPTIONS,
) -> Callable[[StateSpec, SlotStates], MemoryManager]:
    """The memory manager that `name:key=value,...` asks for; for `auto` the preferred one that suits the state.

    Options in the text take precedence over `options`, by manager, and these over `implied` ones. Raises PluginError: there is
    no such manager. OptionError: an option is wrong. UnsupportedError: it does not suit the model's state.
    """
    wanted = only_spec("memory manager", text)
    cls: type[MemoryManager] = (
        registry.find("memory", wanted.name)
        if wanted.name != "auto"
        else registry.choose("memory", model, lambda each: each.suitable(spec))
    )
    if (reason := cls.suitable(spec)) is not None:
        raise UnsupportedError(f"memory manager {cls.name} does not suit {model.name}: {reason}")
    for name, given in check_mapping("memory_options", options).items():
        values = check_mapping(f"memory_options: {name}", given)
        if registry.find("memory", name) is not cls and values:
            facts = {"memory": cls.name, "model": model.name, "options": ",".join(values), "of": name}
            get_logger("augury.loader").warning("options have no effect: they are of another memory manager", **facts)
    known = options_of(cls.options_class)
    chosen = {key: value for key, value in implied.items() if key in known}
    chosen |= {**options.get(cls.name, {}), **dict(wanted.values)}
    return partial(cls, build(cls.options_class, chosen, f"--memory {cls.name}"))


def context_size(asked: int | None, n_trained: int) -> int:
    """How long a sequence may be: as asked for, 0 for as long as the model was trained for, None for most texts."""
    if asked is not None and asked > n_trained:
        facts = {"n_ctx": asked, "n_ctx_train": n_trained}
        get_logger("augury.loader").warning("the context is longer than the model was trained for", **facts)
    return min(_N_CTX, n_trained) if asked is None else asked or n_trained


def plan_of(file: ModelFile, registry: Registry, name: str = "main") -> ModelPlan:
    """A plan of the model in a file; see `Architecture.plans`. Raises OptionError: there is none of this name.

    Raises ModelFileError: no plugin knows its architecture, or the file does not fit it.
    """
    if is_mtp_alone(file):
        raise ModelFileError(
            f"{file.path}: it has layers that predict further tokens and none of the model's others; give it as the draft "
            "model (-md, draft_model) of the model that it was made for"
        )
    if (written_as := file.get("general.type", str, "model")) in _INSTEAD:
        raise ModelFileError(f"{file.path}: general.type is {written_as!r}, expected a model; {_INSTEAD[written_as]}")
    architecture = registry.architectures.get(file.architecture)
    if architecture is None:
        message = f"{file.path}: architecture {file.architecture!r} is not supported"
        raise ModelFileError(f"{message}; augury plugins lists the {len(registry.architectures)} that are, a plugin may add it")
    plans = architecture.plans(file)
    if name not in plans:
        raise OptionError(f"{file.path}: its architecture {file.architecture!r} has no plan {name!r}, only {', '.join(plans)}")
    plan = plans[name]
    for part in plan.tensors():
        for tensor in part.shapes if not isinstance(part, Integers) else ():
            if (kind := file.tensor(tensor).type).integers is not None:
                raise ModelFileError(f"{file.path}: tensor {tensor!r} is stored as {kind.name}, expected a type of weights")
    return plan


def _check_cache_types(reference: str, plan: ModelPlan, options: ModelOptions) -> None:
    """Check those of a draft model or head, which are the target's unless others are given for it."""
    try:
        options.check_cache_types(plan)
    except UnsupportedError as error:
        kind = "head" if plan.hidden_of else "draft model"
        ways = "with -ctkd and -ctvd; it has the target's -ctk and -ctv unless these are given"
        raise UnsupportedError(f"{kind} {reference}: {error} for the {kind}, {ways}") from None


def _lack_of_mtp(registry: Registry, file: ModelFile, plan: ModelPlan, device: Backend, *, is_wanted: bool) -> str:
    """Why there are no layers that predict further tokens, and what to do; empty where there are."""
    what = "layers that predict further tokens"
    drafter = " or ".join(name for name, each in registry.drafters.items() if each.traits.uses_mtp)
    if not plan.mtp and (found := missing_mtp(file)):
        return f"{file.path}: {found}; give the file of these layers as the draft model (-md), or leave {drafter} out"
    if not plan.mtp:
        return f"{file.path}: {what} are not supported in architecture {file.architecture!r}; leave {drafter} out"
    if device.computes_mtp:
        unasked = f"the {what} were not loaded, as no drafter in use has `uses_mtp`, or names one that has in `wrapped`"
        return "" if is_wanted else f"{file.path}: {unasked}"
    usable = (each for each in registry.backends.values() if each.unavailable_reason() is None)
    able = " or ".join(sorted(each.name for each in usable if each.computes_mtp))
    return f"{what} are not computed by backend {device.title}, expected {able or 'another'}; use that, or leave {drafter} out"


@define(eq=False, slots=False)
class Loader:
    """Loads each model once, and remembers which ones to close."""

    registry: Registry
    _backend: Backend
    _progress: Progress
    # by reference, metadata values that take the place of a file's own
    _override_kv: Mapping[str, Mapping[str, Scalar | Untyped]] = field(factory=dict)
    shared: Shared = field(factory=Shared, init=False)
    contexts: list[EngineContext] = field(factory=list, init=False)
    backends: list[Backend] = field(factory=list, init=False)  # of each context's model
    no_tokenizer: dict[str, str] = field(factory=dict, init=False)  # by reference, why its file's is not read
    _files: dict[str, ModelFile] = field(factory=dict, init=False)
    _target_reference: str | Path = field(default="", init=False)
    _of_prompts: tuple[int, int, int | None] = field(default=(0, 1, 0), init=False)  # bytes for all, of all slots; MiB on disk
    _target: ModelFile | None = field(default=None, init=False)

    @property
    def models(self) -> list[Model]:
        """The loaded models, the target first."""
        return [context.model for context in self.contexts]

    def open(self, reference: str | Path, draft: str | Path | None = None, quant: str | None = None) -> ModelFile:
        """The file that `reference` means, open until `close_files`: reading a large header twice would be felt.

        If the file `draft` has layers of the model that predict further tokens, and no others, they are the model's from then
        on, quantised to `quant`.
        """
        if str(reference) not in self._files:
            given = self._override_kv.get(str(reference))
            self._files[str(reference)] = open_model(reference, self.registry, self._progress, given)
        if draft is not None and is_mtp_alone(more := self.open(draft)):
            file = self._files[str(reference)]
            check_tokens(file, more)
            self._files[str(reference)] = with_mtp(file, self._quantized(more, quant, file))
        return self._files[str(reference)]

    def load(
        self,
        reference: str | Path,
        options: ModelOptions,
        *,
        purpose: str,
        backend: str | None = None,
        memory: str = "auto",
        memory_options: Mapping[str, Mapping[str, Any]] = _NO_OPTIONS,
        implied: Mapping[str, Any] = _NO_OPTIONS,
        plan_name: str = "main",
        wants_mtp: bool = False,
        adapters: Adapters | None = None,
    ) -> EngineContext:
        """The model that `reference` means, with its memory; the same arguments load once.

        A target that is its own draft model is loaded twice: each needs slots of its own. With the purpose "draft" drafters
        feed the model, and their feeds are checked. `backend` is another one than the engine's; a placement may add others. The
        memory manager, see `choose_memory`, is refused before the weights are read; `implied` are options of any, see
        `DrafterTraits.memory_options`. `plan_name` is one of the plans that the architecture offers of the file. Layers that
        predict further tokens are loaded where they are wanted, there are such, and the backend computes them.
        """

        def make() -> EngineContext:
            file = self.open(reference)
            if purpose == "draft" and (quantized := self._quantized(file, options.quant, self._target)) is not file:
                file = self._files[str(reference)] = quantized  # one that was published as floats
            named = self._backend if backend is None else make_backend(self.registry, backend)
            if purpose == "draft" and self._target is not None:
                file.borrow_from(self._target)
            else:
                self._target, self._target_reference = file, reference
            whole = plan_of(file, self.registry, plan_name)
            whole = whole if options.window is None else whole.with_window(options.window)
            whole = with_adapters(whole, adapters.loaded) if adapters is not None and adapters.loaded else whole
            if purpose == "draft" and whole.hidden_of and self._target is not None:
                check_tokens(self._target, file)
            if purpose != "draft" and whole.hidden_of:
                raise UnsupportedError(
                    f"{file.path}: a model of architecture {whole.architecture!r} drafts for another one; give it as the draft "
                    "model (-md, draft_model) of that one"
                )
            wanted = options if options.n_ctx else evolve(options, n_ctx=whole.n_ctx_train)
            plan = whole if wants_mtp else whole.without_mtp()
            if purpose == "draft":
                _check_cache_types(str(reference), plan, wanted)
            device = place(self.registry, named, file, plan, wanted)
            if lack := _lack_of_mtp(self.registry, file, whole, device, is_wanted=wants_mtp):
                plan = whole.without_mtp()
            spec, info = device.state_spec(plan, wanted), ModelInfo.of(file, plan)
            make_manager = choose_memory(self.registry, memory, info, spec, memory_options, implied)
            model = device.load(file, plan, wanted, self._progress)
            kind, mtp = (
                CheckedContext if purpose == "draft" else EngineContext,
                MtpStates(model) if any(part.caches for part in info.heads.values()) else None,
            )
            context = kind(model, make_manager(model.state_spec, mtp or model), mtp, lack)
            if adapters is not None:
                context.adapters = adapters
            if plan.hidden_of and self.contexts:
                context.target = self.contexts[0]
                self.contexts[0].head_models.append(context)
            self.contexts.append(context)
            self.backends.append(device)
            return self.contexts[-1]

        return self.shared.get(("model", purpose, str(reference), options, backend, plan_name), make)

    def _quantized(self, file: ModelFile, quant: str | None, target: ModelFile | None) -> ModelFile:
        if quant is None and target is not None and file.path.is_dir():
            quant = quant_like(target)
        return file if quant is None else quantized(file, quant, self._progress)

    def keep_prompts(self, cache_ram: int, cache_disk: int | None) -> None:
        """Give each model a prompt cache. They share what `Engine.load` says as their slots share memory."""
        n_mib = check_count("cache_ram", cache_ram, -1)
        n_mib_on_disk = None if cache_disk is None else check_count("cache_disk", cache_disk, 0)
        n_most = n_bytes_for_prompts(n_mib, sum(line.n_bytes for line in self.memory_table() if line.device == CPU))
        self._of_prompts = n_most, max(sum(context.memory.n_bytes for context in self.contexts), 1), n_mib_on_disk
        self._keep_prompts()

    def _keep_prompts(self) -> None:
        n_most, n_slots_bytes, n_mib_on_disk = self._of_prompts
        for context in self.contexts:
            n_bytes = n_most * context.memory.n_bytes // n_slots_bytes
            if n_bytes and context.prompt_cache is None:
                identity = f"{context.memory.name}, {context.memory.states.identity}"
                if context.info.parts["main"].input:
                    identity += f", of {self.contexts[0].memory.states.identity}"
                context.prompt_cache = PromptCache(context.memory, n_bytes, prompt_files(identity, n_mib_on_disk))

    @contextmanager
    def replacing(self, reference: str) -> Iterator[None]:
        """A second model is loaded in place of one that is released later; where that fails, nothing of it stays."""
        try:
            self._target = self.open(self._target_reference)  # which lends its embedding
            yield
            self._keep_prompts()
        except BaseException:
            self.release(reference)
            raise
        finally:
            self.close_files()

    def release(self, reference: str) -> None:
        """Close a second model that nobody uses any more."""
        gone = [context for context in self.shared.drop(reference) if context in self.contexts]
        kept = [(*each,) for each in zip(self.contexts, self.backends, strict=True) if each[0] not in gone]
        self.contexts[:], self.backends[:] = [context for context, _ in kept], [backend for _, backend in kept]
        self.contexts[0].head_models[:] = [context for context in self.contexts[0].head_models if context not in gone]

    def load_tokenizer(self, reference: str | Path) -> Tokenizer | None:
        """The tokenizer of a model's file, or None where the file has none that augury can read: token ids work without."""

        def make() -> Tokenizer | None:
            try:
                return load_tokenizer(self.open(reference).metadata)
            except UnsupportedError as error:
                self.no_tokenizer[str(reference)] = str(error)
                get_logger("augury.loader").warning("no tokenizer", model=str(reference), reason=str(error))
                return None

        return self.shared.get(("tokenizer", str(reference)), make)

    @staticmethod
    def load_template(file: ModelFile, tokenizer: Tokenizer | None, *, parse_special: bool) -> ChatTemplate | None:
        """The chat template of a file, or None where it has none that is a text: prompts work without."""
        try:
            return ChatTemplate.from_metadata(file.metadata, tokenizer, parse_special=parse_special)
        except ModelFileError as error:
            get_logger("augury.loader").warning("no chat template", model=str(file.path), reason=str(error))
            return None

    def check(self) -> None:
        """See that no model's file was changed; see `Model.check`."""
        for model in self.models:
            model.check()

    def memory_table(self) -> list[Allocation]:
        """The memory of the models, the target's first, each line with the model's name and role."""
        return [
            Allocation(f"{context.info.name} ({'draft' if number else 'target'}): {line.purpose}", line.n_bytes, line.device)
            for number, context in enumerate(self.contexts)
            for line in (*context.model.memory_table(), *context.memory.memory_table())
        ]

    @contextmanager
    def closed_on_failure(self) -> Iterator[list[Any]]:
        """Close everything if something fails, beginning with the objects in the list, and say if memory was lacking."""
        made = list[Any]()
        try:
            yield made
        except BaseException as error:
            self.close(made)
            if (lack := lack_of_memory(error)) is not None:
                raise lack from error
            raise

    def close_files(self) -> None:
        """Close the files that are open; models loaded from them stay."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def close(self, before: Iterable[Any] = ()) -> None:
        """Close all models and drafters' shared objects, before them some others, whose failures do no harm."""
        for each in before:
            guarded(each.close)
        self.close_files()
        self.shared.close()
        self.contexts.clear()
