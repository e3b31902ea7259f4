"""Every command of augury's in the docs is one that its parser takes: no flag is misspelt, gone, or without its value."""

import re
import shlex
from pathlib import Path

import pytest

from augury.cli.command_line import make_parser
from augury.errors import AuguryError
from augury.registry import Registry

ROOT = Path(__file__).parents[2]
REGISTRY = Registry.discover()


def commands(page):
    """The words of each command in a page's blocks for a shell, up to a pipe or the like."""
    for block in re.findall(r"^```(?:sh|console)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:sudo )?(?:\S*/bin/)?augury (.*)", line)
            if found is not None:
                lexer = shlex.shlex(found[1], posix=True, punctuation_chars="|<>&;")
                lexer.whitespace_split = True
                words = list(lexer)
                yield words[: next((i for i, word in enumerate(words) if set(word) <= set("|<>&;")), None)]


PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if list(commands(page))]


def is_taken(words):
    try:
        make_parser(REGISTRY, words).parse_args(words)
    except SystemExit as end:
        return not end.code  # 0 of --help and the like
    except AuguryError:
        return False
    return True


def test_a_flag_that_is_misspelt_is_seen():
    assert not is_taken(["run", "smollm2", "--spec-typ", "auto"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_parser_takes_every_command_of_a_page(page, capsys):
    assert [words for words in commands(page) if not is_taken(words)] == [], capsys.readouterr()


def test_the_pages_have_commands():
    assert len(PAGES) > 8
    assert sum(len(list(commands(page))) for page in PAGES) > 60
