"""The command line `augury`, and the parts of commands: flags, loading, prompts, tables and output.

The names below are imported when they are first used: a plugin that adds a command does not wait for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from augury.cli.drafter_flags import drafter_of_model, drafter_options, names_in_use, takes_draft_model, warn_of_synthetic
    from augury.cli.foreign_flags import FOREIGN_FLAGS_IN_SERVE
    from augury.cli.log_output import configure_logging
    from augury.cli.model_flags import (
        add_model_flags,
        drafter_of_nextn,
        load_engine,
        loaded_model,
        override_words,
        overrides_of,
        placement_words,
    )
    from augury.cli.option_flags import add_option_flag, flag_of
    from augury.cli.parser import FlagsAction, are_counts, converted, count, counts
    from augury.cli.progress import ProgressDisplay
    from augury.cli.prompts import Prompt, add_prompt_flags, add_template_flag, prompts_of_lines, read_prompts
    from augury.cli.report import print_json, print_lines, say
    from augury.cli.sampling_flags import add_sampling_flags, request_params
    from augury.cli.table import align_rows, fold
    from augury.cli.text_file import check_writable, read_text
    from augury.loader import plan_of

__all__ = [
    "FOREIGN_FLAGS_IN_SERVE",
    "FlagsAction",
    "ProgressDisplay",
    "Prompt",
    "add_model_flags",
    "add_option_flag",
    "add_prompt_flags",
    "add_sampling_flags",
    "add_template_flag",
    "align_rows",
    "are_counts",
    "check_writable",
    "configure_logging",
    "converted",
    "count",
    "counts",
    "drafter_of_model",
    "drafter_of_nextn",
    "drafter_options",
    "flag_of",
    "fold",
    "load_engine",
    "loaded_model",
    "names_in_use",
    "override_words",
    "overrides_of",
    "placement_words",
    "plan_of",
    "print_json",
    "print_lines",
    "prompts_of_lines",
    "read_prompts",
    "read_text",
    "request_params",
    "say",
    "takes_draft_model",
    "warn_of_synthetic",
]

_MODULES = {  # from here
    ".loader": ("plan_of",),
    "drafter_flags": ("drafter_of_model", "drafter_options", "names_in_use", "takes_draft_model", "warn_of_synthetic"),
    "foreign_flags": ("FOREIGN_FLAGS_IN_SERVE",),
    "log_output": ("configure_logging",),
    "model_flags": (
        *("add_model_flags", "drafter_of_nextn", "load_engine", "loaded_model"),
        *("override_words", "overrides_of", "placement_words"),
    ),
    "option_flags": ("add_option_flag", "flag_of"),
    "parser": ("FlagsAction", "are_counts", "converted", "count", "counts"),
    "progress": ("ProgressDisplay",),
    "prompts": ("Prompt", "add_prompt_flags", "add_template_flag", "prompts_of_lines", "read_prompts"),
    "report": ("print_json", "print_lines", "say"),
    "sampling_flags": ("add_sampling_flags", "request_params"),
    "table": ("align_rows", "fold"),
    "text_file": ("check_writable", "read_text"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'augury.cli' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", "augury.cli"), name)
