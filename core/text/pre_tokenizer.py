r"""How text is cut into words before byte-pair encoding, by the name in `tokenizer.ggml.pre`.

A pre-tokenizer is a list of patterns in Oniguruma's syntax. Each cuts the previous one's pieces: a match is a piece, and the
text between two matches as well. The patterns follow llama.cpp (`regex_exprs` in its src/llama-vocab.cpp, run by
src/unicode.cpp), because converted files are checked against it. Three of its habits show below: a class that is
written out in characters never matches white space beyond ASCII, `\d` is 0 to 9, and letters, numbers, marks and the like are
those of Unicode 15.1.
"""

# ruff: noqa: RUF001 -- characters that look like others are meant
from __future__ import annotations

from attrs import field, frozen

from augury.errors import UnsupportedError
from augury.options import nearest


@frozen
class Merged:
    """A pattern whose matches are no pieces of their own but part of their neighbour, "previous" or "next"."""

    pattern: str
    neighbour: str


@frozen
class PreTokenizer:
    """How words are cut, with related settings."""

    patterns: tuple[str | Merged, ...]  # cut one after the other
    takes_whole_words: bool = field(default=False, kw_only=True)  # a word that is a token is that token, without merges
    adds_bos: bool = field(default=False, kw_only=True)  # unless the file says otherwise, a text begins with bos
    # tokens are written in one character per byte; otherwise as they are, but for spaces, which are "▁", and a character
    # without a token is made of the tokens `<0x00>` to `<0xFF>`
    is_byte_level: bool = field(default=True, kw_only=True)
    takes_newlines: bool = field(default=False, kw_only=True)  # text is cut at runs of newlines that are tokens


_NEWER = (  # assigned since Unicode 15.1, as ranges that hold nothing older
    r"\x{897}\x{1B4E}-\x{1B4F}\x{1B7F}\x{1C89}-\x{1C8A}\x{2427}-\x{2429}\x{31E4}-\x{31E5}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}"
    r"\x{105C0}-\x{105F3}\x{10D40}-\x{10D8F}\x{10EC2}-\x{10EFC}\x{11380}-\x{113E2}\x{116D0}-\x{116E3}\x{11BC0}-\x{11BF9}"
    r"\x{11F5A}\x{13460}-\x{143FA}\x{16100}-\x{16139}\x{16D40}-\x{16D79}\x{18CFF}\x{1CC00}-\x{1CEB3}\x{1E5D0}-\x{1E5FF}"
    r"\x{1F8B2}-\x{1F8C1}\x{1FA89}-\x{1FA8F}\x{1FABE}\x{1FAC6}\x{1FADC}-\x{1FADF}\x{1FAE9}\x{1FBCB}-\x{1FBEF}"
)


def _older(category: str) -> str:
    return rf"[\p{{{category}}}&&[^{_NEWER}]]"


_L, _M, _N, _P, _S = map(_older, "LMNPS")

_SUFFIX = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_OTHER = rf"[^\r\n{_L}{_N}]?"  # the possible beginning of a word
_WORD = rf"{_OTHER}{_L}+"
_SYMBOLS = rf" ?[^\s{_L}{_N}]+"
_MARKS = rf"{_SYMBOLS}[\r\n]*"
_MARKS_SLASH = rf"{_SYMBOLS}[\r\n/]*"
_BLANKS = r"\s+(?!\S)|\s+"
_SPACES = rf"\s*[\r\n]+|{_BLANKS}"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?{_L}+| ?{_N}+|{_SYMBOLS}|{_BLANKS}"
_UFAKZEKA = rf"{_WORD}|{_N}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_SUFFIX}|{_UFAKZEKA}"
_LLAMA3_NUMBERS = rf"{_N}{{1,3}}"
_LLAMA3 = rf"{_SUFFIX}|{_WORD}|{_LLAMA3_NUMBERS}|{_MARKS}|{_SPACES}"
_MINICPM5 = rf"{_SUFFIX}|{_WORD}|{_N}+|{_MARKS}|{_SPACES}"
_QWEN35 = rf"{_SUFFIX}|{_OTHER}[{_L}{_M}]+|{_N}| ?[^\s{_L}{_M}{_N}]+[\r\n]*|{_SPACES}"
_BAILING = rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|{_N}|{_MARKS}|\s*[\r\n]|{_BLANKS}"
_EXAONE_MOE = rf"{_SUFFIX}|{_OTHER}(?:{_L}{_M}*(?: {_L}{_M}*)*)+|{_N}|{_SYMBOLS}[\r\n/]?|\s*[\r\n]|{_BLANKS}"
_SEED = rf"{_SUFFIX}|{_WORD}|{_N}| ?[^\s{_L}{_N}\r\n]+|{_SPACES}"


def _cased(letters: str, suffix: str) -> str:
    """Words in which capitals end where small letters have begun; letters without case are both."""
    upper, lower = rf"[{letters}&&[^a-z]]", rf"[{letters}&&[^A-Z]]"
    return rf"{_OTHER}{upper}*{lower}+{suffix}|{_OTHER}{upper}+{lower}*{suffix}"


_TEKKEN = rf"{_cased(_L, '')}|{_N}|{_MARKS_SLASH}|{_SPACES}"
_GPT4O = rf"{_cased(_L, f'{_SUFFIX}?')}|{_LLAMA3_NUMBERS}|{_MARKS_SLASH}|{_SPACES}"
_GRANITE = rf"{_cased(f'[{_L}{_M}]', f'{_SUFFIX}?')}|{_LLAMA3_NUMBERS}|{_MARKS_SLASH}|{_SPACES}"
_AYA = rf"{_OTHER}[{_L}{_M}]+{_SUFFIX}?|{_LLAMA3_NUMBERS}|{_MARKS_SLASH}|{_SPACES}"
_YOUTU_CJK = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_YOUTU = rf"{_OTHER}[{_L}{_M}]+{_SUFFIX}?|{_N}|{_MARKS_SLASH}|{_SPACES}"
_HAN = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}"
    r"\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)
_KIMI = rf"{_HAN}+|{_OTHER}[{_L}&&[^{_HAN}]]+{_SUFFIX}?|{_LLAMA3_NUMBERS}|{_MARKS}|{_SPACES}"
_PUNCTUATED = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3_WORDS = rf"{_PUNCTUATED}|[^\r\n{_L}{_P}{_S}]?[{_L}{_M}]+| ?[{_P}{_S}]+"
_DEEPSEEK3 = rf"{_DEEPSEEK3_WORDS}[\r\n]*|{_SPACES}"
_SPARK = rf"{_DEEPSEEK3_WORDS}|[\r\n]|{_BLANKS}"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_AFMOE_CJK = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff"
    "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
# Threes counted from a number's end. The first group has the text before the number as its beginning, as in llama.cpp.
_THREES = (Merged(rf"{_N}+", "previous"), rf"(?<={_N})(?:{_N}{{3}})+\z", rf"\G{_N}{{3}}")
# White space without newlines in powers of two; as a second step, because looking for newlines at each power would take long.
_POWERS = "|".join(rf"\s{{{n}}}" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
_CASCADE = rf"(?:\A(?=[^\S\r\n]+\z)|(?!\A)\G)(?:{_POWERS})"
_NEWLINES = r"\n+"
_DEEPSEEK_LETTERS = (  # \x where a character has a twin that text editors may put in its place
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}"
    r"ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆ"
    r"ﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_CJK = r"[[一-龥ࠀ-一가-퟿]&&\S]+"
_PORO = r" ?[^(\s|.,!?…。，、।۔،)]+"

_LLAMA_BPE = PreTokenizer((_LLAMA3,), takes_whole_words=True, adds_bos=True)
_GEMMA4 = PreTokenizer((), is_byte_level=False, takes_newlines=True)

_PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: pre
    for names, pre in (
        ("default", PreTokenizer((rf"[{_P}\$\+<=>\^~\|]+", _GPT2, rf"{_N}+", "[0-9][0-9][0-9]"))),
        ("gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum", PreTokenizer((_GPT2,))),
        ("modern-bert jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe", PreTokenizer((_GPT2,))),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", PreTokenizer((_N, _GPT2))),
        ("falcon", PreTokenizer((rf"[{_P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
        ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA_BPE),
        ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
        ("glm4 glm5", PreTokenizer((_LLAMA3,), takes_whole_words=True)),
        ("jais-2", PreTokenizer((_LLAMA3, _CASCADE))),
        ("minicpm5", PreTokenizer((_LLAMA3_NUMBERS, _MINICPM5), takes_whole_words=True)),
        ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", PreTokenizer((_QWEN2,))),
        ("qwen35", PreTokenizer((_QWEN35,))),
        ("laguna", PreTokenizer((_NEWLINES, _QWEN2))),
        ("ufakzeka", PreTokenizer((_UFAKZEKA,))),
        ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
        ("exaone-moe", PreTokenizer((_EXAONE_MOE,))),
        ("seed-coder", PreTokenizer((_SEED,))),
        ("tekken", PreTokenizer((_TEKKEN,), takes_whole_words=True, adds_bos=True)),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
        ("granite-embed-multi-97m", PreTokenizer((_GRANITE,), takes_whole_words=True)),
        ("tiny_aya cohere2moe", PreTokenizer((*_THREES, _AYA))),
        ("youtu", PreTokenizer((_YOUTU_CJK, _YOUTU), takes_whole_words=True)),
        ("kimi-k2", PreTokenizer((_KIMI,))),
        (
            "deepseek-llm",
            PreTokenizer(
                (
                    r"[\r\n]",
                    rf"\s?[{_DEEPSEEK_LETTERS}]+",
                    r"\s?[[!-/:-~！-／：-～‘-‟　-。]&&\S]+",
                    r"(?<!\s)\s+\z",
                    _DEEPSEEK_CJK,
                    rf"{_N}+",
                )
            ),
        ),
        ("deepseek-coder", PreTokenizer((r"[\r\n]", rf"\s?{_L}+", rf"\s?{_P}+", _DEEPSEEK_CJK, _N))),
        ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer((_LLAMA3_NUMBERS, _CJK, _DEEPSEEK3))),
        ("spark2_5", PreTokenizer((_LLAMA3_NUMBERS, _CJK, _SPARK, _N))),
        ("afmoe", PreTokenizer((*_THREES, _AFMOE_CJK, _DEEPSEEK3))),
        ("poro-chat bloom gpt3-finnish", PreTokenizer((_PORO,))),
        ("viking", PreTokenizer((_PORO, _N))),
        ("superbpe", PreTokenizer((rf"{_N}+", Merged(r"(?:[0-9]{3})+(?![0-9])", "next"), r"\G[0-9]{3}(?=[0-9]{3})"))),
        (
            "chameleon",
            PreTokenizer(
                ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", _N, rf"[{_P}!-/:-@\[-`{{-~]", _GPT2),
                adds_bos=True,
            ),
        ),
        ("gemma4 granite-embed-multi-311m", _GEMMA4),
        ("sarvam-moe", PreTokenizer((_NEWLINES,), is_byte_level=False)),
    )
    for name in names.split()
}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """A pre-tokenizer by its name in model files; of a file that names none the oldest, with a warning.

    Raises UnsupportedError: the name is not known; text would be cut wrongly.
    """
    if not name:
        from augury.log import get_logger

        get_logger("augury.text.tokenizer").warning(
            "tokenizer.ggml.pre is missing, so text is cut into words as files from before it was introduced mean it; "
            "if the model answers badly, say how: --override-kv tokenizer.ggml.pre=str:NAME, or convert it again"
        )
        name = "default"
    try:
        return _PRE_TOKENIZERS[name]
    except KeyError:
        raise UnsupportedError(
            f"tokenizer.ggml.pre is {name!r}, a way to cut text into words that augury does not know; give token ids instead "
            f"of text, or name one that is the same: --override-kv tokenizer.ggml.pre=str:NAME{nearest(name, _PRE_TOKENIZERS)}"
        ) from None
