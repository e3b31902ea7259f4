"""Which files of a repository are a model."""

import pytest

from augury.errors import ModelFileError
from augury.plugins.sources.repository import choose, models_of

FILES = [
    "README.md",
    "mmproj-tiny-F16.gguf",
    "tiny-Q4_K_M.gguf",
    "tiny-Q8_0.gguf",
    "BF16/tiny-BF16-00001-of-00002.gguf",
    "BF16/tiny-BF16-00002-of-00002.gguf",
]


def test_without_a_quant_the_only_model_or_the_usual_quant_is_taken():
    assert choose(["a.gguf", "x.txt"], "hf:o/r", None) == ["a.gguf"]
    assert choose(FILES, "hf:o/r", None) == ["tiny-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("files", "quant", "message"),
    [
        (FILES, "Q5_0", "nothing fits, expected one; add :QUANT, of which there are: BF16; Q4_K_M; Q8_0"),
        (FILES, "K_M", "nothing fits"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "q4_0", r"2 models fit \(a-Q4_0, b-Q4_0\)"),
        (["a-Q4_0.gguf", "a-Q8_0.gguf"], None, "2 models fit .* there are: Q4_0; Q8_0"),
        (["a-NVFP4.gguf", "a-UD-IQ1_S.gguf"], None, "2 models fit .* there are: NVFP4; IQ1_S"),
        (["README.md", "model.safetensors"], "Q4_0", "has no .gguf files"),
        (["a-Q4_0-00001-of-00003.gguf", "a-Q4_0-00003-of-00003.gguf"], "Q4_0", "has 2 of the 3 parts of a-Q4_0"),
    ],
)
def test_what_does_not_fit_one_model_is_an_error_that_lists_the_quants(files, quant, message):
    with pytest.raises(ModelFileError, match=f"hf:o/r: .*{message}"):
        choose(files, "hf:o/r", quant)


def test_each_whole_model_is_listed_by_what_chooses_it():
    files = [*FILES, "x/tiny-Q6_K.gguf", "y/other-Q6_K.gguf", "half-F16-00001-of-00002.gguf", "x/plain.gguf"]
    files += ["x/alike.gguf", "y/alike.gguf"]
    found = models_of(files)
    assert set(found) == {"Q4_K_M", "Q8_0", "BF16", "tiny-Q6_K", "other-Q6_K", "plain", "x/alike", "y/alike"}
    for quant, names in found.items():
        assert choose(files, "hf:o/r", quant) == names
