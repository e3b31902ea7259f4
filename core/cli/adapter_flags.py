"""The flags of adapters (LoRA)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from augury.cli.parser import converted


def add_adapter_flags(group: Any) -> None:
    """Add the flags of adapters, in llama.cpp's words."""
    group.flag(
        "--lora FILE[:SCALE] ...",
        "an adapter (LoRA) that is added to the model, may be repeated; requests may give it another scale (default: 1)",
    )
    group.flag("--lora-scaled FILE:SCALE", "the same, with a scale", _scaled, action="append", dest="lora")
    group.flag("--lora-init-without-apply", "adapters count nothing until a request gives them a scale")


def _scaled(text: str) -> str:
    """A value of `--lora-scaled`; ik_llama.cpp has the scale as a word of its own, which would be read as a prompt here."""
    if ":" not in text:
        raise argparse.ArgumentTypeError("FILE:SCALE")
    return text


def adapters_of(args: argparse.Namespace) -> list[tuple[str, float]]:
    """The adapters of the flags, with their scales; `FILE,FILE` are several."""
    found = []
    for text in (each for flag in args.lora for each in ([flag] if Path(flag).exists() else flag.split(","))):
        path, colon, scale = text.rpartition(":")
        if not colon or Path(text).exists():
            path, scale = text, "1"
        found.append((path, 0.0 if args.lora_init_without_apply else converted("--lora", scale, float)))
    return found
