"""Flags that choose the model, its adapters and how they are loaded, and the loading itself."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.cli import drafter_flags
from augury.cli.foreign_flags import FOREIGN_FLAGS
from augury.cli.log_output import configure_logging
from augury.cli.parser import Parser, converted, count, expecting
from augury.cli.progress import ProgressDisplay
from augury.cli.report import say, show_configuration
from augury.devices import CPU, Placement
from augury.errors import AuguryError, OptionError
from augury.files.models import open_model
from augury.files.override import Scalar, Untyped, parse_overrides
from augury.interfaces import Model, Progress
from augury.loader import Loader, context_size, make_backend, plan_of
from augury.memory_limit import n_bytes_for_prompts
from augury.registry import Registry
from augury.types import CACHE_TYPES, ModelOptions

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.text.chat_template import ChatTemplate
    from augury.text.tokenizer import Tokenizer


# ik_llama.cpp has the scale as a word of its own, which would be read as a prompt here
_SCALED = expecting("FILE:SCALE", str, lambda text: ":" in text)


def add_adapter_flags(group: Any) -> None:
    """Add the flags of adapters, in llama.cpp's words."""
    group.flag(
        "--lora FILE[:SCALE] ...",
        "an adapter (LoRA) that is added to the model, may be repeated; requests may give it another scale (default: 1)",
    )
    group.flag("--lora-scaled FILE:SCALE", "the same, with a scale", _SCALED, action="append", dest="lora")
    group.flag("--lora-init-without-apply", "adapters count nothing until a request gives them a scale")


def adapters_of(args: argparse.Namespace) -> list[tuple[str, float]]:
    """The adapters of the flags, with their scales; `FILE,FILE` are several."""
    found = []
    for text in (each for flag in args.lora for each in ([flag] if Path(flag).exists() else flag.split(","))):
        path, colon, scale = text.rpartition(":")
        if not colon or Path(text).exists():
            path, scale = text, "1"
        found.append((path, 0.0 if args.lora_init_without_apply else converted("--lora", scale, float)))
    return found


_AS_NAMED = (  # arguments of `Engine.load` that are flags of the same names
    *("backend", "memory", "threads", "cache_type_k", "cache_type_v", "cache_ram", "cache_disk", "parse_special", "registry"),
    "lost_timeout",
)
_OF_SPECULATION = ("spec_fixed", "spec_verify", "spec_synth_rates", "spec_synth_len", "spec_timeout")  # likewise
_CACHE_RAM = 8192  # as llama.cpp has it

FIRST_FLAGS = "-m -c -np -t -ngl --spec-type -md"
"""The flags of a model that people use first."""


class _StayOffline(argparse.Action):
    """Sets the variable that Hugging Face's library and all sources go by, before they are imported."""

    def __call__(self, *_: Any) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"


class _KeepModels(argparse.Action):
    """Keeps the last model, for commands that have one, and all of them, for a server."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, _flag: str | None = None) -> None:
        namespace.model = values
        namespace.models = (*namespace.models, values)


def add_model_flags(
    parser: Parser, registry: Registry, argv: Sequence[str], *, n_slots: int | None, has_drafters: bool = True
) -> None:
    """Add the flags of `Engine.load`; `n_slots` is the default of `-np`, None leaves that flag out.

    Where `argv` names another of augury's commands it adds none: to make hundreds of flags takes longer than some commands run.
    """
    if argv and parser.prog.startswith("augury ") and argv[0] not in (parser.prog.split()[1], "completion"):
        return
    parser.foreign = FOREIGN_FLAGS
    parser.set_defaults(registry=registry, parallel=1, quiet=False, models=(), cache_ram=0, cache_disk=0)
    group = parser.add_argument_group("model")
    group.flag(
        "-m --model MODEL",
        "a path, a name that `augury search` shows, owner/repo:quant of the Hub, or ollama:NAME (default: smollm2)",
        action=_KeepModels,
        default="smollm2",
    )
    group.flag("--offline", "download nothing, as with the environment variable HF_HUB_OFFLINE=1", nargs=0, action=_StayOffline)
    group.flag(
        "-c --ctx-size N",
        "tokens that one sequence may use; 0: as many as the model was trained for (default: that, 4096 at most)",
        count(least=0),
    )
    if n_slots is not None:
        group.flag("-np --parallel N", f"sequences at once (default: {n_slots})", count(least=1), default=n_slots)
    group.flag("-t --threads N", "threads (default: one per physical core)", count(least=1))
    types = f"{', '.join(CACHE_TYPES)} (default: f16)"
    for what, flags in (("keys", "-ctk --cache-type-k TYPE"), ("values", "-ctv --cache-type-v TYPE")):
        group.flag(flags, f"type of the {what} in the KV cache: {types}", default="f16", choices=CACHE_TYPES)
    add_override_flag(group)
    add_adapter_flags(group)
    group.flag("--parse-special", "read the names of control tokens in messages as these tokens; by default they are text")
    group.flag("--backend NAME", "what computes, see augury plugins (default: auto)", default="auto")
    add_placement_flags(group)
    group.flag(
        "--memory NAME",
        "what manages the slots' memory, see augury plugins; with options as NAME:key=value (default: auto)",
        default="auto",
    )
    drafter_flags.add_memory_flags(group, registry)
    level: dict[str, Any] = {"action": "store_const", "dest": "verbose", "default": 0}
    group.flag("-v --verbose --log-verbose", "show the whole configuration, memory and log", const=1, **level)
    text = "also show every draft, token by token, with what the model chose and the probabilities"
    group.flag("-vv", text, const=2, **level)
    if has_drafters:
        drafter_flags.add_speculation_flags(parser.add_argument_group("speculation"), registry)
        drafter_flags.add_drafter_flags(parser, registry, argv)


def add_cache_flags(parser: Parser) -> None:
    """Add the flags of the prompt cache."""
    group = parser.add_argument_group("prompt cache")
    group.flag(
        "-cram --cache-ram MIB",
        "memory for prompts and answers that no slot holds any longer, at most a quarter of the machine's; the models "
        f"of a server share it; -1: that much; 0: they are forgotten, on disk, too (default: {_CACHE_RAM})",
        count(least=-1),
        default=_CACHE_RAM,
    )
    group.flag(
        "--cache-disk MIB",
        "files for the same, of all models together, with which later runs go on; 0: none (default: a tenth of the free space)",
        count(least=0),
    )
    parser.set_defaults(cache_disk=None)


def add_placement_flags(group: Any) -> None:
    """Add the flags that say which layers GPUs compute; see `Placement`."""
    group.flag(
        "-ngl --gpu-layers --n-gpu-layers N",
        "how many of the last layers GPUs compute, the output among them: a number, all, or auto for as many as fit; the "
        "CPU computes the others (default: the backend computes all)",
    )
    group.flag(
        "-dev --device NAME,...",
        "the GPUs, such as CUDA0,CUDA1, or none, see augury plugins; or other machines, as in CPU,node:HOST:PORT,CPU: if "
        "the CPU is named after another device, all that are named share the layers (default: those of the backend)",
    )
    group.flag(
        "-ts --tensor-split X,X,...",
        "shares of the layers that each GPU gets, such as 3,1 (default: as many as fit, GPU by GPU; with other machines "
        "equal ones)",
    )
    group.flag(
        "--lost-timeout N",
        "seconds that requests wait for another machine that was lost, then they end with an error (default: %(default)s)",
        count(least=0),
        default=60,
    )


def placement_of(args: argparse.Namespace) -> Placement:
    """The values of these flags. Raises OptionError: they are malformed."""
    return Placement(args.device, args.gpu_layers, args.tensor_split)


def placement_words(args: argparse.Namespace) -> list[str]:
    """These flags as they were given, for another process."""
    given = {"--gpu-layers": args.gpu_layers, "--device": args.device, "--tensor-split": args.tensor_split}
    return [word for flag, value in given.items() if value is not None for word in (flag, value)]


def add_override_flag(parser: Any) -> None:
    """Add the flag that overrides a model file's metadata."""
    parser.flag(
        "--override-kv -okv KEY=TYPE:VALUE ...",
        "metadata that takes the place of the model file's own, of type int, float, bool or str; several are separated by "
        "commas; without TYPE the value is read as what the file has there; a key that begins with a dot is one of the model's "
        "architecture, as in .rope.scaling.factor=4",
    )


def overrides_of(args: argparse.Namespace) -> dict[str, Scalar | Untyped]:
    """The metadata of all `--override-kv` flags, of one key the last. Raises OptionError: it is malformed."""
    return {key: value for text in args.override_kv for key, value in parse_overrides(text)}


def override_words(args: argparse.Namespace) -> list[str]:
    """`--override-kv` as it was given, for another process."""
    return [word for text in args.override_kv for word in ("--override-kv", text)]


def load_engine(
    args: argparse.Namespace, spec_type: Sequence[str], draft_model: str | None, progress: Progress | None = None
) -> Engine:
    """Load the model of the flags, and show the progress of that, or report it to `progress`.

    A command without flags of drafters loads none. Errors are those of `Engine.load`.
    """
    from augury.engine.engine import Engine

    configure_logging(verbosity=args.verbose, is_quiet=args.quiet)
    with _paused_gc(), ProgressDisplay() if progress is None else nullcontext(progress) as shown:
        speculation = _speculation(args, spec_type, draft_model, shown) if "spec_type" in args else {"spec_type": "none"}
        engine = Engine.load(
            args.model,
            **{name: getattr(args, name) for name in _AS_NAMED},
            **speculation,
            memory_options=drafter_flags.memory_options(args),
            max_queue=getattr(args, "max_queue", None),
            n_ctx=args.ctx_size,
            slots=args.parallel,
            override_kv=overrides_of(args),
            lora=adapters_of(args),
            placement=placement_of(args),
            progress=shown,
        )
    if args.verbose:
        show_configuration(engine)
        say(f"loaded in {engine.load_s:.2f} s")
    return engine


def _speculation(
    args: argparse.Namespace, spec_type: Sequence[str], draft_model: str | None, progress: Progress
) -> dict[str, Any]:
    in_use = drafter_flags.names_in_use(spec_type or ("auto",), args.registry)
    rest, limits = drafter_flags.split_draft_limits(spec_type, args.registry)
    n_max, n_min = limits.get("draft_max", args.draft_max), limits.get("draft_min", args.draft_min)
    if n_min > n_max > 0:
        names = args.typed.get("draft_min", "n_min"), args.typed.get("draft_max", "--draft-max")
        raise OptionError(f"{names[0]} is {n_min}, expected at most {names[1]}, which is {n_max}")
    if draft_model and not drafter_flags.takes_draft_model(in_use, args.registry, None):
        in_use += filter(None, [drafter_flags.drafter_of_model(args.registry, draft_model, progress)])
    if spec_type == args.spec_type:  # or else the command loads one drafter after the other, and has said it of all
        drafter_flags.leave_out_unused(args, in_use)
    return {
        **{name: getattr(args, name) for name in _OF_SPECULATION},
        "spec_type": rest,
        "draft_model": draft_model,
        "spec_options": drafter_flags.drafter_options(args, in_use),
        "draft_max": n_max,
        "draft_min": n_min,
    }


def load_texts(
    args: argparse.Namespace, template: str | None, progress: Progress
) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """The tokenizer and chat template of the flags' model, without its weights; `template` takes the place of its own."""
    from augury.text.chat_template import ChatTemplate

    loader = Loader(args.registry, make_backend(args.registry, args.backend), progress, {args.model: overrides_of(args)})
    file, tokenizer = loader.open(args.model), loader.load_tokenizer(args.model)
    try:
        if template is not None:
            return tokenizer, ChatTemplate(template, tokenizer, parse_special=args.parse_special)
        return tokenizer, loader.load_template(file, tokenizer, parse_special=args.parse_special)
    finally:
        loader.close_files()


def memory_needed(args: argparse.Namespace, progress: Progress) -> int:
    """The bytes of the CPU's memory that the model of the flags and its prompts will take at most; its file is fetched."""
    backend = make_backend(args.registry, args.backend)
    with open_model(args.model, args.registry, progress, overrides_of(args)) as file:
        plan = plan_of(file, args.registry)
        n_ctx = context_size(args.ctx_size, plan.n_ctx_train)
        options = ModelOptions(args.parallel, n_ctx, args.threads, args.cache_type_k, args.cache_type_v, args.draft_max)
        found = sum(line.n_bytes for line in backend.memory_needed(file, plan, options) if line.device == CPU)
    if args.model_draft is not None:
        found += open_model(args.model_draft, args.registry, progress).n_bytes
    return found + n_bytes_for_prompts(args.cache_ram, found)


@contextmanager
def _paused_gc() -> Iterator[None]:
    """Keep Python from looking for garbage while a model is loaded, and later among its objects, which would take 0.1 s."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def drafter_of_mtp(args: argparse.Namespace) -> str | None:
    """The drafter of layers that predict further tokens, or None if the model's file has none that are computed here."""
    drafters = [name for name, drafter in args.registry.drafters.items() if drafter.traits.uses_mtp]
    if not drafters or placement_words(args):
        return None
    with suppress(AuguryError):  # the engine reports the error
        if make_backend(args.registry, args.backend).computes_mtp:
            with open_model(args.model, args.registry, Progress(), overrides_of(args)) as file:
                return drafters[0] if plan_of(file, args.registry).mtp else None
    return None


@contextmanager
def loaded_model(args: argparse.Namespace, n_ctx: int) -> Iterator[tuple[Model, str]]:
    """Load the model alone, with one slot, report its backend, and close it afterwards. Raises AuguryError: as loading does."""
    if args.lora:
        raise OptionError("--lora: this command measures a model without adapters; leave it out")
    configure_logging(verbosity=args.verbose)
    backend = make_backend(args.registry, args.backend)
    options = ModelOptions(1, n_ctx, args.threads, args.cache_type_k, args.cache_type_v, placement=placement_of(args))
    with ProgressDisplay() as progress:
        loader = Loader(args.registry, backend, progress, {args.model: overrides_of(args)})
        try:
            model = loader.load(args.model, options, purpose="bench").model
            loader.close_files()
            progress.close()
            yield model, loader.backends[0].title
        finally:
            loader.close()
