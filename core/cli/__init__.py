"""The command line `augury`, and the parts of commands: flags, loading, prompts, tables and output."""

from augury.cli.chat_flags import add_template_flags, template_of, use_template
from augury.cli.drafter_flags import (
    drafter_of_model,
    drafter_options,
    leave_out_unused,
    names_in_use,
    takes_draft_model,
    warn_of_synthetic,
)
from augury.cli.foreign_flags import FOREIGN_FLAGS_IN_SERVE
from augury.cli.log_output import configure_logging
from augury.cli.model_flags import (
    FIRST_FLAGS,
    add_cache_flags,
    add_model_flags,
    drafter_of_mtp,
    load_engine,
    loaded_model,
    memory_needed,
    override_words,
    overrides_of,
    placement_words,
)
from augury.cli.option_flags import add_option_flag, flag_of
from augury.cli.parser import FlagsAction, Parser, are_counts, converted, count, counts
from augury.cli.progress import ProgressDisplay
from augury.cli.prompts import Prompt, add_prompt_flags, prompt_of_line, prompts_of_lines, read_prompts
from augury.cli.report import as_json, print_json, print_lines, say
from augury.cli.sampling_flags import add_sampling_flags, request_params
from augury.cli.table import align_rows, fold
from augury.cli.text_file import check_writable, read_text
from augury.loader import plan_of
from augury.memory_limit import n_bytes_for_prompts

__all__ = [
    "FIRST_FLAGS",
    "FOREIGN_FLAGS_IN_SERVE",
    "FlagsAction",
    "Parser",
    "ProgressDisplay",
    "Prompt",
    "add_cache_flags",
    "add_model_flags",
    "add_option_flag",
    "add_prompt_flags",
    "add_sampling_flags",
    "add_template_flags",
    "align_rows",
    "are_counts",
    "as_json",
    "check_writable",
    "configure_logging",
    "converted",
    "count",
    "counts",
    "drafter_of_model",
    "drafter_of_mtp",
    "drafter_options",
    "flag_of",
    "fold",
    "leave_out_unused",
    "load_engine",
    "loaded_model",
    "memory_needed",
    "n_bytes_for_prompts",
    "names_in_use",
    "override_words",
    "overrides_of",
    "placement_words",
    "plan_of",
    "print_json",
    "print_lines",
    "prompt_of_line",
    "prompts_of_lines",
    "read_prompts",
    "read_text",
    "request_params",
    "say",
    "takes_draft_model",
    "template_of",
    "use_template",
    "warn_of_synthetic",
]
