# ruff: noqa: INP001 - a script, not a module
"""Writes docs/options.md from what plugins and commands declare: python docs/options.py."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

import attrs

from augury.cli.command_line import make_parser
from augury.cli.drafter_flags import flag_of
from augury.cli.foreign_flags import FOREIGN_FLAGS
from augury.engine.params import RequestParams
from augury.engine.request import Request
from augury.options import options_of
from augury.registry import Registry
from augury.sampling import SamplingParams, sampling_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from augury.options import Option

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Options

An option can be set by a flag, in the configuration string of `--spec-type` (drafters), and often by a parameter of a request.
This page is written by `make docs`, and a test compares it with what plugins and commands declare.

## Drafters and other plugins

`--spec-type` takes `name:key=value,key=value;name`. Names without options may be separated by commas, too, which need no
quotation marks in a shell: `suffix,recycle` is `suffix;recycle`, and so `augury tune` prints it. Each key is a flag as well,
`--spec-NAME-KEY`, and the aliases below mean the same, as keys too: `ngram_size_n` for `--spec-ngram-size-n`. An alias that no
drafter in use has is ignored with a line that says so. `n_max` and `n_min` of one drafter alone are `--draft-max` and
`--draft-min` where it has no such options. `outer(name:key=value)` is a drafter that wraps others. `--memory` takes one name in
the same form, and its flags are `--memory-NAME-KEY`.

What is marked *per request* may be sent with a request: `{"speculative": {"draft-model": {"p_min": 0.5}}}`; every request may
also send `n_max`, `n_min`, `p_min`, which is for those drafters that have it, and a `type`: `"none"` or some of the drafters
that were loaded. `{"speculative": false}`, in Python `speculative=False`, is short for `"type": "none"`. llama.cpp's spelling
`{"speculative.n_max": 8}` means the same as `{"speculative": {"n_max": 8}}`.
"""

SAMPLING = """\
## Sampling

Names of `Engine.generate`; the flag of `top_k` is `--top-k`, and so on.
"""

BIAS = """
`logit_bias` maps token ids to what is added to their logits; `-l 15043-inf` forbids a token. `samplers`
lists the samplers in the order in which they are applied, by default
`["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]`, llama.cpp's order; those left
out are not applied. `infill`, for code between a prefix and a suffix, is applied only if it is named: it ends an answer when
the model is in doubt, and drops improbable tokens. Greedy choice looks at bias, `penalties` and `dry` alone. With `mirostat`
the temperature is applied and then Mirostat, and no other sampler, as in llama.cpp. `dry_sequence_breakers` lists texts that
no repetition spans, by default `["\\n", ":", "\\"", "*"]`. `seed_offset` skips as many of the seed's random numbers, one per
token: a text that was cut goes on as it would have; `mirostat_mu` is the surprise that Mirostat allows of its next token.
"""

REQUEST = """
## Requests

What `Engine.submit`, `generate`, `chat`, `stream` and `astream` take beside sampling and a prompt; so does a line of JSON
for `augury run -f`.

{parameters}

A result's `finish_reason` is `stop` (an end token or a stop text), `length` (`max_tokens`), `context` (it is full) or
`cancelled`. In Python `submit`, `generate` and `chat` also take `n`: so many [answers](library.md#four-ways-to-ask), with the
seeds `seed`, `seed + 1`, ...

With `context_shift` a full context does not end the text. After the first `n_keep` tokens, `n_discard` tokens or half of the
rest are left out, and the text goes on exactly as a request would whose prompt is what is left, because that is processed
again; llama.cpp moves the old keys and values instead. `n_shifts` and `n_discarded` in the statistics count it.
"""

SERVE = """
Sampling flags are the defaults of requests that say nothing else. `-np` is 4 here. See [server.md](server.md).
"""

BENCH = """
Here `-p` and `-n` count tokens, as in llama-bench. See [benchmarks.md](benchmarks.md).
"""

LEARN = """
`-f` takes texts to learn from, or folders of them. The flags of the model, of drafters and of sampling are those of `run`, and
`-np` is 8 here. See [learn.md](learn.md).
"""

FOREIGN = """
## Flags of llama.cpp, ik_llama.cpp and vLLM

Command lines of `llama-cli`, `llama-server`, `llama-speculative-simple` and of ik_llama.cpp may be pasted: `run`, `chat`,
`serve`, `bench drafters` and `tune` know all their flags (names from llama.cpp b11434, `common/arg.cpp`, and ik_llama.cpp
8337e4c, `common/common.cpp`). Those that augury has are in the tables above, under the same names. As there, `--top_k` is
`--top-k`, and short flags take no value without a space: `-ngl` is one flag. A value may also follow `=`. The environment
variables `LLAMA_ARG_*` and `LLAMA_API_KEY` are not read, and a line says so. Of `vllm serve` the usual flags are known.

Three are meant differently on purpose: `-c` is the context of one sequence, not of all together; `--spec-synth-rates` takes
the chance of each token where all before it were accepted, not of all up to it; `--spec-synth-len` counts accepted tokens of an
endless draft without the model's own.
"""


def page(registry: Registry) -> str:
    """The whole page."""
    parser = make_parser(registry)
    flags = {name: [each for each in command._actions if each.option_strings] for name, command in _commands(parser)}  # noqa: SLF001
    shared = {flag for action in flags["run"] for flag in action.option_strings} - {"--json"}
    parts = [HEAD]
    names: dict[tuple[str, type], list[str]] = {}
    for record in registry.records:
        names.setdefault((record.kind, record.plugin.options_class), []).append(record.name)
    parts += [text for (kind, options_class), same in names.items() for text in _plugins(same, kind, options_class)]
    parts += [SAMPLING, _options(sampling_options().values()), BIAS, REQUEST.replace("{parameters}", _parameters())]
    parts += ["## Flags of `augury run`\n", _flags(flags["run"])]
    parts += ["\n`chat`, `bench drafters` and `tune` take the same, without `-np`; `chat` and `serve` take no prompts.\n"]
    tails = {"serve": SERVE, "bench passes": BENCH, "learn": LEARN}
    for name in ("serve", *(name for name in flags if name.startswith("bench ")), "tune", "learn"):
        own = [action for action in flags[name] if not set(action.option_strings) <= shared]
        parts += [f"## Flags of `augury {name}`\n", _flags(own), tails.get(name, "")]
    parts += [FOREIGN, *_foreign("same as", "These are short for others", "the same as")]
    parts += _foreign(
        "ignored", "These change no output; a command without a flag of that name accepts them with a line that says so", "why"
    )
    parts += _foreign(
        "refused", "These are errors in a command without a flag of that name, and say what to use instead", "instead"
    )
    parts += ["\n`chat` ignores `-cnv` and `-i`."]
    parts += [
        "`serve` ignores `--embedding`, `--ui` and `--threads-http`, too, refuses `--skip-chat-parsing`, and takes vLLM's",
        "`--served-model-name` for `--alias`.",
    ]
    return "\n".join(part for part in parts if part)


def _commands(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command with its parser, those of a command by both words."""
    for action in parser._actions:  # noqa: SLF001 - argparse offers no other way
        if action.nargs == argparse.PARSER and action.choices is not None:
            for name, command in dict(action.choices).items():
                yield f"{prefix}{name}", command
                yield from _commands(command, f"{prefix}{name} ")


def _plugins(names: Iterable[str], kind: str, options_class: type) -> Iterator[str]:
    """The section of plugins that share their options."""
    options = options_of(options_class)
    if options:
        yield f"### {', '.join(f'`{name}`' for name in names)} ({kind})\n"
        yield _options(options.values())
        yield "\n" + "".join(f"* `{option.name}`: {notes}\n" for option in options.values() if (notes := _notes(option)))


def _options(options: Iterable[Option]) -> str:
    return "| option | default | meaning |\n|---|---|---|\n" + "\n".join(
        f"| `{option.name}` | {_cell(_default(option))} | {_cell(option.help)} |" for option in options
    )


def _parameters() -> str:
    """The parameters of requests, but those of sampling."""
    types, sampling = get_type_hints(RequestParams, include_extras=True), attrs.fields_dict(SamplingParams)
    defaults = {
        each.name: "" if each.default in (None, (), frozenset()) else str(each.default).lower()
        for each in attrs.fields(Request)
    }
    rows = [
        f"| `{name}` | {defaults.get(name, '')} | {_cell(kind.__metadata__[0])} |"
        for name, kind in types.items()
        if name not in sampling
    ]
    return "| parameter | default | meaning |\n|---|---|---|\n" + "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")  # which would end it, in code as well


def _default(option: Option) -> str:
    text = "" if option.default is None else str(option.default)
    return text if re.fullmatch(r"[\w .-]*", text) else f"`{text}`"  # a grammar holds what Markdown would read


def _notes(option: Option) -> str:
    notes = [option.range, "|".join(option.choices)]
    if option.aliases:
        notes.append("also " + ", ".join(f"`{flag_of(alias)}`" for alias in option.aliases))
    if option.is_per_request:
        notes.append("per request")
    return "; ".join(note for note in notes if note)


def _flags(actions: Iterable[argparse.Action]) -> str:
    rows = []
    for action in actions:
        meaning = "see the drafter's option above" if action.help == argparse.SUPPRESS else str(action.help)
        flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
        rows.append(f"| {flags} | {_cell(meaning.replace('%%', '%'))} |")
    return "| flags | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _foreign(kind: str, title: str, heading: str) -> Iterator[str]:
    by_text: dict[str, list[str]] = {}
    for flag in FOREIGN_FLAGS.values():
        if flag.kind == kind:
            by_text.setdefault(flag.text.replace("{}", "VALUE"), []).append(f"`{flag.name}`")
    yield f"\n{title}:\n\n| flags | {heading} |\n|---|---|"
    for text, names in by_text.items():
        yield f"| {', '.join(names)} | {f'`{text}`' if kind == 'same as' else text} |"


if __name__ == "__main__":
    PAGE.write_text(page(Registry.discover()))
