"""The format `published-head`: folders as the trainers of heads publish them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import FileFormat
from augury.plugins.published_heads.folder import Folder, files_of
from augury.plugins.published_heads.heads import dflash, eagle3
from augury.plugins.published_heads.mtp import mtp, mtp_names

_READERS = {"eagle3": eagle3, "dflash": dflash, "mtp": mtp}
_BY_TYPE = {"eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dspark": "dflash", "mtp": "mtp"}  # speculators' names
_EAGLE3 = (
    *("LlamaForCausalLMEagle3", "LlamaEagle3DraftModel", "Eagle3LlamaForCausalLM", "Eagle3DraftModel", "Eagle3Speculator"),
    *("PEagleDraftModel", "PeagleLlamaForCausalLM", "Qwen3Eagle3Model"),
    *(
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
    ),  # Llama's heads by the names of their targets, as vLLM has them
)
_DFLASH = ("DFlashDraftModel", "DFlash2DraftModel", "DSparkDraftModel", "Qwen3DSparkModel", "Lfm2DSparkDraftModel")
_BY_ARCHITECTURE = dict.fromkeys(_EAGLE3, "eagle3") | dict.fromkeys(_DFLASH, "dflash")


class PublishedHead(FileFormat):
    """Heads, and layers that predict further tokens, in `config.json` and safetensors, or PyTorch's files."""

    name = "published-head"

    @classmethod
    def handles(cls, path: Path) -> bool:
        return bool(files_of(path))

    @classmethod
    def open(cls, path: Path) -> ModelFile:
        from xxhash import xxh3_128_digest

        folder = Folder(path)
        if (kind := _kind_of(folder.config) or ("mtp" if mtp_names(folder) else None)) is None:
            stated = folder.config.get("speculators_model_type") or folder.config.get("architectures")
            known = ", ".join(sorted({*_BY_TYPE, *_BY_ARCHITECTURE}))
            folder.fail(
                f"config.json states {stated!r:.80}, no head of a known kind ({known}); other models are read as GGUF files, "
                "which llama.cpp's convert_hf_to_gguf.py makes"
            )
        head = _READERS[kind](folder)
        folder.check_all_taken()
        if tokens := folder.tokens():
            head.metadata["tokenizer.ggml.tokens"] = tokens
        digest = xxh3_128_digest(folder.head + "\n".join(tokens).encode("utf-8", "surrogatepass"))
        return ModelFile(path, folder.paths, folder.n_bytes, head.metadata, head.tensors, folder.identity, digest)


def _kind_of(config: Mapping[str, Any]) -> str | None:
    """The kind of head, or None: no head, or of a kind that is not known."""
    if (stated := config.get("speculators_model_type")) is not None:
        return _BY_TYPE.get(stated)
    architectures = config.get("architectures") or ()
    if found := next(filter(None, map(_BY_ARCHITECTURE.get, architectures)), None):
        return found
    # the original's heads state the architecture of a whole model
    is_llama = "LlamaForCausalLM" in architectures
    return "eagle3" if is_llama and config.get("draft_vocab_size") and config.get("num_hidden_layers") == 1 else None


@hookimpl
def augury_formats() -> list[type[FileFormat]]:
    """Offer `published-head`."""
    return [PublishedHead]
