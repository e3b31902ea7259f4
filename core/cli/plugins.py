"""`augury plugins`: installed plugins, with options, and broken ones or ones that cannot run here."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from attrs import asdict

from augury.cli.drafter_flags import flags_of
from augury.cli.report import align_rows, fold, print_json, print_lines
from augury.devices import CPU, DeviceInfo
from augury.errors import PluginError
from augury.interfaces import Backend, Plugin
from augury.options import options_of
from augury.registry import FunctionRecord, PluginRecord, Registry


def add_parser(subparsers: Any, registry: Registry) -> None:
    """Add the command."""
    told = "List plugins and their options: by the names that --spec-type, --backend and --memory take."
    parser = subparsers.add_parser("plugins", description=told)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a kind, such as drafter, a plugin or a package; all by default"
    )
    parser.flag("--json", "print one JSON object")
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    registry: Registry = args.registry
    records = sorted(registry.records, key=lambda record: (record.kind, record.name))
    functions, broken = registry.functions, registry.broken
    if names := set(args.names):
        records = [each for each in records if names & {each.kind, each.name, each.distribution, *each.plugin.aliases}]
        functions = [each for each in functions if names & {each.kind, each.name, each.distribution}]
        broken = [each for each in broken if names & {each.name, each.distribution}]
        if not (records or functions or broken):
            raise PluginError(f"no plugin, kind or package is called {' or '.join(args.names)}; augury plugins lists all")
    if args.json:
        others = {"functions": list(map(asdict, functions)), "broken": list(map(asdict, broken))}
        print_json({"plugins": [_as_json(record) for record in records], **others})
        return 0
    print_lines(_lines(records, functions))
    print_lines(f"broken: {each.name} of {each.distribution} {each.version}: {each.reason}" for each in broken)
    return 0


def _lines(records: list[PluginRecord], functions: list[FunctionRecord]) -> list[str]:
    rows = [["kind", "name", "distribution", "version", "other names"]]
    rows += [
        [record.kind, record.name, record.distribution, record.version, ", ".join(record.plugin.aliases)] for record in records
    ]
    rows += [[each.kind, each.name, each.distribution, each.version, ""] for each in functions]
    lines = align_rows(rows)
    for record in records:
        if notes := list(_notes(record.plugin)):
            lines += ["", f"{record.kind} {record.name}", *(fold("    ", note, " " * 8) for note in notes)]
    return lines


def _notes(plugin: type[Plugin]) -> Iterator[str]:
    """What a plugin needs and can be told: of a backend what it computes on, of all their options."""
    reason, note, devices = _backend_facts(plugin)
    if reason is not None:
        yield f"cannot run here: {reason}"
    if note is not None:
        yield note
    for device in devices:
        memory = f"{device.n_bytes_free >> 20} of {device.n_bytes >> 20} MiB free"
        yield f"device {device.name}: {device.description}, {memory}"
    for option in options_of(plugin.options_class).values():
        choices = f"one of {', '.join(option.choices)}" if option.choices else ""
        default = "" if option.default is None else f"default: {option.default}"
        facts = "; ".join(text for text in (default, option.range, choices) if text)
        yield f"{option.name}: {option.help}" + (f" ({facts})" if facts else "")


def _backend_facts(plugin: type[Plugin]) -> tuple[str | None, str | None, list[DeviceInfo]]:
    """Why a backend cannot run here; or its note, and the GPUs that it can compute on. Nothing of other plugins."""
    if not issubclass(plugin, Backend):
        return None, None, []
    if (reason := plugin.unavailable_reason()) is not None:
        return reason, None, []
    return None, plugin.note(), [device for device in plugin.devices() if device.name != CPU]  # which needs no naming


def _as_json(record: PluginRecord) -> dict[str, Any]:
    reason, note, devices = _backend_facts(record.plugin)
    options = options_of(record.plugin.options_class).values()
    return {
        "kind": record.kind,
        "name": record.name,
        "aliases": list(record.plugin.aliases),
        "distribution": record.distribution,
        "version": record.version,
        "unavailable": reason,
        "note": note,
        "devices": [
            {"name": each.name, "description": each.description, "bytes": each.n_bytes, "bytes_free": each.n_bytes_free}
            for each in devices
        ],
        "options": [
            {
                "name": option.name,
                "type": option.kind.__name__,
                "default": option.default,
                "help": option.help,
                "range": option.range,
                "choices": list(option.choices),
                "per_request": option.is_per_request,
                "flags": flags_of(record.kind, record.name, option),
            }
            for option in options
        ],
    }
