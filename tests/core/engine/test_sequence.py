"""What goes wrong in one request stays in it: the others in the same passes go on to the same tokens."""

import numpy as np
import pytest
from support import vocabularies
from support.more_toys import registry_with_toys
from support.toys import ScriptedDrafter, toy_engine

from augury.engine.sampler import Sampler
from augury.errors import ModelFileError, OptionError
from augury.interfaces import Drafter, DrafterTraits
from augury.speculation.verification import RULES
from augury.text.tokenizer import load_tokenizer
from augury.types import Draft

N = 12
WAYS = {
    "greedy": {"temperature": 0.0},
    "greedy with a penalty": {"temperature": 0.0, "repeat_penalty": 1.1},
    "sampled": {"temperature": 0.9, "seed": 3},
    "sampled of all": {"temperature": 0.9, "seed": 3, "top_k": 0, "min_p": 0.0, "logprobs": 2},
}
TROUBLES = {"one NaN": [np.nan], "all NaN": [np.nan] * 16, "infinite": [1.0, np.inf], "forbids all": [-np.inf] * 16}
PROMPTS = [[1, 2], [3], [4, 5, 6]]


class Trees(Drafter):
    """Drafts the best continuation and a wrong branch beside each of its tokens."""

    name = "trees"

    def __init__(self, model):
        super().__init__(None, None)
        self.model = model

    def draft(self, history, limit):
        tokens, parents, text, last = [], [], history.tolist(), -1
        for _ in range(limit // 2):
            with np.errstate(invalid="ignore"):
                text.append(int(np.argmax(self.model.logits(np.array(text)))))
            tokens += [(text[-1] + 1) % 16, text[-1]]
            parents += [last, last]
            last = len(tokens) - 1
        return Draft(tokens, parents)


class ToldTrees(Trees):
    """Wants the best tokens of each row, of which the first is then chosen."""

    traits = DrafterTraits(n_top=3)


DRAFTERS = {
    "no drafts": None,
    "chains": lambda model: ScriptedDrafter(model, [(3, 1), (5, 0), (0, 2)]),
    "trees": Trees,
    "told trees": ToldTrees,
}


def poison(engine, trouble, is_sick):
    """Put `trouble` into the logits after the texts that `is_sick`."""
    model = engine._worker._loop._context.model
    healthy = model.logits

    def logits(tokens, **how):
        values = healthy(tokens, **how)
        if is_sick(tuple(np.asarray(tokens).tolist())):
            values[: len(trouble)] = trouble
        return values

    model.logits = logits


@pytest.mark.sample(28)
@pytest.mark.parametrize(("way", "verify"), [*((way, "match") for way in WAYS), ("sampled", "rejection")])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("n_good", [0, 7])
def test_a_row_that_is_not_finite_ends_the_request_whose_row_it_is(verify, drafter, trouble, way, n_good):
    with toy_engine() as engine:
        plain = [engine.generate(prompt, max_tokens=N, **WAYS[way]).tokens for prompt in PROMPTS]
    with toy_engine(slots=3, drafter=DRAFTERS[drafter], rule=RULES[verify]) as engine:
        sick = len(PROMPTS[1]) + n_good
        poison(engine, TROUBLES[trouble], lambda text: text[0] == PROMPTS[1][0] and len(text) >= sick)
        runnings = [engine.submit(prompt, max_tokens=N, **WAYS[way]) for prompt in PROMPTS]
        pieces = []
        with pytest.raises(ModelFileError, match=f"logits after {sick} tokens are not finite"):
            pieces.extend(runnings[1])
        with pytest.raises(ModelFileError, match="not finite"):
            runnings[1].result()
        results = [runnings[i].result() for i in (0, 2)]
        again = engine.generate(PROMPTS[0], max_tokens=N, **WAYS[way])
    assert len(pieces) == n_good
    assert all(piece.drafter is None for piece in pieces[-1:]), "the last token of a round counts as the target's own"
    if verify == "match":
        assert [piece.token for piece in pieces] == list(plain[1][:n_good])
        assert [result.tokens for result in results] == [plain[0], plain[2]]
        assert again.tokens == plain[0]


@pytest.mark.parametrize("drafter", ["chains", "trees", "told trees"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_that_a_rejection_leaves_out_do_not_matter(drafter, way):
    with toy_engine() as engine:
        plain = engine.generate([1, 2], max_tokens=N, **WAYS[way])
    texts = {(1, 2, *plain.tokens[:n]) for n in range(N)}
    with toy_engine(drafter=DRAFTERS[drafter]) as engine:
        poison(engine, [np.nan], lambda text: text not in texts)
        result = engine.generate([1, 2], max_tokens=N, **WAYS[way])
    assert result.tokens == plain.tokens
    assert [piece.logprob for piece in result.pieces] == [piece.logprob for piece in plain.pieces]
    assert result.stats.n_drafted > result.stats.n_accepted


@pytest.mark.parametrize(("of", "name"), [("sampler", "_drawn_from"), ("_text", "push"), (None, "_append")])
def test_an_error_in_what_one_request_emits_ends_it_alone(of, name):
    def fail(*_, **__):
        raise RuntimeError("broken")

    def add(sequence):
        if sequence.request.prompt[0] == 3:
            setattr(getattr(sequence, of) if of else sequence, name, fail)
        queue(sequence)

    summaries = []
    observers = (None, lambda **seen: summaries.append(seen["summary"]))
    params = {"max_tokens": N, "seed": 1}
    with toy_engine(slots=2, drafter=DRAFTERS["chains"], observers=observers) as engine:
        plain = engine.generate([1, 2], **params)
        loop = engine._worker._loop
        queue, loop.add = loop.add, add
        broken, other = engine.submit([3], **params), engine.submit([1, 2], **params)
        assert other.result().tokens == plain.tokens
        with pytest.raises(RuntimeError, match="broken"):
            broken.result()
    assert sorted(summary.n_emitted for summary in summaries) == [0, N, N]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("way", WAYS)
def test_rows_beyond_the_tokenizer_s_vocabulary_are_never_chosen(way, drafter):
    tokens = [chr(ord("a") + i) for i in range(12)]
    tokenizer = load_tokenizer(
        vocabularies.tiny(tokens=tokens, token_type=None, merges=[], bos_token_id=None, eos_token_id=None)
    )
    answers = []
    for trouble in ([np.inf], [50.0], [np.nan], [-np.inf]):
        with toy_engine(slots=2, tokenizer=tokenizer, drafter=DRAFTERS[drafter]) as engine:
            model = engine._worker._loop._context.model
            healthy = model.logits
            model.logits = lambda tokens, healthy=healthy, trouble=trouble, **how: np.append(
                healthy(tokens, **how)[:12], trouble * 4
            )
            first = engine.submit([1, 2], max_tokens=N, **WAYS[way])
            for refused in ({"logit_bias": {12: 100.0}}, {"prompt": [12]}):
                with pytest.raises(OptionError, match="token 12, the vocabulary has tokens 0 to 11"):
                    engine.submit(**{"prompt": [3], "max_tokens": N, **WAYS[way]} | refused)
            result = first.result()
        assert max(result.tokens) < 12
        assert len(result.text) == N
        answers.append([(piece.token, piece.logprob, piece.top_logprobs) for piece in result.pieces])
    assert answers == [answers[0]] * 4


@pytest.mark.parametrize("way", WAYS)
def test_tokens_that_the_file_suppresses_are_never_chosen(way):
    tokens = {"tokens": [chr(ord("a") + i) for i in range(17)], "token_type": None, "merges": []}

    def answer(*suppressed):
        found = {**tokens, "suppress_tokens": np.array(suppressed, np.int32), "bos_token_id": None, "eos_token_id": None}
        with toy_engine(tokenizer=load_tokenizer(vocabularies.tiny(**found))) as engine:
            return engine.generate([1, 2], max_tokens=N, **WAYS[way]).tokens

    plain = answer()
    assert answer(-1, 16, 17) == plain  # the model has 16, the tokenizer 17
    assert plain[0] not in answer(plain[0])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_first_token_of_each_round_says_how_many_were_drafted(drafter):
    with toy_engine(drafter=DRAFTERS[drafter]) as engine:
        result = engine.generate([1, 2], max_tokens=N, temperature=0.0)
    told = [piece.n_drafted for piece in result.pieces]
    assert [n for n in told if n is not None] == [0, *result.stats.draft_lengths]
    followed = [piece.drafter is not None for piece in result.pieces[:-1]]  # a round goes on after a drafted token
    assert [n is None for n in told] == [False, *followed]


@pytest.mark.parametrize("drafter", [None, DRAFTERS["chains"]])
def test_rejection_draws_each_token_by_its_own_numbers(drafter, monkeypatch):
    places, uniforms = [], Sampler.uniforms

    def noted(self, index):
        places.append(index)
        return uniforms(self, index)

    monkeypatch.setattr(Sampler, "uniforms", noted)
    with toy_engine(drafter=drafter, rule=RULES["rejection"]) as engine:
        result = engine.generate([1, 2], max_tokens=40, **WAYS["sampled"])
    assert list(dict.fromkeys(places)) == list(range(40))
    assert drafter is None or result.stats.n_accepted > 2


class Drawn(Drafter):
    """Draws drafts of four tokens, each token as probable as any other."""

    name = "drawn"

    def __init__(self, model):
        super().__init__(None, None)
        self.rng, self.n_vocab = np.random.default_rng(1), model.info.n_vocab

    def draft(self, history, limit):
        k = min(limit, 4)
        rows = np.full((k, self.n_vocab), 1 / self.n_vocab, np.float32)
        return Draft(self.rng.integers(self.n_vocab, size=k), probabilities=rows)


@pytest.mark.parametrize(
    ("how", "looks_ahead"), [({}, True), ({"mirostat": 2}, False), ({"constraint": "toy-residues:modulus=2"}, False)]
)
def test_blocks_are_verified_ahead_of_what_is_emitted_unless_something_follows_the_text(how, looks_ahead, monkeypatch):
    asked, distribution = [], Sampler.distribution

    def noted(self, logits, row, history, index):
        asked.append(history[len(history) - index :].tolist())
        return distribution(self, logits, row, history, index)

    monkeypatch.setattr(Sampler, "distribution", noted)
    with toy_engine(drafter=Drawn, rule=RULES["rejection"], registry=registry_with_toys()) as engine:
        result = engine.generate([1, 2], max_tokens=40, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=3, **how)
    assert result.stats.n_accepted > 2
    emitted = list(result.tokens)
    if looks_ahead:
        assert any(text != emitted[: len(text)] for text in asked)
    else:
        assert asked == [emitted[:i] for i in range(40)]
