"""Errors, by the person who can mend them; every message says what was found, what was expected and what to do."""

from __future__ import annotations

from typing import Any


class AuguryError(Exception):
    """Any failure that augury foresees; the command line prints its message and exits with `exit_code`."""

    exit_code = 1


class OptionError(AuguryError):
    """An option, flag or request field is unknown or out of range."""

    exit_code = 2


class PluginError(AuguryError):
    """A plugin is missing, ambiguous, broken, or written for another version of the plugin API."""


class ModelFileError(AuguryError):
    """A model file cannot be read: truncated, malformed, inconsistent or incomplete."""


class UnsupportedError(AuguryError):
    """The file or request is valid, but asks for something that augury or this machine cannot do."""


class CapacityError(AuguryError):
    """A request needs more context, memory or room in the queue than there is."""


class PromptTooLongError(CapacityError):
    """A prompt has more tokens than a sequence can use.

    Attributes:
        n_prompt: Tokens of the prompt, or how many it has at least.
        n_ctx: Tokens that a sequence can use.
    """

    def __init__(self, n_prompt: int, n_ctx: int, *, is_least: bool = False) -> None:
        super().__init__(
            f"the prompt is too large: it has {'at least ' if is_least else ''}{n_prompt} tokens, which exceeds the available "
            f"context size of {n_ctx}; shorten it or load the model with a larger context (-c, n_ctx)"
        )
        self.n_prompt, self.n_ctx = n_prompt, n_ctx

    def __reduce__(self) -> Any:  # for another process, which is told the message
        return type(self).__new__, (type(self), *self.args), vars(self)


class LostDeviceError(AuguryError):
    """A device that computes layers is gone: passes fail until `Model.regain`, and its slots are empty."""


class QueueFullError(CapacityError):
    """As many requests wait for a slot as may."""
