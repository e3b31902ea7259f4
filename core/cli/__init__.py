"""The command line `augury`."""

from augury.cli.command_line import main

__all__ = ["main"]
