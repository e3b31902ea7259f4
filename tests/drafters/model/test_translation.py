"""Two vocabularies: text is never changed on the way, and what is added costs no more in a long text than in a short one."""

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from hypothesis import given, settings, strategies as st
from oracles.models import tiny_model
from support import vocabularies

from augury import Engine
from augury.drafters.model.translation import Translation
from augury.files.gguf_writer import gguf_file

TEXT = (
    2
    * "def quicksort(arr):\n    if len(arr) <= 1:\n        return arr  # 12345 äöü 日本語 🙂\n\nIt isn't \"so\", they'll say.\t"
)
NAMES = (*vocabularies.ORACLES, "smollm")
PAIRS = [(target, draft) for target in NAMES for draft in NAMES if target != draft]


def translation(target, draft):
    return Translation(vocabularies.tokenizer(target), vocabularies.tokenizer(draft))


def follow(translator, tokens):
    return translator.follow(np.array(tokens, dtype=np.int32)).tolist()


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_text_that_grows_is_encoded_as_if_at_once(target, draft):
    tokens = vocabularies.tokenizer(target).encode(TEXT)
    expected = vocabularies.tokenizer(draft).encode(TEXT)
    translator = translation(target, draft)
    rng = np.random.default_rng(3)
    n, before = 1, follow(translator, tokens[:1])
    while n < len(tokens):
        n = min(n + int(rng.integers(1, 5)), len(tokens))
        found = follow(translator, tokens[:n])
        n_same = max(len(before) - 24, 0)
        assert found[:n_same] == before[:n_same]
        before = found
    assert found == expected
    assert follow(translation(target, draft), tokens) == expected


def test_a_text_may_begin_with_a_character_of_several_tokens():
    text = "\N{TEST TUBE}" + " a" * 40
    translator = translation("qwen2", "gpt-2")
    tokens = vocabularies.tokenizer("qwen2").encode(text)
    for n in range(1, len(tokens) + 1):
        found = follow(translator, tokens[:n])
    assert found == vocabularies.tokenizer("gpt-2").encode(text)


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cn")), max_size=30)


@settings(max_examples=60)
@given(st.sampled_from(PAIRS), words, words, st.data())
def test_what_is_drafted_comes_back_with_the_same_text(pair, before, after, data):
    target, draft = (vocabularies.tokenizer(name) for name in pair)
    tokens = target.encode(before)
    translator = Translation(target, draft)
    n = data.draw(st.integers(0, len(tokens)))
    for end in (n, len(tokens)):
        translator.follow(np.array(tokens[:end], np.int32))
    drafted = draft.encode(after, add_special=False)
    spelled = b"".join(map(draft.piece, drafted))
    back = translator.back(drafted)
    if back:
        assert b"".join(map(target.piece, back)) == spelled.decode(errors="ignore").encode()


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_words_come_back_as_the_target_writes_them(target, draft):
    tokenizers = [vocabularies.tokenizer(name) for name in (target, draft)]
    known, new = (tokenizer.encode("The cat sat on the mat.") for tokenizer in tokenizers)
    n_known, n_new = (len(tokenizer.encode("The cat sat")) for tokenizer in tokenizers)
    translator = translation(target, draft)
    assert follow(translator, known[:n_known]) == new[:n_new]
    assert translator.back(new[n_new:]) == known[n_known:]


def test_special_tokens_are_translated_by_their_texts_and_end_a_draft():
    qwen, smollm = vocabularies.tokenizer("qwen2"), vocabularies.tokenizer("smollm")
    chat = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    tokens, expected = (each.encode(chat, add_special=False, parse_special=True) for each in (qwen, smollm))
    translator = Translation(qwen, smollm)
    assert follow(translator, tokens) == expected
    answer, other = (each.encode("Hi there<|im_end|>", add_special=False, parse_special=True) for each in (qwen, smollm))
    assert translator.back([*other, *other]) == answer


def test_special_tokens_without_a_counterpart_are_left_out():
    qwen, llama = vocabularies.tokenizer("qwen2"), vocabularies.tokenizer("llama-spm")
    tokens = qwen.encode("<|im_start|>user", add_special=False, parse_special=True)
    assert follow(Translation(qwen, llama), tokens) == llama.encode("user")


def test_a_character_that_is_not_complete_waits():
    qwen, smollm = vocabularies.tokenizer("qwen2"), vocabularies.tokenizer("smollm")
    tokens = qwen.encode("ab𒀀", add_special=False)
    assert len(qwen.piece(tokens[-1])) < 4  # the sign is more than one token
    translator = Translation(qwen, smollm)
    assert follow(translator, tokens[:-1]) == smollm.encode("ab", add_special=False)
    assert translator.is_within_character
    assert follow(translator, tokens) == smollm.encode("ab𒀀", add_special=False)
    assert not translator.is_within_character
    bytes_of = smollm.encode("𒀀", add_special=False)
    assert translator.back(bytes_of[:-1]) == []


def test_padding_spells_nothing():
    qwen, smollm = vocabularies.tokenizer("qwen2"), vocabularies.tokenizer("smollm")
    translator = Translation(qwen, smollm)
    tokens = [*qwen.encode("one"), qwen.n_vocab + 5, *qwen.encode(" two")]
    assert follow(translator, tokens) == smollm.encode("one two")


def test_a_new_request_starts_anew():
    translator = translation("qwen2", "llama-spm")
    qwen, llama = vocabularies.tokenizer("qwen2"), vocabularies.tokenizer("llama-spm")
    follow(translator, qwen.encode("something else 𒀀")[:-1])
    translator.begin()
    assert follow(translator, qwen.encode("one two")) == llama.encode("one two")


class Counting:
    """A tokenizer that counts the characters that it encodes."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.n_encoded = 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, **how):
        self.n_encoded += len(text)
        return self._tokenizer.encode(text, **how)


def test_in_a_long_text_only_the_end_is_encoded_again():
    target, draft = (Counting(vocabularies.tokenizer(name)) for name in ("qwen2", "llama-spm"))
    tokens = target.encode(TEXT * 40)
    translator = Translation(target, draft)
    translator.follow(np.array(tokens[:-200], np.int32))
    target.n_encoded = draft.n_encoded = 0
    for n in range(len(tokens) - 200, len(tokens) + 1):
        translator.follow(np.array(tokens[:n], np.int32))
        translator.back(draft._tokenizer.encode(" and so on", add_special=False))
    assert max(target.n_encoded, draft.n_encoded) < 201 * 150


# Engines: the same model under other ids, which is always right, and a coarser one, which is not


# bytes as GPT-2 spells them; in place of the last one two that hardly ever meet, for a file must have a merge
ASCII = [chr(code) if code >= 33 else chr(256 + code) for code in range(127)] + ["\u0100\u0101"]


def write_speaking(path, source, order, weight_type=None):
    """Copy a tiny model with ASCII as its vocabulary, where token i is the model's own token order[i]."""
    reader = gguf.GGUFReader(source)
    with gguf_file(path) as writer:
        for field in reader.fields.values():
            if field.name.startswith("llama.") and field.contents() != []:
                item_type = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(field.name, field.contents(), field.types[0], item_type)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([ASCII[token] for token in order])
        writer.add_token_types([1] * len(order))
        writer.add_token_merges(["\u0100 \u0101"])
        for tensor in reader.tensors:
            data = np.array(tensor.data)
            if tensor.name in ("token_embd.weight", "output.weight"):
                data = data[order]
            if weight_type is not None and data.ndim > 1:
                writer.add_tensor(tensor.name, quantize(data, weight_type), raw_dtype=weight_type)
            else:
                writer.add_tensor(tensor.name, data)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target that writes ASCII, the same model under other ids, and a coarser one under these."""
    folder, source = tmp_path_factory.mktemp("speaking"), tiny_model("llama-dense")
    order = np.random.default_rng(2).permutation(128)
    return {
        "target": write_speaking(folder / "target.gguf", source, np.arange(128)),
        "same": write_speaking(folder / "same.gguf", source, order),
        "coarse": write_speaking(folder / "coarse.gguf", source, order, gguf.GGMLQuantizationType.Q4_0),
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.7, "seed": 4}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["same", "coarse"])
def test_output_is_that_of_plain_decoding(models, draft, sampling, slots):
    prompts = ["hello world", "def f(x):", "1234567"]
    how = {"max_tokens": 60, "ignore_eos": True, "logprobs": 1, **sampling}
    with Engine.load(models["target"], n_ctx=128, spec_type="none") as engine:
        plain = engine.generate(prompts, **how)
    with Engine.load(
        models["target"],
        n_ctx=128,
        spec_type="draft-model",
        draft_model=models[draft],
        draft_max=5,
        slots=slots,
        spec_fixed=True,
    ) as engine:
        results = engine.generate(prompts, **how)
    assert [result.tokens for result in results] == [result.tokens for result in plain]
    assert [piece.logprob for result in results for piece in result.pieces] == [
        piece.logprob for result in plain for piece in result.pieces
    ]
    drafted, accepted = (sum(getattr(result.stats, name) for result in results) for name in ("n_drafted", "n_accepted"))
    assert drafted > 0
    if sampling["temperature"] == 0:
        assert accepted == drafted if draft == "same" else 0 < accepted < drafted


def test_it_is_said_that_drafts_go_through_text_and_why(models, caplog):
    with Engine.load(models["target"], n_ctx=64, spec_type="draft-model", draft_model=models["same"]):
        pass
    assert "drafts go through text" in caplog.text
    assert "token 5 is" in caplog.text
