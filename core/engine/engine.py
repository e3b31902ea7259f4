"""`Engine`: a loaded model that answers requests, with speculation or without.

The engine's own thread runs the loop; every public method may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NoReturn, Self

import attrs

from augury.compiled import CompiledAhead
from augury.devices import Placement
from augury.engine.adapters import Adapters
from augury.engine.channel import Channel
from augury.engine.checked_context import EngineTarget
from augury.engine.context import EngineContext
from augury.engine.evaluation import Evaluations
from augury.engine.loop import Loop
from augury.engine.receipts import Receipts
from augury.engine.request import Request, make_request
from augury.engine.sequence import RunningSequence
from augury.engine.session import EngineSession
from augury.engine.slots import SavedSlot
from augury.engine.stats import EngineStats
from augury.engine.worker import Answer, Worker
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.guard import guarded
from augury.interfaces import Drafter, Progress
from augury.loader import Loader, context_size, make_backend, only_spec, plan_of
from augury.notebook import shown_progress
from augury.options import check_count, check_mapping
from augury.registry import Registry
from augury.speculation.config import Speculation, choose_drafters, kernels_of, serving_drafters, uses_mtp
from augury.speculation.drafting import Drafting
from augury.speculation.planner import DraftPlanner, planner_for
from augury.speculation.trials import Trial
from augury.speculation.verification import Synthetic, acceptance_rule
from augury.text.chat_template import ChatTemplate
from augury.text.tokenizer import Tokenizer
from augury.types import Allocation, ModelInfo, ModelOptions


class Engine(Receipts, Evaluations):
    """A target model with its drafters, slots and memory. Made by `Engine.load`; close it, or use it in a `with` statement.

    Attributes:
        info: Facts about the model.
        tokenizer: Of the model, or None where its file has none: then prompts are token ids and texts are empty.
        chat_template: Of the model, or None where its file has none.
        config: The effective configuration, whether it was asked for or chosen.
        adapters: Those that are added to its products, and how much each counts.
        load_s: Seconds that `load` took, compiling included.
    """

    def __init__(
        self,
        context: EngineContext,
        chains: Sequence[Sequence[Drafter]],
        loader: Loader,
        *,
        sessions: Sequence[EngineSession] = (),
        tokenizer: Tokenizer | None,
        template: ChatTemplate | None,
        speculation: Speculation,
        planner: DraftPlanner | None = None,
        config: Mapping[str, Any],
        observers: tuple[Callable[..., Any] | None, Callable[..., Any] | None] = (None, None),
        max_queue: int | None = None,
        lost_timeout: float = 60.0,
        files: tuple[Sequence[Path], Sequence[tuple[int, ...]]] = ((), ()),
        begun: float | None = None,
    ) -> None:
        """Put loaded parts together; users call `load`, which says when it has begun."""
        self.info: ModelInfo = context.info
        self._files = files
        self.tokenizer, self.chat_template, self.config = tokenizer, template, config
        self._context, self._n_ctx, self.adapters = context, context.spec.n_ctx, context.adapters
        self._drafters = drafters = [drafter for chain in chains for drafter in chain]
        self._sessions, self._speculation = sessions, speculation
        self._draft_models = {getattr(each.options, "model", None) for each in speculation.members}  # in use by some request
        self._loader = loader
        self._n_vocab = context.info.n_vocab if tokenizer is None else min(context.info.n_vocab, tokenizer.n_vocab)
        self._make_request = partial(
            make_request,
            speculation=speculation,
            n_vocab=self._n_vocab,
            n_slots=context.spec.n_slots,
            registry=loader.registry,
            tokenizer=tokenizer,
            adapters=self.adapters,
            features=context.model.features,
        )
        self._sequence: Callable[[Request, Channel], RunningSequence] = partial(
            RunningSequence, tokenizer=tokenizer, n_vocab=self._n_vocab, n_ctx=self._n_ctx, shared=loader.shared.get
        )
        features = context.model.features
        self._drafting = Drafting(chains, planner, self.info.n_vocab, may_branch=context.may_branch, features=features)
        loop = Loop(context, self._drafting, *observers, n_vocab=self._n_vocab, check=loader.check, lost_timeout=lost_timeout)

        def give_back() -> None:  # without a reference to the engine
            loader.close([*drafters, *([] if template is None else [template])])

        self._worker = Worker(loop, give_back, n_slots=context.spec.n_slots, max_queue=max_queue)
        self.load_s = 0.0 if begun is None else perf_counter() - begun

    @classmethod
    def load(
        cls,
        model: str | Path = "smollm2",
        *,
        backend: str = "auto",
        memory: str = "auto",
        memory_options: Mapping[str, Mapping[str, Any]] | None = None,
        spec_type: str | Iterable[str] = "auto",
        draft_model: str | Path | None = None,
        spec_options: Mapping[str, Mapping[str, Any]] | None = None,
        draft_max: int = 16,
        draft_min: int = 0,
        spec_fixed: bool = False,
        spec_verify: Literal["match", "rejection"] = "match",
        spec_synth_rates: Iterable[float] | None = None,
        spec_synth_len: float | None = None,
        spec_timeout: float = 30.0,
        threads: int | None = None,
        n_ctx: int | None = None,
        slots: int = 1,
        max_queue: int | None = None,
        lost_timeout: float = 60.0,
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
        cache_ram: int = 0,
        cache_disk: int | None = 0,
        override_kv: Mapping[str, Any] | None = None,
        lora: str | Path | Sequence[str | Path | tuple[str | Path, float]] | Mapping[str | Path, float] | None = None,
        parse_special: bool = False,
        placement: Placement | None = None,
        progress: Progress | None = None,
        registry: Registry | None = None,
    ) -> Self:
        """Load a model.

        Args:
            model: A path, a short name, `hf:owner/repo:quant` or `pypi:distribution==version`.
            backend: A backend's name, perhaps with options as in `numba-cpu:affinity=cores`, or `auto`.
            memory: A memory manager's name, perhaps with options; `auto` takes the first that suits the model.
            memory_options: Options by memory manager, beside those in `memory`; a warning says which have no effect.
            spec_type: `none`, `auto`, or drafters with options: `name:key=value,key=value;name`. Each round verifies the most
                promising tokens of all of them.
            draft_model: A second, small model, or a head; with `auto` it drafts beside the lookups. Or a file of the model's
                layers that predict further tokens, for `draft-mtp`.
            spec_options: Options by drafter name, beside those in `spec_type`.
            draft_max: Tokens per draft at most.
            draft_min: Shorter drafts are thrown away.
            spec_fixed: Draft in every round as far as `draft_max` allows, by the first drafter that has something to propose;
                otherwise the planner chooses the tokens, none included, that promise the most tokens per second.
            spec_verify: `match` accepts the target's own choices, so the output never changes; `rejection` accepts more of
                sampled drafts and keeps the distribution, not the seed's tokens. The output then depends on the drafts, so a
                seed repeats its text only with `spec_fixed`.
            spec_synth_rates: For benchmarks: the chance that a draft's token 1, 2, … is accepted where all before it were, the
                last for all after it. The text is then not the model's.
            spec_synth_len: The same as one chance: so many tokens of an endless draft are accepted on average.
            spec_timeout: Seconds. If two calls of a drafter, or steps of its `begin`, take longer in a request, it is left out
                of the rest of that request; a constraint ends its request. A call cannot be interrupted.
            threads: None for as many as there are physical cores.
            n_ctx: Tokens that one sequence may use, prompt and output together. 0: as many as the model was trained for, None:
                4096 at most. More is possible, with a warning.
            slots: Sequences that run at once; requests beyond them queue.
            max_queue: Requests that may wait for a slot; one more is a `QueueFullError`. None for any number.
            lost_timeout: Seconds that requests wait for a machine that computes layers and was lost, before they end with an
                error. If it is back by then they go on.
            cache_type_k: Type of the keys in the KV cache: `f16`, `f32`, `bf16`, `q8_0` or `q4_0`.
            cache_type_v: Type of the values.
            cache_ram: MiB for prompts and answers that slots no longer hold; -1: a quarter of the machine's, the most; 0: none.
            cache_disk: MiB of files for the same, which later runs go on with; None: a tenth of the free space; 0: none.
            parse_special: Whether messages may name control tokens; such names are text otherwise.
            override_kv: Metadata that replaces the file's own: `{"tokenizer.ggml.pre": "qwen2"}`.
            lora: Adapters: a path, several, or paths with a scale each, 1 by default. `scale_adapters` and requests change it.
            placement: Which layers GPUs compute; None: the backend computes all.
            progress: Called with the progress of downloading, compiling and loading; None: a notebook shows bars.
            registry: Plugins to choose from; None discovers the installed ones.

        Raises:
            AuguryError: By its kind: a file that cannot be read, a plugin or option that does not exist, too little memory.
        """
        start = perf_counter()
        slots, n_ctx = check_count("slots", slots), None if n_ctx is None else check_count("n_ctx", n_ctx, 0)
        threads = None if threads is None else check_count("threads", threads)
        max_queue = None if max_queue is None else check_count("max_queue", max_queue)
        registry = registry or Registry.discover()
        only_spec("memory manager", memory)  # refused before anything is loaded
        rule = acceptance_rule(spec_verify, spec_synth_rates, spec_synth_len)
        speculation = Speculation((), draft_max, draft_min, spec_fixed, rule, spec_timeout)
        device, files = make_backend(registry, backend), {str(model): check_mapping("override_kv", override_kv or {})}
        ahead = CompiledAhead(progress or shown_progress())
        loader = Loader(registry, device, ahead, files)
        choose = partial(choose_drafters, registry, spec_type, draft_model, spec_options, open_model=loader.open)
        wants_mtp = uses_mtp(registry, chosen := choose(has_mtp=True))
        if isinstance(rule, Synthetic) and not chosen:
            raise OptionError("synthetic acceptance is asked for, but no drafter is in use; leave one of the two out")
        ahead.add(kernels_of(chosen))
        with loader.closed_on_failure() as made:
            made.append(ahead)
            of_mtp = next((member.options for drafter, member in chosen if drafter.traits.uses_mtp), None)
            own = loader.open(model)
            file = loader.open(model, None if draft_model is None else str(draft_model), getattr(of_mtp, "quant", None))
            n_ctx = context_size(n_ctx, plan_of(file, registry).n_ctx_train)
            options = ModelOptions(slots, n_ctx, threads, cache_type_k, cache_type_v, draft_max, placement)
            adapters = Adapters.open(lora, slots, file.architecture)
            of_drafters = attrs.evolve(options, placement=options.placement.of_others)
            tokenizer = loader.load_tokenizer(model)
            template = loader.load_template(file, tokenizer, parse_special=parse_special)
            implied = {key: value for drafter, _ in chosen for key, value in drafter.traits.memory_options.items()}
            managed: dict[str, Any] = {"memory": memory, "memory_options": memory_options or {}, "implied": implied}
            context = loader.load(model, options, purpose="target", wants_mtp=wants_mtp, adapters=adapters, **managed)
            if not context.info.heads:
                chosen = choose()
            chosen += serving_drafters(registry, chosen) if chosen else []
            speculation = attrs.evolve(speculation, members=tuple(member for _, member in chosen))
            target, first_layers = context.model, EngineTarget(context)
            sessions = [EngineSession(slot, target.info, of_drafters, tokenizer, loader, first_layers) for slot in range(slots)]
            ahead.wait()
            chains = [session.make_drafters(chosen, made) for session in sessions]
            if len(loader.models) > 1 and any(each.trip_s for each in loader.models):
                context.begin_on_thread()
            planner = None
            if draft_max and not spec_fixed:
                planner = planner_for(
                    target,
                    chains[0],
                    draft_max,
                    replays_accepted=context.memory.replays_accepted,
                    drafts_ahead=context.is_asynchronous,
                )
            loader.keep_prompts(cache_ram, cache_disk)
            loader.close_files()
            config: dict[str, Any] = {"model": str(model), "backend": loader.backends[0].title, "memory": context.memory.name}
            config |= {**attrs.asdict(options), "threads": target.n_threads, "isa": target.isa, "spec_type": str(speculation)}
            if adapters.loaded:
                config["lora"] = [str(each.path) for each in adapters.loaded]
            return cls(
                context,
                chains,
                loader,
                sessions=sessions,
                tokenizer=tokenizer,
                template=template,
                speculation=speculation,
                planner=planner,
                config=config | {"speculative": speculation.effective(), "override_kv": dict(override_kv or {})},
                observers=(registry.observers("augury_round_done"), registry.observers("augury_request_done")),
                max_queue=max_queue,
                lost_timeout=lost_timeout,
                files=(own.paths, own.identity),
                begun=start,
            )

    def scale_adapters(self, lora: Sequence[Mapping[str, Any]]) -> None:
        """Let adapters count so in requests that say nothing else: `[{"id": 0, "scale": 0.5}]`, all others not at all."""
        self.adapters.scales = self.adapters.choose(lora)

    def save_slot(self, slot: int, path: str | Path) -> SavedSlot:
        """Save all that a slot holds to a file: its text, KV cache and recurrent states, and how it was sampled.

        A request with the returned tokens and `params` continues the slot's text with the same tokens.
        """
        return self._at_slot(slot, Loop.save_slot).write(Path(path), self._context)

    def load_slot(self, slot: int, path: str | Path) -> SavedSlot:
        """Restore the saved contents of any slot, of any process, to a free slot; a prompt that begins like them reuses them.

        A file that is damaged or of another model is an error; the slot is then as it was.
        """
        saved = SavedSlot.read(Path(path), self._context)
        try:
            return self._at_slot(slot, lambda loop, _: loop.slots.load(slot, saved))
        except ModelFileError as error:
            raise ModelFileError(f"{path}: {error}") from error

    def erase_slot(self, slot: int) -> int:
        """Let a free slot forget its contents; returns how many tokens these were."""
        return self._at_slot(slot, lambda loop, _: loop.slots.erase(slot))

    def _at_slot(self, slot: int, step: Callable[..., Answer], *arguments: Any) -> Answer:
        """The result of a method of the loop for a slot, on the engine's thread."""
        if not isinstance(slot, int) or isinstance(slot, bool) or not 0 <= slot < self._context.spec.n_slots:
            raise OptionError(f"slot is {slot!r}, expected 0 to {self._context.spec.n_slots - 1}")
        return self._worker.do(step, slot, *arguments)

    def stats(self) -> EngineStats:
        """The state of every slot, the waiting requests, and counts since `load`. Any thread may ask; it waits for nothing."""
        return self._worker.stats()

    def replace_draft_model(self, draft_model: str | Path) -> None:
        """Let another draft model or head of the same kind draft in all requests from the next one on.

        Its file is not in use. It is loaded between two rounds, and no text changes. Requests that run keep the one before,
        which is closed after them. Raises AuguryError: as `load` does; or no drafter has a draft model, or its other traits
        differ. Then the one before stays.
        """
        self._worker.do(self._replace_draft_model, str(draft_model))

    def _replace_draft_model(self, _: Loop, reference: str) -> bool:
        members = self._speculation.members
        place = next((i for i, each in enumerate(members) if getattr(each.options, "model", None)), None)
        if place is None or reference in self._draft_models:
            found = "no drafter in use has one" if place is None else f"{reference} is in use"
            raise OptionError(f"the draft model cannot be replaced: {found}; load the engine with another file")
        before, made = members[place].options.model, list[Drafter]()
        member = attrs.evolve(members[place], options=attrs.evolve(members[place].options, model=reference))
        old = self._drafters[place :: len(members)]
        with self._loader.replacing(reference):
            for session in self._sessions:
                session.make_drafters([(type(old[0]), member)], made)
            if made[0].traits != old[0].traits:
                raise UnsupportedError(f"{reference} reads other hidden states than {before}; load the engine with it")

        def retire() -> None:
            for drafter in old:
                guarded(drafter.close)
            self._loader.release(before)
            self._draft_models.discard(before)

        self._draft_models.add(reference)
        self._drafters[place :: len(members)] = made
        self._drafting.replace(place, made, retire)
        self._speculation = attrs.evolve(self._speculation, members=(*members[:place], member, *members[place + 1 :]))
        self._make_request = partial(self._make_request, speculation=self._speculation)
        told = {"spec_type": str(self._speculation), "speculative": self._speculation.effective()}
        self.config = {**self.config, **told}
        return True

    def watch_trials(self, observer: Callable[[Iterable[Trial]], object] | None) -> None:
        """Hand an observer every token that is proposed with a chance, and whether it was right; None: no observer.

        It is called on the engine's thread, for each slot and round, with trials to iterate over later.
        """
        self._drafting.on_trials = observer

    def memory_table(self) -> list[Allocation]:
        """The memory of the models, the target's first: weights, KV cache, scratch, each with the model's name and role."""
        return self._loader.memory_table()

    def close(self) -> None:
        """Cancel all requests and release threads and memory; an engine that is garbage-collected does the same.

        Any thread may call it, more than once. In a hook it does not wait: the end comes after the round. In a fork it does
        nothing.
        """
        self._worker.close()
        if self.chat_template is not None:
            self.chat_template.close()

    def __repr__(self) -> str:
        names = ("model", "backend", "spec_type", "n_slots", "n_ctx")
        return f"Engine({', '.join(f'{name}={self.config[name]!r}' for name in names if name in self.config)})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from augury.notebook import table

        shown = ("slot", "state", "id", "n_prompt", "n_held", "n_emitted")
        rows = [[getattr(slot, name) for name in shown] for slot in self.stats().slots]
        head = ("slot", "state", "request", "prompt", "held", "written")
        return {"text/plain": repr(self), "text/html": table(repr(self), head, rows)}

    def __reduce__(self) -> NoReturn:
        raise TypeError("an engine cannot be pickled or copied; load it in the process that uses it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
