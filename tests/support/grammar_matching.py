"""Whether an answer is one that a grammar allows, token by token."""

from support import vocabularies

from augury.constraint import ConstraintSession
from augury.engine.shared import Shared
from augury.options import build
from augury.registry import Registry
from augury.text.tokenizer import load_tokenizer

SHARED = Shared()  # llguidance's view of the vocabulary


def with_control_tokens():
    """A vocabulary in which texts of formats are control tokens."""
    found = vocabularies.metadata("smollm")
    names = dict(zip(("<reponame>", "<file_sep>", "<gh_stars>"), ("[TOOL_CALLS]", "<|message|>", "[/THINK]"), strict=True))
    return load_tokenizer(
        vocabularies.changed(found, tokens=[names.get(token, token) for token in found["tokenizer.ggml.tokens"]])
    )


TOKENIZER = with_control_tokens()
PIECES = {TOKENIZER.piece(token): token for token in range(TOKENIZER.n_vocab)}
GRAMMAR = Registry.discover().constraints["grammar"]


def follows(grammar, text):
    """Whether an answer is one that a grammar allows, to its end."""
    session = ConstraintSession(TOKENIZER.n_vocab, TOKENIZER, TOKENIZER.eog, SHARED.get)
    constraint = GRAMMAR(build(GRAMMAR.options_class, {"text": grammar}, "grammar"), session)
    rest = text.encode()
    while rest and not constraint.is_complete:
        allowed = constraint.allowed()
        fits = (n for n in range(min(len(rest), 20), 0, -1) if rest[:n] in PIECES and allowed[PIECES[rest[:n]]])
        if (n := next(fits, None)) is None:
            return False
        constraint.accept(PIECES[rest[:n]])
        rest = rest[n:]
    return not rest and (constraint.is_complete or bool(constraint.allowed()[list(TOKENIZER.eog)].all()))
