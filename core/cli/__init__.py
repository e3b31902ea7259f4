"""The command line `augury`, and the parts of commands: flags, loading, prompts, tables and output."""

from augury.cli.drafter_flags import (
    add_option_flag as add_option_flag,
    drafter_of_model as drafter_of_model,
    drafter_options as drafter_options,
    flag_of as flag_of,
    leave_out_unused as leave_out_unused,
    names_in_use as names_in_use,
    takes_draft_model as takes_draft_model,
    warn_of_synthetic as warn_of_synthetic,
)
from augury.cli.foreign_flags import FOREIGN_FLAGS_IN_SERVE as FOREIGN_FLAGS_IN_SERVE
from augury.cli.log_output import configure_logging as configure_logging
from augury.cli.model_flags import (
    FIRST_FLAGS as FIRST_FLAGS,
    add_cache_flags as add_cache_flags,
    add_model_flags as add_model_flags,
    drafter_of_mtp as drafter_of_mtp,
    load_engine as load_engine,
    load_texts as load_texts,
    loaded_model as loaded_model,
    memory_needed as memory_needed,
    override_words as override_words,
    overrides_of as overrides_of,
    placement_words as placement_words,
)
from augury.cli.parser import (
    Parser as Parser,
    converted as converted,
    count as count,
    counts as counts,
    expecting as expecting,
)
from augury.cli.progress import ProgressDisplay as ProgressDisplay
from augury.cli.prompts import (
    Prompt as Prompt,
    add_prompt_flags as add_prompt_flags,
    prompt_of_line as prompt_of_line,
    prompts_of_lines as prompts_of_lines,
    read_prompts as read_prompts,
)
from augury.cli.report import (
    align_rows as align_rows,
    as_json as as_json,
    check_page as check_page,
    fold as fold,
    print_json as print_json,
    print_lines as print_lines,
    say as say,
)
from augury.cli.request_flags import (
    add_sampling_flags as add_sampling_flags,
    add_template_flags as add_template_flags,
    request_params as request_params,
    template_of as template_of,
    use_template as use_template,
)
from augury.cli.text_file import check_writable as check_writable, numbered_lines as numbered_lines, read_text as read_text
from augury.loader import plan_of as plan_of
from augury.memory_limit import n_bytes_for_prompts as n_bytes_for_prompts

globals()["__all__"] = [name for name, each in vars().items() if name[0] != "_" and type(each).__name__ != "module"]
