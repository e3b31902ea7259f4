"""A thousand damaged headers: each is read or refused, quickly, in little memory, and never fails in another way."""

import random
import time
import tracemalloc
from pathlib import Path

import pytest
from support.damage import mutate_header

from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.gguf_writer import gguf_file

HEADS = sorted((Path(__file__).parents[2] / "data" / "models").glob("*.head"))[:3]
N_CASES = 350  # of each base file


def model_header(head):
    """The header and the size of a real model's file."""
    raw = head.read_bytes()
    return raw[8:], int.from_bytes(raw[:8], "little")


def vocabulary_header(folder):
    """The same of a file that is all vocabulary."""
    path = folder / "vocabulary.gguf"
    with gguf_file(path) as writer:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{i}é" for i in range(300)] + [bytes([i]) for i in range(128, 256)])
        writer.add_token_merges([f"t {i}" for i in range(200)])
        writer.add_token_types([1] * 428)
        writer.add_token_scores([0.5] * 428)
        writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    raw = path.read_bytes()
    return raw, len(raw)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    assert len(HEADS) == 3
    return [*map(model_header, HEADS), vocabulary_header(tmp_path_factory.mktemp("base"))]


@pytest.mark.sample(1)
@pytest.mark.parametrize("base", range(4))
def test_damaged_headers_are_read_or_refused_in_bounded_time_and_memory(base, bases, tmp_path):
    raw, size = bases[base]
    path = tmp_path / "m.gguf"
    outcomes = {"read": 0, ModelFileError: 0, UnsupportedError: 0}
    for seed in range(N_CASES):
        rng = random.Random(f"{base}/{seed}")
        damaged = mutate_header(raw, rng, size)
        with path.open("wb") as out:
            out.write(damaged)
            if len(damaged) >= len(raw) or rng.random() < 0.5:
                out.truncate(size)  # zeros where the weights would be, so that damage to the header alone is met
        tracemalloc.start()
        start = time.process_time()
        try:
            with ModelFile.open(path) as file:
                assert all(tensor.n_bytes <= file.n_bytes for tensor in file.tensors.values())
                _ = [int(tensor.data[0]) + int(tensor.data[-1]) for tensor in file.tensors.values()]
            message = f"{path}: read"
            outcomes["read"] += 1
        except (ModelFileError, UnsupportedError) as error:
            message = str(error)
            outcomes[type(error)] += 1
        seconds = time.process_time() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        # a string of two bytes is ten bytes of file and sixty of memory, an empty array twelve and some two hundred
        assert peak < 20 * size + 2**20, (seed, peak)
        assert seconds < 5, (seed, seconds)
    # the mutations are worth something only if they reach both ends
    assert outcomes["read"] > N_CASES // 50
    assert outcomes[ModelFileError] > N_CASES // 4
