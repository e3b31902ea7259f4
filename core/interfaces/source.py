"""`Source`: where model files come from; `FileFormat`: what is read as if it were one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from attrs import frozen

from augury.files.gguf import ModelFile
from augury.interfaces.plugin import Plugin


class Progress:
    """Called with the progress of a long task; this one shows nothing."""

    def __call__(self, task: str, done: int, total: int) -> None:
        """`done` of `total` units of `task` are done; an unknown `total` is 0."""


@frozen
class StoredModel:
    """A model on this machine: what `-m` takes, and its files, of a split model the first one first."""

    reference: str
    files: tuple[Path, ...]
    is_removable: bool = False


@frozen
class FoundModel:
    """A model that could be fetched: what `-m` takes, and a line about it."""

    reference: str
    about: str


class Source(Plugin, ABC):
    """Where model files come from.

    Attributes:
        is_public: Whether a server's clients, where they may download, may name its models: what it has is everyone's to have.
    """

    is_public: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def handles(cls, reference: str) -> bool:
        """Whether `reference`, as a user typed it, is this source's to resolve."""

    @classmethod
    def names(cls) -> Mapping[str, str]:
        """Short names that it knows, each with a line of description."""
        return {}

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:  # noqa: ARG003 - of those that override it
        """The file (of a split model the first) that `reference` means where it is here already; nothing is downloaded."""
        return None

    @classmethod
    def stored(cls, folder: Path) -> Iterable[StoredModel]:  # noqa: ARG003
        """The models that it has on this machine, whole, in `folder` or a place of its own."""
        return ()

    @classmethod
    def remove(cls, model: StoredModel, folder: Path) -> None:
        """Remove the files of a stored model that is removable."""
        raise NotImplementedError

    @classmethod
    def search(cls, text: str) -> Iterable[FoundModel]:  # noqa: ARG003
        """Models that it could fetch, best first, by a user's words. Raises ModelFileError: it cannot look."""
        return ()

    @classmethod
    def presets(cls, reference: str) -> Path | None:  # noqa: ARG003
        """A file of llama.cpp's presets that a reference stands for in place of one model, downloaded."""
        return None

    @classmethod
    def draft_of(cls, reference: str) -> str | None:  # noqa: ARG003
        """The reference of a smaller model that drafts well for a model, where it knows one."""
        return None

    @classmethod
    @abstractmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:
        """The file (of a split model the first) that `reference` means, downloaded into `folder` unless it is there.

        Nothing is downloaded where HF_HUB_OFFLINE is set. Raises ModelFileError: there is no such model, or it cannot be had
        whole.
        """


class FileFormat(Plugin, ABC):
    """Models in folders that are not GGUF files, read as if they were."""

    @classmethod
    @abstractmethod
    def handles(cls, path: Path) -> bool:
        """Whether a folder is one of this format."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path) -> ModelFile:
        """The model, with the metadata and tensors that an architecture asks for. Raises ModelFileError: it is damaged.

        Raises UnsupportedError: something of it is not understood: it is refused, never computed by halves.
        """
