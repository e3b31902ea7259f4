"""`augury eval`: questions are counted as lm-evaluation-harness counts them."""

import json

import numpy as np
import pytest
from support.commands import run

from augury.cli.evaluate import Question, Rate, log_likelihoods, outcomes
from augury.engine.engine import Engine
from augury.errors import AuguryError
from augury.testing.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval") / "tiny.gguf"
    write_tiny_model(path)
    return path


@pytest.fixture(scope="module")
def engine(tiny):
    with Engine.load(tiny, backend="reference", threads=1, n_ctx=64, slots=2, spec_type="none") as loaded:
        yield loaded


@pytest.mark.parametrize("blanks", ["", " "])
def test_a_choice_has_the_log_probabilities_of_its_tokens_after_the_prompt_and_a_space(engine, blanks):
    found = log_likelihoods(engine, f"the sea{blanks}", ["is", "was in"])
    n_prompt = len(engine.tokenize("the sea"))
    for choice, total in zip(["is", "was in"], found, strict=True):
        tokens = engine.score(f"the sea{blanks} {choice}")
        assert total == pytest.approx(sum(token.logprob for token in tokens[n_prompt:]), abs=1e-12)


def test_acc_takes_the_most_probable_choice_and_acc_norm_that_by_letter(engine, monkeypatch):
    monkeypatch.setattr("augury.cli.evaluate.log_likelihoods", lambda *_: np.array([-2.0, -3.0]))
    questions = [
        Question("a", answer, ["né", "four"]) for answer in (0, 1)
    ]  # 2 letters, 3 bytes, and 4: -1 and -0.75 by letter
    assert list(outcomes(engine, questions, 1)) == [{"acc": True, "acc_norm": False}, {"acc": False, "acc_norm": True}]


LIKELIHOODS = [  # choices, their log-likelihoods, the right one; and then what lm-evaluation-harness makes of them
    (["sea ice", "a longer choice", "x"], [-11.17, -16.56, -5.58], 1),
    (["sea ice", "is", "四五"], [-10.06, -6.84, -6.14], 2),
    (["is", "sea ice", "a longer choice"], [-6.99, -10.08, -13.78], 2),
    (["x", "sea ice"], [-5.1, -8.82], 0),
    (["四五", "née", "a longer choice"], [-6.47, -3.75, -17.76], 0),
    (["四五", "a longer choice"], [-4.04, -13.71], 0),
    (["x", "四五"], [-3.05, -5.95], 1),
    (["sea ice", "a longer choice", "née"], [-11.21, -15.41, -5.32], 2),
]
HARNESS = {"acc": (0.5, 0.1889822365046136), "acc_norm": (0.375, 0.18298126367784995)}


def test_figures_are_those_of_lm_evaluation_harness(engine, monkeypatch):
    """Source: `ConfigurableTask.process_results`, `mean` and `mean_stderr` of its commit 4e7e0d47f33bc710."""
    found = iter(LIKELIHOODS)
    monkeypatch.setattr("augury.cli.evaluate.log_likelihoods", lambda *_: np.array(next(found)[1]))
    right = list(outcomes(engine, [Question("a", answer, choices) for choices, _, answer in LIKELIHOODS], 1))
    for name, (value, error) in HARNESS.items():
        assert Rate.of([each[name] for each in right]) == Rate(value, pytest.approx(error, rel=1e-12), 8)


def test_a_text_that_is_generated_is_compared_without_blanks_around_it(engine):
    text = engine.generate("the sea", max_tokens=3, temperature=0.0, stop=["\n"]).text
    found = outcomes(engine, [Question("the sea", f" {text.strip()} "), Question("the sea", "another")] * 2, 3)
    assert [each["exact_match"] for each in found] == [True, False] * 2


def test_errors_are_those_of_a_sample_s_mean():
    assert Rate.of([True, False, False, False]) == Rate(0.25, pytest.approx(0.5 / 2), 4)
    assert Rate.of([True]) == Rate(1.0, None, 1)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", '"prompt", "answer"'),
        ('{"prompt": "a"}', '"prompt", "answer"'),
        ('{"prompt": "a", "answer": 2}', "that are texts"),
        ('{"prompt": "", "answer": "b"}', "that are texts"),
        ('{"prompt": "a", "answer": 2, "choices": ["b", "c"]}', "the place of the right one"),
        ('{"prompt": "a", "answer": true, "choices": ["b", "c"]}', "the place of the right one"),
        ('{"prompt": "a", "answer": 0, "choices": []}', "the place of the right one"),
    ],
)
def test_a_line_that_is_no_question_is_named(line, told):
    with pytest.raises(AuguryError, match=f"^file:3: expected .*{told}"):
        Question.of(line, "file:3")


def test_the_command_prints_rates_and_a_json_object(tiny, tmp_path, capsys):
    file = tmp_path / "questions.jsonl"
    lines = [{"prompt": "the sea", "choices": ["is", "was"], "answer": i} for i in (0, 1)]
    file.write_text("\n".join(json.dumps(each) for each in [*lines, {"prompt": "the", "answer": "sea"}]))
    words = ["eval", "-m", tiny, "--backend", "reference", "-t", 1, "-c", 64, "-n", 2, "-f", file]
    code, out, _ = run(capsys, *words)
    assert (code, out) == (
        0,
        "acc 0.5000 ± 0.5000 (2 questions)\nacc_norm 0.5000 ± 0.5000 (2 questions)\nexact_match 0.0000 (1 question)\n",
    )
    assert json.loads(run(capsys, *words, "--json")[1])["acc"] == {"value": 0.5, "error": 0.5, "n": 2}
