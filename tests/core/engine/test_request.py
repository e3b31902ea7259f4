"""What a request may ask for, on an engine: when its text ends, and what its result holds."""

import numpy as np
import pytest
from support import vocabularies
from support.toys import ScriptedDrafter, ToyModel, toy_engine

from augury.errors import OptionError
from augury.text.chat_template import ChatTemplate
from augury.text.tokenizer import load_tokenizer

V, EOS = 16, 15
TOKENS = [*"abcdefghijklm", "Ã", "©", "<|im_end|>"]  # 13 and 14 spell the two bytes of é
TOKENIZER = load_tokenizer(
    vocabularies.tiny(tokens=TOKENS, token_type=[*[1] * EOS, 3], merges=[], bos_token_id=None, eos_token_id=EOS)
)
GREEDY = {"temperature": 0.0}
DRAFTERS = [None, lambda model: ScriptedDrafter(model, [(3, 1), (0, 2), (5, 0)])]
PROMPTS = [[3], [1, 2], [7, 7, 7], [9, 1], [0, 3]]  # after the last one comes the end token


def test_tools_and_names_reach_the_chat_template():
    source = "{% if thinking %}{{ tools[0].name }}{% endif %}{{ messages[0].content }}"
    asked = {"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "bc"}], "max_tokens": 1, "echo": True}
    with toy_engine(tokenizer=TOKENIZER) as engine:
        engine.chat_template = ChatTemplate(source, TOKENIZER)
        results = [engine.generate(**asked, chat_template_kwargs={"thinking": is_on}) for is_on in (True, False)]
        assert [result.prompt_text for result in results] == ["bca", "a"]
        with pytest.raises(OptionError, match="are for chat templates; give messages instead of a prompt"):
            engine.generate("a", tools=asked["tools"])


@pytest.fixture(params=DRAFTERS, ids=["no drafts", "drafts"])
def engine(request):
    with toy_engine(tokenizer=TOKENIZER, drafter=request.param) as made:
        yield made


def plain(prompt, ends, n, n_early=0, forbidden=()):
    """Plain greedy decoding that ends after `ends`, which are not among the first `n_early` tokens."""
    found = []

    def choose(row):
        row = row.copy()
        row[[*forbidden, *(ends if len(found) < n_early else ())]] = -np.inf
        found.append(int(row.argmax()))
        return found[-1]

    tokens = ToyModel().plain(prompt, n, choose)
    stops = [i + 1 for i, token in enumerate(tokens) if token in ends]
    return tokens[: stops[0]] if stops else tokens


@pytest.mark.parametrize("n_early", [0, 1, 9, 30])
@pytest.mark.parametrize("ends", [(), (0, 4)])
def test_end_tokens_end_a_text_and_are_not_chosen_before_min_tokens(engine, ends, n_early):
    lengths = set()
    for prompt in PROMPTS:
        result = engine.generate(prompt, max_tokens=30, min_tokens=n_early, stop_token_ids=ends, **GREEDY)
        expected = plain(prompt, [*ends, EOS], 30, n_early)
        assert list(result.tokens) == expected
        assert result.finish_reason == ("stop" if expected[-1] in (*ends, EOS) else "length")
        lengths.add(len(expected))
    assert len(lengths) > 1 or n_early == 30, "the test must see ends"


def test_an_end_token_of_the_request_ends_it_where_the_model_s_are_ignored(engine):
    params = {"max_tokens": 30, "ignore_eos": True, **GREEDY}
    assert list(engine.generate([3], **params).tokens) == plain([3], [], 30, forbidden=[EOS])
    assert list(engine.generate([3], stop_token_ids=[4], **params).tokens) == plain([3], [4], 30, forbidden=[EOS])
    assert list(engine.generate([3], stop_token_ids=[EOS], **params).tokens) == plain([3], [EOS], 30)


def test_a_text_may_end_with_its_first_token(engine):
    assert engine.generate([0, 3], max_tokens=9, **GREEDY).tokens == (EOS,)


@pytest.mark.parametrize("n_early", [0, 5])
def test_sampled_texts_hold_no_end_token_before_min_tokens(engine, n_early):
    results = [engine.generate([1], max_tokens=20, min_tokens=n_early, seed=seed, temperature=3.0) for seed in range(25)]
    assert (min(len(result.tokens) for result in results) <= 5) == (n_early == 0)
    assert not any(EOS in result.tokens[: max(n_early, len(result.tokens) - 1)] for result in results)


def test_a_stop_text_that_is_complete_before_min_tokens_is_text(engine):
    text = engine.generate([3], max_tokens=20, min_tokens=20, **GREEDY).text
    stop = text[2:4]
    assert engine.generate([3], stop=stop, max_tokens=20, **GREEDY).text == text[: text.find(stop)]
    later = engine.generate([3], stop=stop, min_tokens=4, max_tokens=20, **GREEDY)
    assert later.text == (text[:at] if (at := text.find(stop, 3)) >= 0 else text)


def test_the_reason_tells_a_full_context_from_the_limit(engine):
    params = {"ignore_eos": True, **GREEDY}
    for unlimited in ({}, {"max_tokens": None}, {"max_tokens": -1}, {"max_tokens": 999}):
        result = engine.generate([1, 2], **unlimited, **params)
        assert (result.finish_reason, len(result.tokens)) == ("context", 63)
    for n in (5, 63):
        result = engine.generate([1, 2], max_tokens=n, **params)
        assert (result.finish_reason, len(result.tokens)) == ("length", n)


def test_logprobs_tell_what_each_token_stands_for_by_itself(engine):
    for params in ({"temperature": 0.0}, {"temperature": 2.0, "seed": 2}):
        result = engine.generate([1, 2], max_tokens=40, ignore_eos=True, logprobs=V, **params)
        history = [1, 2]
        for piece in result.pieces:
            row = ToyModel().logits(np.array(history)).astype(np.float32).astype(np.float64)
            expected = row - np.log(np.exp(row).sum())
            assert [each.token for each in piece.top_logprobs] == np.argsort(-row, kind="stable").tolist()
            assert [each.logprob for each in piece.top_logprobs] == pytest.approx(np.sort(expected)[::-1].tolist())
            assert piece.logprob == pytest.approx(expected[piece.token])
            own = {each.token: (each.bytes, each.text) for each in piece.top_logprobs}
            assert piece.bytes == own[piece.token][0]
            assert (own[0], own[EOS]) == ((b"a", "a"), (b"<|im_end|>", "<|im_end|>"))
            assert (own[13], own[14]) == ((b"\xc3", "\ufffd"), (b"\xa9", "\ufffd"))
            history.append(piece.token)
        assert b"".join(piece.bytes for piece in result.pieces).decode(errors="replace") == result.text
    (piece,) = engine.generate([1], max_tokens=1, logprobs=0, **GREEDY).pieces
    assert (piece.bytes is None, piece.top_logprobs) == (False, ())
    (piece,) = engine.generate([1], max_tokens=1, **GREEDY).pieces
    assert (piece.logprob, piece.bytes, piece.top_logprobs) == (None, None, ())


def test_echo_gives_the_prompt_s_tokens_and_text(engine):
    told = engine.generate("abc", max_tokens=1, echo=True)
    assert (told.prompt, told.prompt_text) == ((0, 1, 2), "abc")
    told = engine.generate([0, EOS, 1], max_tokens=1, echo=True)
    assert (told.prompt, told.prompt_text) == ((0, EOS, 1), "a<|im_end|>b")
    told = engine.generate("abc", max_tokens=1)
    assert (told.prompt, told.prompt_text) == (None, None)


def test_a_text_is_evaluated_as_its_tokens_are(engine):
    assert np.array_equal(engine.evaluate("abc"), engine.evaluate([0, 1, 2]))


def test_counts_may_be_written_as_numbers_with_a_point(engine):
    counts = {"max_tokens": 3, "min_tokens": 2, "slot": 0, "top_k": 2, "logprobs": 1, "seed": 5, "speculative": {"n_max": 1}}
    points = {key: {"n_max": 1.0} if isinstance(n, dict) else float(n) for key, n in counts.items()}
    first, second = engine.generate([1], **points), engine.generate([1], **counts)
    assert first.tokens == second.tokens
    assert first.stats.effective == second.stats.effective


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_tokens": -1}, "min_tokens is -1, expected a whole number of at least 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5, expected at most max_tokens, which is 4"),
        ({"max_tokens": -2}, "max_tokens is -2, expected a whole number of at least 1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop_token_ids": [16]}, "stop_token_ids is .16., expected a list of token ids from 0 to 15"),
        ({"stop_token_ids": 3}, "stop_token_ids is 3, expected a list"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"stop_token_ids": "3"}, "stop_token_ids is '3', expected a list"),
        ({"echo": 1}, "echo is 1, expected true or false"),
        ({"samplers": "top_k"}, "samplers is 'top_k', expected a list of names in order"),
        ({"samplers": 5}, "samplers is 5, expected a list"),
        ({"samplers": ["top_k", "top_k"]}, "samplers names 'top_k' twice"),
        ({"samplers": ["tfs"]}, "samplers names 'tfs', which is none of augury's; known: dry, infill"),
        ({"samplers": ["top-k"]}, "did you mean 'top_k'"),
        ({"logit_bias": dict.fromkeys(range(EOS), float("-inf")), "min_tokens": 1}, "leave at least one"),
        ({"on_prompt": 1}, "on_prompt is 1, expected a callable"),
        ({"slot": 0.5}, "slot is 0.5, expected a whole number of at least 0"),
        ({"n_discard": -1}, "n_discard is -1, expected a whole number of at least 0"),
        ({"stop_tokens": [3]}, "no parameter 'stop_tokens'; did you mean 'stop_token_ids'"),
        ({"tool": []}, "no parameter 'tool'; did you mean 'tools'"),
        ({"logit_processors": []}, "did you mean 'logits_processors'"),
        (
            {"zzz": 1},
            "no parameter 'zzz'; known: .*logit_bias, logprobs, lora, max_tokens, messages,.*n_keep, post_sampling_probs",
        ),
    ],
)
def test_what_cannot_be_asked_for_is_refused(engine, params, message):
    with pytest.raises(OptionError, match=message):
        engine.submit([1], **params)
