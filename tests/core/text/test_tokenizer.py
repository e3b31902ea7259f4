import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support import vocabularies

from augury.errors import CapacityError, ModelFileError, OptionError, PromptTooLongError, UnsupportedError
from augury.text.tokenizer import StreamDecoder, load_tokenizer

CASES = vocabularies.read("cases")
PRE_TOKENIZERS = vocabularies.read("pre-tokenizers")
TEXTS = PRE_TOKENIZERS.pop("texts")
TOKENS = vocabularies.read("tokens")


@pytest.mark.parametrize("name", vocabularies.ORACLES)
def test_the_texts_of_llama_cpp_get_its_ids_and_come_back(name):
    texts = (vocabularies.DATA / f"{name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")[:-1]
    expected = (vocabularies.DATA / f"{name}.out").read_text().splitlines()
    tokenizer = vocabularies.tokenizer(name)
    assert len(texts) == len(expected) == 46
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text, add_special=False) == [int(token) for token in ids.split()]
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", CASES)
def test_random_texts_get_the_ids_of_llama_cpp(name):
    tokenizer = vocabularies.tokenizer(name)
    for text, add_special, parse_special, ids in CASES[name]:
        assert tokenizer.encode(text, add_special=add_special, parse_special=parse_special) == ids


@pytest.mark.parametrize("name", CASES)
def test_no_text_has_fewer_tokens_than_is_said_beforehand(name):
    tokenizer = vocabularies.tokenizer(name)
    for text, add_special, parse_special, ids in CASES[name]:
        assert tokenizer.least_tokens(text) <= len(ids), text
        tokenizer.encode(text, add_special=add_special, parse_special=parse_special, n_most=len(ids))
    longest = max((tokenizer.decode([token], skip_special=False) for token in range(tokenizer.n_vocab)), key=len)
    ids = tokenizer.encode(longest * 3, parse_special=True)
    assert tokenizer.least_tokens(longest * 3) <= len(ids)


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(monkeypatch):
    tokenizer = vocabularies.tokenizer("qwen2")
    text = "a word " * 100_000
    n_least = tokenizer.least_tokens(text)
    assert 1000 < n_least < 100_000
    monkeypatch.setattr(tokenizer, "_codec", None)
    for n_most in (10, n_least - 1):
        with pytest.raises(
            PromptTooLongError,
            match=f"is too large: it has at least {n_least} tokens, which exceeds the available context size of {n_most}",
        ):
            tokenizer.encode(text, n_most=n_most)
    with pytest.raises(AttributeError):
        tokenizer.encode(text, n_most=n_least)


def test_every_name_of_llama_cpp_is_known():
    assert len(PRE_TOKENIZERS) == 90


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_cuts_as_llama_cpp_does(name):
    is_raw = name in ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
    found = vocabularies.metadata("gemma4") if is_raw else vocabularies.pairs()
    tokenizer = load_tokenizer(vocabularies.changed(found, model="gpt2", pre=name))
    for text, ids in zip(TEXTS, PRE_TOKENIZERS[name], strict=True):
        assert tokenizer.encode(text) == ids


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_are_those_of_llama_cpp(name):
    tokenizer, expected = vocabularies.tokenizer(name), TOKENS[name]
    for token, special, piece in expected["tokens"]:
        assert (tokenizer.is_special(token), tokenizer.piece(token)) == (special, bytes.fromhex(piece))
    assert sorted(tokenizer.eog) == expected["eog"]
    assert (tokenizer.bos, tokenizer.eos) == (expected["bos"], expected["eos"])


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "gemma4", "plamo2"])
@given(text=st.text(st.characters(exclude_characters="▁\ufeff", exclude_categories=["Cs"])))
def test_text_comes_back_where_every_byte_has_a_token(name, text):
    tokenizer = vocabularies.tokenizer(name)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special=False) == text


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    "text",
    [" " * 200_000 + "x", "a" * 100_000, "1234567890" * 10_000, " \n" * 50_000 + "x", "日本語" * 20_000, "[PAD1]" * 20_000],
)
@pytest.mark.parametrize("name", ["gpt-2", "jais-2", "afmoe", "superbpe", "deepseek-llm", "chameleon", *vocabularies.KINDS])
def test_long_runs_take_no_longer_than_other_texts(name, text):
    known = name in vocabularies.KINDS
    tokenizer = vocabularies.tokenizer(name) if known else load_tokenizer(vocabularies.changed(vocabularies.pairs(), pre=name))
    assert tokenizer.encode(text)  # what goes over the rest of the text for each character would not come to an end


@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_sentence_piece_text_comes_back(text):
    tokenizer = vocabularies.tokenizer("llama-spm")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_no_text_has_no_tokens_but_the_special_ones():
    assert vocabularies.tokenizer("qwen2").encode("") == []
    assert vocabularies.tokenizer("llama-spm").encode("") == [1]
    assert vocabularies.tokenizer("user-defined").encode("") == [2, 1]


@pytest.mark.parametrize(
    ("name", "bos", "eos", "eog", "add_bos"),
    [
        ("gpt-2", 50256, 50256, {50256}, False),
        ("llama-bpe", 128000, 128001, {128001, 128009}, True),
        ("llama-spm", 1, 2, {2}, True),
        ("qwen2", 151643, 151643, {128247, 151643, 151645}, False),
        ("smollm", 1, 2, {0, 2, 4}, False),
    ],
)
def test_roles_are_those_that_llama_cpp_finds(name, bos, eos, eog, add_bos):
    tokenizer = vocabularies.tokenizer(name)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eog) == (bos, eos, eog)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (add_bos, False)
    assert tokenizer.n_vocab == len(vocabularies.metadata(name)["tokenizer.ggml.tokens"])


def test_control_tokens_are_read_only_where_asked_for():
    tokenizer = vocabularies.tokenizer("smollm")
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [2]
    assert 2 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(100)
    assert tokenizer.text(2) == "<|im_end|>"
    assert tokenizer.piece(2) == b"<|im_end|>"
    assert tokenizer.decode([2, 28120, 2]) == tokenizer.piece(28120).decode()
    assert tokenizer.decode([2], skip_special=False) == "<|im_end|>"


def test_a_space_that_encoding_put_before_text_is_taken_off_unless_the_text_continues():
    tokenizer = vocabularies.tokenizer("llama-spm")
    ids = tokenizer.encode("Paris")
    assert tokenizer.decode(ids) == "Paris"
    assert tokenizer.decode(ids, continues=True) == " Paris"


def test_numbers_of_numpy_are_token_ids():
    tokenizer = vocabularies.tokenizer("qwen2")
    assert tokenizer.decode(np.array(tokenizer.encode("Hello world"), np.int32)) == "Hello world"


@pytest.mark.sample(0)
def test_a_megabyte_is_encoded_whole():
    text = ("def f(x):\n    return x  # größer\n\n" * 30_000)[:1_000_000]
    for name in ("qwen2", "llama-spm", "user-defined"):
        tokenizer = vocabularies.tokenizer(name)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text


def test_other_tokenizers_of_the_process_stay_as_they_are(monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    load_tokenizer(vocabularies.tiny()).encode("ab")
    assert "TOKENIZERS_PARALLELISM" not in os.environ


def test_a_text_that_the_library_gives_up_on_is_a_capacity_error():
    with pytest.raises(CapacityError, match="gives up on 12000000 characters"):
        vocabularies.tokenizer("qwen2").encode(" " * 12_000_000)


@pytest.mark.parametrize("name", vocabularies.NAMES)
def test_half_a_surrogate_pair_is_refused(name):
    with pytest.raises(OptionError, match=r"'\\ud800', half of a surrogate pair, at position 2"):
        vocabularies.tokenizer(name).encode("ab\ud800")


@pytest.mark.parametrize("token", [-1, 49152])
def test_a_token_outside_the_vocabulary_is_refused(token):
    with pytest.raises(OptionError, match=rf"token id {token} is not in the vocabulary, expected 0 to 49151"):
        vocabularies.tokenizer("smollm").decode([token])


@pytest.mark.parametrize("model", [None, "none", "no_vocab"])
def test_a_file_without_a_tokenizer_has_none(model):
    assert load_tokenizer(vocabularies.tiny(model=model)) is None


def test_a_tiny_vocabulary_works():
    tokenizer = load_tokenizer(vocabularies.tiny())
    assert tokenizer.encode("abba ab<|im_end|>", parse_special=True) == [2, 1, 0, 5, 2, 3]


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        (None, [0, 3, 8, 3, 4, 9, 3, 1, 3, 6, 3, 4, 5, 3, 0, 7, 3, 1, 10, 3, 4, 0, 4, 3, 8]),
        ("My Phi-3 mini", [0, 3, 8, 9, 1, 3, 6, 5, 3, 0, 7, 3, 1, 10, 0, 4, 3, 8]),
        ("phi3", [0, 3, 8, 9, 1, 3, 6, 5, 3, 0, 7, 3, 1, 10, 0, 4, 3, 8]),
    ],
)
def test_white_space_after_special_tokens_is_dropped_as_llama_cpp_drops_it(name, ids):
    tokens = ["a", "b", "ab", "Ġ", "Ċ", "<s>", "</s>", "<unk>", "<mask>", "[MASK]", "<|end|>", "<|endoftext|>"]
    found = vocabularies.tiny(tokens=tokens, token_type=[1] * 5 + [3] * 7, bos_token_id=5, eos_token_id=6)
    tokenizer = load_tokenizer(found | {"general.name": name})
    text = "a <mask> \n[MASK] b </s> \n<s> a<unk> b<|end|> \na\n <mask>"
    assert tokenizer.encode(text, add_special=False, parse_special=True) == ids


def test_a_byte_without_a_token_is_left_out_and_keeps_its_neighbours_apart():
    assert load_tokenizer(vocabularies.tiny()).encode("ab a\x00b") == [2, 5, 0, 1]


def test_bytes_that_are_not_text_are_kept():
    tokenizer = load_tokenizer(vocabularies.tiny(tokens=["a", "b", "ab", "\udcff", "<s>", "Ġ"], token_type=[1, 1, 1, 4, 3, 1]))
    assert tokenizer.piece(3) == b"\xff"
    assert tokenizer.encode("ab") == [2]


@pytest.mark.parametrize("pre", [None, ""])
def test_an_unnamed_pre_tokenizer_is_the_old_one_with_a_warning(caplog, pre):
    assert load_tokenizer(vocabularies.tiny(pre=pre)).encode("ab") == [2]
    assert "tokenizer.ggml.pre is missing" in caplog.text


@pytest.mark.parametrize("key", ["image_token_id", "mask_token_id", "audio_token_id"])
def test_a_token_beyond_the_vocabulary_that_nothing_asks_for_is_a_warning(caplog, key):
    assert load_tokenizer(vocabularies.tiny(**{key: 10**6})).encode("ab") == [2]
    assert f"tokenizer.ggml.{key} is 1000000, expected a token of the vocabulary" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "who-knows"}, "tokenizer.ggml.pre is 'who-knows'"),
        ({"model": "who-knows"}, "tokenizer.ggml.model is 'who-knows'"),
    ],
)
def test_what_is_not_known_is_named(changes, message):
    with pytest.raises(UnsupportedError, match=message + ".*--override-kv tokenizer.ggml"):
        load_tokenizer(vocabularies.tiny(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": 3}, "model is 3, expected a string"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": "abc"}, "tokens is 'abc', expected an array of strings"),
        ({"tokens": [1, 2]}, "tokens is an array of 2 entries, expected an array of strings"),
        ({"tokens": ["a", "b", "ab", "a", "<s>", "Ġ"]}, "'a' as token 0 and as 3"),
        ({"token_type": [1, 1]}, "token_type has 2 entries, expected one for each of the 6 tokens"),
        ({"token_type": ["x"] * 6}, "token_type is an array of 6 entries, expected an array of numbers"),
        ({"token_type": [1, 1, 1, 3, 3, 6]}, "token 5 is 'Ġ', expected a byte"),
        ({"token_type": 1}, "token_type is 1, expected an array of numbers"),
        ({"model": "llama", "scores": np.ones(5, np.float32)}, "scores has 5 entries"),
        ({"model": "llama", "scores": [1.0, float("nan"), 1, 1, 1, 1]}, "scores has no number for token 1"),
        ({"model": "llama", "scores": [[1.0], [1.0, 2.0]]}, "scores is an array of 2 entries, expected an array of numbers"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["ab"]}, "merges holds 'ab', expected two"),
        ({"merges": ["a x"]}, "merges does not fit the tokens"),
        ({"merges": ["b a"]}, "merges does not fit the tokens"),
        ({"merges": ["a \udcff"]}, r"merges does not fit the tokens: [ -~]*$"),
        ({"bos_token_id": 6}, "bos_token_id is 6, expected a token of the vocabulary, 0 to 5"),
        ({"eot_token_id": -7}, "eot_token_id is -7"),
        ({"eos_token_id": "3"}, "eos_token_id is '3', expected an integer"),
        ({"add_bos_token": 1}, "add_bos_token is 1, expected true or false"),
        ({"model": "llama"}, "scores is missing"),
    ],
)
def test_damaged_metadata_is_a_model_file_error(changes, message):
    with pytest.raises(ModelFileError, match=message):
        load_tokenizer(vocabularies.tiny(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": np.ones(5, np.float32)},
        {"scores": [1.0, float("nan"), 1, 1, 1, 1]},
        {"scores": "none"},
        {"precompiled_charsmap": ["A", "=="]},  # as in Snowflake's files of Ollama
        {"normalizer.lowercase": "no", "normalizer.strip_accents": 3, "remove_extra_whitespaces": 1},
        {"eos_token_ids": "3", "added_tokens": 7, "padding_token_id": None, "unheard.of": [[1], ["x"]]},
        {"bos_token_id": -1, "add_bos_token": 1},
        {"eos_token_id": 2**64 - 1, "add_eos_token": "no"},
    ],
)
def test_metadata_that_byte_level_bpe_does_not_use_may_be_anything(changes):
    assert load_tokenizer(vocabularies.tiny(**changes)).encode("ab") == [2]


@pytest.mark.parametrize("role", ["image", "padding", "mask", "seperator", "cls", "unknown", "who_knows"])
@pytest.mark.parametrize("token", [6, -7, 2**40, "3", 1.5, True, [1]])
def test_a_token_that_nothing_uses_need_not_be_there(caplog, role, token):
    """As in llama.cpp's report 11212."""
    assert load_tokenizer(vocabularies.tiny(**{f"{role}_token_id": token})).encode("ab") == [2]
    assert f"tokenizer.ggml.{role}_token_id is" in caplog.text


def test_a_token_that_the_kind_uses_has_to_be_there():
    with pytest.raises(ModelFileError, match="unknown_token_id is 6, expected a token of the vocabulary, 0 to 5"):
        load_tokenizer(vocabularies.tiny(model="llama", scores=np.ones(6, np.float32), unknown_token_id=6))


def test_sentencepiece_does_not_read_merges_nor_a_pre_tokenizer():
    how = {"model": "llama", "scores": np.ones(6, np.float32)}
    plain, odd = (load_tokenizer(vocabularies.tiny(**how, **more)) for more in ({}, {"merges": 3, "pre": ["x"]}))
    assert odd.encode("ab") == plain.encode("ab")


def test_tokens_that_say_there_is_none_are_none():
    tokenizer = load_tokenizer(vocabularies.tiny(bos_token_id=0xFFFFFFFF, eos_token_id=-1, add_bos_token=True))
    assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos) == (None, None, False)
    assert tokenizer.eog == {3}  # <|im_end|> by its text


def test_tokens_for_filling_in_the_middle_are_told_by_key_or_text():
    assert vocabularies.tokenizer("smollm").fim == {"rep": 4}
    named = load_tokenizer(vocabularies.tiny(prefix_token_id=0, fim_pre_token_id=1, fim_suf_token_id=2))
    assert named.fim == {"pre": 0, "suf": 2}
    assert vocabularies.tokenizer("llama-bpe").fim == {}


# Decoding token by token


@pytest.mark.parametrize("name", vocabularies.NAMES)
@settings(max_examples=50)
@given(data=st.data(), skip_special=st.booleans(), continues=st.booleans())
def test_pieces_joined_are_the_whole_decoded_for_any_tokens(name, data, skip_special, continues):
    tokenizer = vocabularies.tokenizer(name)
    ids = data.draw(st.lists(st.integers(0, min(tokenizer.n_vocab, 600) - 1) | st.integers(0, tokenizer.n_vocab - 1)))
    decoder = StreamDecoder(tokenizer, skip_special=skip_special, continues=continues)
    pieces = [*map(decoder.push, ids), decoder.flush()]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip_special, continues=continues)
    shown = [token for token in ids if not (skip_special and tokenizer.is_special(token))]
    raw = b"".join(map(tokenizer.piece, shown)).decode(errors="replace")
    assert "".join(pieces) in (raw, raw.removeprefix(" "))  # the space that encoding puts in front


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "user-defined"])
@given(text=st.text(st.characters(exclude_characters="\ufffd▁", exclude_categories=["Cs"])))
def test_half_a_character_is_never_shown(name, text):
    tokenizer = vocabularies.tokenizer(name)
    decoder = StreamDecoder(tokenizer, continues=False)
    pieces = [decoder.push(token) for token in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(pieces)
    assert decoder.flush() == ""
    assert "".join(pieces) == text


def test_the_bytes_of_an_emoji_come_out_together():
    tokenizer = vocabularies.tokenizer("gpt-2")
    ids = tokenizer.encode("👩‍👧")
    decoder = StreamDecoder(tokenizer)
    assert len(ids) > 3
    assert [piece for piece in map(decoder.push, ids) if piece] == ["👩", "\u200d", "👧"]


def test_a_character_that_is_never_completed_shows_at_the_end():
    tokenizer = vocabularies.tokenizer("llama-spm")
    decoder = StreamDecoder(tokenizer)
    assert decoder.push(3 + 0xF0) == ""
    assert decoder.push(3 + 0x9F) == ""
    assert decoder.flush() == "\ufffd"


def test_other_threads_go_on_while_a_long_text_is_encoded():
    tokenizer, begun, done = vocabularies.tokenizer("smollm"), threading.Event(), threading.Event()

    def encode():
        begun.set()
        tokenizer.encode("word and " * 300_000)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    n = 0
    while not done.wait(0.001):  # each wait takes the interpreter anew
        n += 1
    thread.join()
    assert n > 5
