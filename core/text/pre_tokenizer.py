r"""How text is cut into words before byte-level BPE, by the name in `tokenizer.ggml.pre`.

A pre-tokenizer is a list of patterns in Oniguruma's syntax. Each cuts the pieces that the one before it has left: what it
matches is a piece, and so is what lies between two matches. The patterns say what llama.cpp does (`regex_exprs` in its
src/llama-vocab.cpp, run by src/unicode.cpp), because that is what converted files are checked against. Two of its habits show
below: a class that is written out in characters never matches white space beyond ASCII, and `\d` is 0 to 9.
"""

# ruff: noqa: RUF001 -- characters that look like others are meant
from __future__ import annotations

from attrs import frozen

from augury.errors import UnsupportedError

__all__ = ["PreTokenizer", "pre_tokenizer"]


@frozen
class PreTokenizer:
    """How words are cut, and what goes with it.

    `takes_whole_words`: a word that is a token is that token, whatever the merges say. `adds_bos`: unless the file says
    otherwise, a text begins with the beginning-of-sequence token.
    """

    patterns: tuple[str, ...]
    takes_whole_words: bool = False
    adds_bos: bool = False


_SUFFIX = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_MARKS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
_QWEN35 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_BAILING = rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_MARKS}|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_UPPER = r"(?:(?=\p{L})[^a-z])"
_LOWER = r"(?:(?=\p{L})[^A-Z])"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_MARKS_SLASH}|{_SPACES}"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}?"
    rf"|\p{{N}}{{1,3}}|{_MARKS_SLASH}|{_SPACES}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}"
)
_DEEPSEEK_LETTERS = (  # \x where a character has a twin that text editors may put in its place
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}"
    r"ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆ"
    r"ﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_CJK = r"[[一-龥ࠀ-一가-퟿]&&\S]+"
_PORO = r" ?[^(\s|.,!?…。，、।۔،)]+"

_PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: pre
    for names, pre in (
        ("default", PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
        (
            "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum",
            PreTokenizer((_GPT2,)),
        ),
        (
            "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
            PreTokenizer((r"\p{N}", _GPT2)),
        ),
        ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
        (
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
            PreTokenizer((_LLAMA3,), takes_whole_words=True, adds_bos=True),
        ),
        ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
        (
            "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
            PreTokenizer((_QWEN2,)),
        ),
        ("qwen35", PreTokenizer((_QWEN35,))),
        ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
        ("seed-coder", PreTokenizer((_SEED,))),
        ("tekken", PreTokenizer((_TEKKEN,), takes_whole_words=True, adds_bos=True)),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
        (
            "deepseek-llm",
            PreTokenizer(
                (
                    r"[\r\n]",
                    rf"\s?[{_DEEPSEEK_LETTERS}]+",
                    r"\s?[[!-/:-~！-／：-～‘-‟　-。]&&\S]+",
                    r"\s+\z",
                    _DEEPSEEK_CJK,
                    r"\p{N}+",
                )
            ),
        ),
        ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"))),
        (
            "deepseek-v3 hunyuan-dense joyai-llm",
            PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
        ),
        ("poro-chat bloom gpt3-finnish", PreTokenizer((_PORO,))),
        ("viking", PreTokenizer((_PORO, r"\p{N}"))),
    )
    for name in names.split()
}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """Look up a pre-tokenizer by its name in model files; a file that names none gets a warning, and the oldest.

    Raises:
        UnsupportedError: the name is not known; text would be cut wrongly.
    """
    if name is None:
        from augury.log import get_logger

        get_logger("augury.text.tokenizer").warning(
            "tokenizer.ggml.pre is missing, so text is cut into words as files from before it was introduced mean it; "
            "if the model answers badly, convert it again"
        )
        name = "default"
    try:
        return _PRE_TOKENIZERS[name]
    except KeyError:
        raise UnsupportedError(
            f"tokenizer.ggml.pre is {name!r}, a way to cut text into words that augury does not know; it knows "
            f"{', '.join(sorted(_PRE_TOKENIZERS))}. Give token ids instead of text, or convert the model again."
        ) from None
