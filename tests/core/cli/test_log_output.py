"""How -vv shows a draft."""

import logging
from math import log

import pytest

from augury.cli.log_output import TokenWriter, configure_logging
from augury.engine.draft_log import DraftedToken, VerifiedDraft
from augury.types import Token, TokenLogprob

CHOSEN = TokenLogprob(4, log(0.5), b"d")
DRAFT = VerifiedDraft(
    slot=2,
    drafters=("suffix",),
    tokens=(
        DraftedToken(2, b"b", 0.25, TokenLogprob(2, log(0.125), b"b"), is_accepted=True),
        DraftedToken(3, b"\xff", None, CHOSEN, is_accepted=False),
        DraftedToken(5, None, None, None, is_accepted=False),
    ),
    target=CHOSEN,
)


@pytest.fixture(autouse=True)
def _as_before():
    logger = logging.getLogger("augury")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_draft_is_a_table_below_its_line(capsys):
    configure_logging(verbosity=2)
    logging.getLogger("augury.drafts").debug("%s", DRAFT, extra={"draft": DRAFT})
    assert capsys.readouterr().err.splitlines() == [
        "DEBUG augury.drafts slot 2: suffix drafted 3 tokens, 1 accepted",
        "  drafted      p  target      p",
        "  2 'b'    0.250  2 'b'   0.125  accepted",
        "  3 '\N{REPLACEMENT CHARACTER}'           4 'd'   0.500  rejected",
        "  5                              not reached",
        "                  4 'd'   0.500  the target's own",
    ]


def test_other_records_are_lines_from_the_verbosity_on_that_shows_them(capsys):
    logger = logging.getLogger("augury.any")
    for verbosity, is_quiet, expected in ((0, True, []), (0, False, ["WARNING"]), (1, False, ["WARNING", "INFO"])):
        configure_logging(verbosity=verbosity, is_quiet=is_quiet)
        logger.warning("w")
        logger.info("i", extra={"draft": "not one of these"})
        assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == expected


def test_a_record_waits_for_the_end_of_a_line_of_generated_text(capsys):
    configure_logging(verbosity=1)
    writer = TokenWriter(has_tokenizer=True, is_coloured=False)
    for text, expected in (("a", []), ("b\n", ["a", "b"]), ("c", []), ("d", [])):
        writer.write(Token(1, text, None))
        logging.getLogger("augury.any").info(text.strip())
        assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == expected
    writer.end()
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["c", "d"]
