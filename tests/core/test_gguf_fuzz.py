"""A thousand damaged headers: each is read or refused, quickly, in little memory, and never fails in another way."""

import random
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import pytest

from augury.errors import ModelFileError, UnsupportedError
from augury.gguf import ModelFile

HEADS = sorted((Path(__file__).parent.parent / "data" / "models").glob("*.head"))[:3]
N_CASES = 350  # of each base file
EXTREMES = [
    0,
    1,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**60,
    2**61,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 32,
    2**64 - 1,
]


def model_header(head):
    """The header and the size of a real model's file."""
    raw = head.read_bytes()
    return raw[8:], int.from_bytes(raw[:8], "little")


def vocabulary_header(folder):
    """The same of a file that is all vocabulary."""
    path = folder / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}é" for i in range(300)] + [bytes([i]) for i in range(128, 256)])
    writer.add_token_merges([f"t {i}" for i in range(200)])
    writer.add_token_types([1] * 428)
    writer.add_token_scores([0.5] * 428)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    raw = path.read_bytes()
    return raw, len(raw)


def flip_bits(rng, raw, _size):
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 16)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut_off(rng, raw, _size):
    return raw[: rng.randrange(len(raw))]


def splice(rng, raw, _size):
    start, n, target = rng.randrange(len(raw)), rng.randint(1, 400), rng.randrange(len(raw))
    return raw[:target] + raw[start : start + n] + raw[target + rng.choice([0, n]) :]


def replace_length(rng, raw, size):
    """Put an extreme value where a length, a count or a small number stands."""
    width, code = rng.choice([(8, "<Q"), (8, "<Q"), (4, "<I")])
    while True:
        at = rng.randrange(4, len(raw) - width)
        if 0 < struct.unpack_from(code, raw, at)[0] < 2**20:
            break
    value = rng.choice([*EXTREMES, size, size - at, len(raw) - at - width]) % 2 ** (8 * width)
    return raw[:at] + struct.pack(code, value) + raw[at + width :]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    assert len(HEADS) == 3
    return [*map(model_header, HEADS), vocabulary_header(tmp_path_factory.mktemp("base"))]


@pytest.mark.parametrize("base", range(4))
def test_damaged_headers_are_read_or_refused_in_bounded_time_and_memory(base, bases, tmp_path):
    raw, size = bases[base]
    path = tmp_path / "m.gguf"
    outcomes = {"read": 0, ModelFileError: 0, UnsupportedError: 0}
    for seed in range(N_CASES):
        rng = random.Random(f"{base}/{seed}")
        mutate = rng.choice([flip_bits, cut_off, splice, replace_length, replace_length])
        damaged = mutate(rng, raw, size)
        with path.open("wb") as out:
            out.write(damaged)
            if mutate is not cut_off:
                out.truncate(size)  # zeros where the weights would be, so that damage to the header alone is met
        tracemalloc.start()
        start = time.perf_counter()
        try:
            with ModelFile.open(path) as file:
                assert all(tensor.n_bytes <= file.n_bytes for tensor in file.tensors.values())
                _ = [int(tensor.data[0]) + int(tensor.data[-1]) for tensor in file.tensors.values()]
            message = f"{path}: read"
            outcomes["read"] += 1
        except (ModelFileError, UnsupportedError) as error:
            message = str(error)
            outcomes[type(error)] += 1
        seconds = time.perf_counter() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        # a string of two bytes is ten bytes of file and sixty of memory, an empty array twelve and some two hundred
        assert peak < 20 * size + 2**20, (seed, mutate.__name__, peak)
        assert seconds < 5, (seed, mutate.__name__, seconds)
    # the mutations are worth something only if they reach both ends
    assert outcomes["read"] > N_CASES // 50
    assert outcomes[ModelFileError] > N_CASES // 4
