"""Drafters, a file for each `--spec-type` or pair of similar ones; siblings hold their parts."""

from __future__ import annotations

from collections.abc import Sequence

from augury.drafters.draft_heads import DraftDflash, DraftDspark, DraftEagle3
from augury.drafters.draft_model import DraftModel
from augury.drafters.draft_mtp import DraftMtp
from augury.drafters.forced import Forced
from augury.drafters.ngram_cache import NgramCache
from augury.drafters.ngram_map import NgramMapK, NgramMapK4v
from augury.drafters.ngram_mod import NgramMod
from augury.drafters.ngram_simple import NgramSimple
from augury.drafters.none import NoDrafter
from augury.drafters.prediction import Prediction
from augury.drafters.recycle import Recycle
from augury.drafters.self_spec import SelfSpec
from augury.drafters.suffix import Suffix
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer all of them."""
    return [
        DraftDflash,
        DraftDspark,
        DraftEagle3,
        DraftModel,
        DraftMtp,
        Forced,
        NgramCache,
        NgramMapK,
        NgramMapK4v,
        NgramMod,
        NgramSimple,
        NoDrafter,
        Prediction,
        Recycle,
        SelfSpec,
        Suffix,
    ]


@hookimpl(trylast=True)
def augury_choose(kind: str, names: Sequence[str]) -> str | None:
    """Recommend `suffix`, and `recycle` for text that does not repeat, or else the usual drafter with a model."""
    if kind != "drafter":
        return None
    if "suffix" in names:
        return "suffix;recycle" if "recycle" in names else "suffix"
    return next((name for name in ("draft-mtp", "draft-model") if name in names), None)
