"""GGUF files: what valid ones hold, agreement with the gguf package, and a clear error for everything else."""

import errno
import os
import re
import shutil
import struct
import time

import gguf
import numpy as np
import pytest

from augury.errors import AuguryError, CapacityError, ModelFileError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.header import MAX_HEADER_BYTES
from augury.files.tensor_type import TensorType, type_name

# The format, written out by hand: what the gguf package cannot be talked into.


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, value_type, value):
    return text(key) + struct.pack("<I", value_type) + value


def row(name, dims=(32,), type_id=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def whole(entries=(), rows=(), data=b"", *, version=3, n_kv=None, n_tensors=None, alignment=32):
    n_kv = len(entries) if n_kv is None else n_kv
    n_tensors = len(rows) if n_tensors is None else n_tensors
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_kv) + b"".join(entries) + b"".join(rows)
    return head + b"\0" * (-len(head) % alignment) + data


ARCHITECTURE = entry("general.architecture", 8, text("llama"))
U32, STRING, ARRAY = 4, 8, 9


def array(item_type, n, items):
    return struct.pack("<IQ", item_type, n) + items


@pytest.fixture
def open_bytes(tmp_path):
    def opened(raw):
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return ModelFile.open(path)

    return opened


def write_model(path, tensors, *, n_parts_of=0, alignment=None):
    writer = gguf.GGUFWriter(None, "llama", split_max_tensors=n_parts_of)
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(2)
    writer.add_rope_freq_base(1e6)
    writer.add_bool("x.flag", val=True)
    writer.add_token_list(["a", "é", "▁b", b"\xff\xfe"])
    writer.add_token_scores([0.0, -1.5, -2.0, 3.0])
    writer.add_token_types([1, 1, 3, 6])
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors_of(n):
    rng = np.random.default_rng(1)
    return {f"blk.{i}.weight": rng.standard_normal((3 + i, 32), dtype=np.float32) for i in range(n)}


# Tensor types


def test_a_file_that_finds_no_address_space_is_a_lack_of_memory(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("mmap.mmap", fail)
    with pytest.raises(CapacityError, match="too little memory"):
        ModelFile.open(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", TensorType, ids=lambda kind: kind.name)
def test_block_sizes_are_those_of_the_gguf_package(kind):
    assert gguf.GGMLQuantizationType(kind).name == kind.name
    assert (kind.block_size, kind.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]


def test_every_type_of_the_gguf_package_has_its_name():
    assert {kind: type_name(kind) for kind in gguf.GGMLQuantizationType} == {
        kind: kind.name for kind in gguf.GGMLQuantizationType
    }


@pytest.mark.parametrize("kind", TensorType, ids=lambda kind: kind.name)
def test_a_tensor_of_each_type_loads(kind, open_bytes):
    data = np.random.default_rng(kind).integers(0, 256, 3 * 2 * 256 // kind.block_size * kind.block_bytes, dtype=np.uint8)
    file = open_bytes(whole([ARCHITECTURE], [row("w", (256, 2, 3), kind)], data.tobytes()))
    tensor = file.tensor("w", (3, 2, 256))
    assert tensor.type is kind
    assert tensor.n_bytes == data.size
    assert np.array_equal(tensor.data, data)
    if kind.integers is None:
        with np.errstate(all="ignore"):  # scales are any bits
            values = gguf.quants.dequantize(data.reshape(6, -1), gguf.GGMLQuantizationType(kind)).reshape(3, 2, 256)
            assert np.array_equal(tensor.floats(), values, equal_nan=True)


@pytest.mark.parametrize(("type_id", "name"), [(15, "Q8_K"), (41, "Q1_0"), (24, "I8"), (28, "F64"), (777, "type 777")])
def test_a_type_that_is_not_read_is_named_with_its_tensor(type_id, name, open_bytes):
    with pytest.raises(UnsupportedError, match=f"'blk.0.w' is stored as {name}, .*Q4_K"):
        open_bytes(whole([ARCHITECTURE], [row("blk.0.w", (256,), type_id)], b"\0" * 4096))


# Agreement with the gguf package


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_metadata_and_tensors_agree_with_the_gguf_reader(tmp_path, alignment):
    path = tmp_path / "m.gguf"
    tensors = tensors_of(5) | {"half": np.arange(64, dtype=np.float16), "cube": np.ones((2, 3, 32), np.float32)}
    write_model(path, tensors, alignment=alignment)
    reader = gguf.GGUFReader(path)
    with ModelFile.open(path) as file:
        assert file.n_bytes == path.stat().st_size
        assert file.paths == (path,)
        assert file.architecture == "llama"
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for theirs in reader.tensors:
            ours = file.tensor(theirs.name)
            assert ours.shape == tuple(theirs.shape.tolist()[::-1]) == tensors[theirs.name].shape
            assert ours.type == theirs.tensor_type
            assert ours.data.tobytes() == theirs.data.tobytes()
        for key, theirs in reader.fields.items():
            if not key.startswith("GGUF.") and key != "tokenizer.ggml.tokens":  # theirs cannot decode the last token
                ours = file.metadata[key]
                assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == theirs.contents()


def test_values_of_every_type_are_read(open_bytes):
    numbers = {
        0: ("<B", 200), 1: ("<b", -100), 2: ("<H", 60000), 3: ("<h", -30000), 4: ("<I", 4000000000), 5: ("<i", -2000000000),
        6: ("<f", 0.5), 10: ("<Q", 2**64 - 1), 11: ("<q", -(2**63)), 12: ("<d", 1e-300),
    }  # fmt: skip
    entries = [entry(f"one.{kind}", kind, struct.pack(code, value)) for kind, (code, value) in numbers.items()]
    entries += [
        entry(f"many.{kind}", ARRAY, array(kind, 3, struct.pack(code, value) * 3)) for kind, (code, value) in numbers.items()
    ]
    entries += [entry("one.7", 7, b"\1"), entry("many.7", ARRAY, array(7, 2, b"\0\1")), entry("none", ARRAY, array(6, 0, b""))]
    entries += [entry("nested", ARRAY, array(ARRAY, 2, array(STRING, 1, text("x")) + array(U32, 2, struct.pack("<2I", 7, 8))))]
    file = open_bytes(whole(entries))
    for kind, (_, value) in numbers.items():
        assert file.metadata[f"one.{kind}"] == value
        assert type(file.metadata[f"one.{kind}"]) is type(value)
        assert file.metadata[f"many.{kind}"].tolist() == [value] * 3
    assert file.metadata["one.7"] is True
    assert file.metadata["many.7"].tolist() == [False, True]
    assert file.metadata["none"].shape == (0,)
    strings, integers = file.metadata["nested"]
    assert strings == ["x"]
    assert integers.tolist() == [7, 8]


def test_version_2_is_read_like_version_3(open_bytes):
    file = open_bytes(whole([ARCHITECTURE], [row("w")], b"\1" * 128, version=2))
    assert file.tensor("w", (32,)).data.tolist() == [1] * 128


def test_text_that_is_not_utf8_gives_its_bytes_back(tmp_path):
    write_model(tmp_path / "m.gguf", tensors_of(1))
    tokens = ModelFile.open(tmp_path / "m.gguf").get("tokenizer.ggml.tokens", list[str])
    assert [token.encode("utf-8", "surrogateescape") for token in tokens] == [b"a", "é".encode(), "▁b".encode(), b"\xff\xfe"]


def test_what_a_file_holds_cannot_be_written(tmp_path):
    write_model(tmp_path / "m.gguf", tensors_of(1))
    file = ModelFile.open(tmp_path / "m.gguf")
    with pytest.raises(ValueError, match="read-only"):
        file.tensor("blk.0.weight").data[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        file.get("tokenizer.ggml.scores", np.ndarray)[0] = 1
    with pytest.raises(TypeError):
        file.metadata["x"] = 1


def test_closing_lets_the_tensors_go_but_not_those_in_use(tmp_path):
    write_model(tmp_path / "m.gguf", tensors_of(2))
    with ModelFile.open(tmp_path / "m.gguf") as file:
        kept = file.tensor("blk.1.weight")
    assert not file.tensors
    assert np.array_equal(kept.data.view(np.float32).reshape(kept.shape), tensors_of(2)["blk.1.weight"])


def test_a_header_with_150000_tokens_is_read_within_the_bar(tmp_path):
    tokens = [f"token{i}" for i in range(150_000)]
    strings = b"".join(map(text, tokens))
    path = tmp_path / "m.gguf"
    path.write_bytes(
        whole(
            [
                entry("tokenizer.ggml.tokens", ARRAY, array(STRING, len(tokens), strings)),
                entry("tokenizer.ggml.merges", ARRAY, array(STRING, len(tokens), strings)),
                entry("tokenizer.ggml.token_type", ARRAY, array(5, len(tokens), b"\1\0\0\0" * len(tokens))),
            ]
        )
    )

    def seconds():
        start = time.process_time()
        assert ModelFile.open(path).get("tokenizer.ggml.tokens", list[str]) == tokens
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.3


# Lookups


@pytest.fixture
def looked_up(open_bytes):
    return open_bytes(
        whole(
            [
                entry("n", U32, struct.pack("<I", 5)),
                entry("x", 6, struct.pack("<f", 0.5)),
                entry("on", 7, b"\1"),
                entry("s", STRING, text("hello")),
                entry("ns", ARRAY, array(5, 2, struct.pack("<2i", -1, 2))),
                entry("xs", ARRAY, array(6, 1, struct.pack("<f", 0.5))),
                entry("ons", ARRAY, array(7, 1, b"\1")),
                entry("ss", ARRAY, array(STRING, 2, text("a") + text("b"))),
                entry("nested", ARRAY, array(ARRAY, 1, array(U32, 0, b""))),
            ],
            [row("w", (32, 2))],
            b"\0" * 256,
        )
    )


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("n", int, 5), ("n", float, 5.0), ("x", float, 0.5), ("on", bool, True), ("s", str, "hello"),
        ("ns", list[int], [-1, 2]), ("ns", list[float], [-1.0, 2.0]), ("xs", list[float], [0.5]), ("ons", list[bool], [True]),
        ("ss", list[str], ["a", "b"]),
    ],
)  # fmt: skip
def test_get_returns_the_value_as_the_kind_asked_for(looked_up, key, kind, value):
    found = looked_up.get(key, kind)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, list):
        assert [type(item) for item in found] == [type(item) for item in value]


def test_get_returns_numbers_as_the_file_stores_them(looked_up):
    found = looked_up.get("ns", np.ndarray)
    assert found.dtype == np.int32
    assert found.tolist() == [-1, 2]


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ("n", str, "'n' is the int 5, expected a string"),
        ("n", bool, "'n' is the int 5, expected true or false"),
        ("x", int, "'x' is the float 0.5, expected an integer"),
        ("on", int, "'on' is the bool True, expected an integer"),
        ("on", float, "'on' is the bool True, expected a number"),
        ("s", int, "'s' is the str 'hello', expected an integer"),
        ("n", list[int], "'n' is the int 5, expected an array of integers"),
        ("ns", int, "'ns' is an array of 2 int32, expected an integer"),
        ("xs", list[int], "'xs' is an array of 1 float32, expected an array of integers"),
        ("ns", list[str], "'ns' is an array of 2 int32, expected an array of strings"),
        ("ss", np.ndarray, "'ss' is an array of 2 strings, expected an array of numbers"),
        ("nested", list[str], "'nested' is an array of 1 arrays, expected an array of strings"),
        ("absent", int, "'absent' is missing, expected an integer"),
    ],
)
def test_get_names_the_key_what_was_found_and_what_was_expected(looked_up, key, kind, message):
    with pytest.raises(ModelFileError, match=re.escape(message)):
        looked_up.get(key, kind)


def test_get_returns_the_default_for_a_missing_key_only(looked_up):
    assert looked_up.get("absent", int, 7) == 7
    assert looked_up.get("absent", str, None) is None
    with pytest.raises(ModelFileError, match="'s' is the str"):
        looked_up.get("s", int, 7)


def test_tensor_names_what_is_missing_and_both_shapes(looked_up):
    assert looked_up.tensor("w").shape == (2, 32)
    with pytest.raises(ModelFileError, match=re.escape("tensor 'v' is missing, expected one of shape (2, 32)")):
        looked_up.tensor("v", (2, 32))
    with pytest.raises(ModelFileError, match=re.escape("tensor 'w' has shape (2, 32), expected (32, 2)")):
        looked_up.tensor("w", (32, 2))


def test_architecture_of_a_file_that_states_none_is_an_error(looked_up):
    with pytest.raises(ModelFileError, match=re.escape("'general.architecture' is missing")):
        _ = looked_up.architecture


# Malformed files. Each message names the file; the pattern says what else it must name.

HUGE = 2**64 - 1
MALFORMED = {
    "empty": (b"", "is empty"),
    "other format": (b"PK\3\4" + bytes(100), "it starts with b'PK\\x03\\x04', expected b'GGUF'; download it again"),
    "another format": (b"ggml" + bytes(100), "convert_hf_to_gguf.py, see Models in docs/guide.md"),
    "shorter than the magic": (b"GG", "not a GGUF file"),
    "magic alone": (b"GGUF", "the version needs 4 bytes at 4, but the file ends at 4; is it truncated"),
    "version 1": (whole(version=1), "version 1 is no longer used"),
    "version 4": (whole(version=4), "version 4 is unknown"),
    "version 0": (whole(version=0), "version 0 is unknown"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "counts cut off": (b"GGUF" + struct.pack("<IQ", 3, 0), "the number of metadata entries needs 8 bytes"),
    "absurd number of entries": (whole([ARCHITECTURE], n_kv=HUGE), "18446744073709551615 metadata entries"),
    "more tensors than there is room for": (whole([ARCHITECTURE], n_tensors=2**20), "but 72 are left; is it truncated?"),
    "absurd number of tensors": (
        whole([ARCHITECTURE], n_tensors=HUGE),
        f"{HUGE} tensors are announced, which take {33 * HUGE + 14} bytes or more, beyond the 134217728 that a header may take",
    ),
    "absurd array": (whole([entry("k", ARRAY, array(4, HUGE, b""))]), f"'k' needs {4 * HUGE} bytes at 49, beyond the 1342"),
    "absurd number of strings": (whole([entry("k", ARRAY, array(STRING, HUGE, b""))]), "of 8 bytes or more, beyond the 1342"),
    "one entry too few": (whole([ARCHITECTURE], n_kv=2, alignment=1) + bytes(24), "metadata key 1 has 0 bytes"),
    "key longer than the file": (
        whole([struct.pack("<Q", HUGE) + bytes(64)]),
        "metadata key 0 needs 18446744073709551615 bytes",
    ),
    "key longer than keys may be": (whole([entry("k" * 70000, U32, bytes(4))]), "key 0 has 70000 bytes, expected 1 to 65535"),
    "key not UTF-8": (whole([entry(b"\xff\xfe", U32, bytes(4))]), "metadata key 0 is not valid UTF-8"),
    "duplicate key": (whole([ARCHITECTURE, ARCHITECTURE]), "'general.architecture' appears twice"),
    "unknown value type": (whole([entry("k", 13, bytes(64))]), "the value of 'k' has value type 13"),
    "unknown item type": (whole([entry("k", ARRAY, array(99, 0, b""))]), "'k' has value type 99"),
    "string longer than the file": (whole([entry("k", STRING, struct.pack("<Q", 2**63))]), "of 'k' needs 9223372036854775808"),
    "array longer than the file": (
        whole([entry("k", ARRAY, array(12, 2**61, bytes(64)))]),
        "of 'k' needs 18446744073709551616",
    ),
    "string array longer than the file": (
        whole([entry("k", ARRAY, array(STRING, 2**60, bytes(64)))]),
        "announces 1152921504606846976",
    ),
    "string in an array too long": (
        whole([entry("k", ARRAY, array(STRING, 2, text("a") + struct.pack("<Q", HUGE)))]),
        "of 'k', string 1 of 2, needs 18446744073709551615 bytes",
    ),
    "string array cut off": (
        whole([entry("k", ARRAY, array(STRING, 2, text("abcdefgh") + b"\1"))], alignment=1),
        "of 'k', string 1 of 2, needs 8 bytes",
    ),
    "arrays five deep": (
        whole([entry("k", ARRAY, array(ARRAY, 1, b"") * 4 + array(U32, 0, b""))]),
        "'k' nests arrays more than 4 deep",
    ),
    "arrays in arrays in arrays": (
        whole([entry("k", ARRAY, b"".join(array(ARRAY, 1, b"") for _ in range(5000)))]),
        "'k' nests arrays more than 4 deep",
    ),
    "array of arrays longer than the file": (
        whole([entry("k", ARRAY, array(ARRAY, 2**59, bytes(64)))]),
        "announces 576460752303423488",
    ),
    "truth value 2": (whole([entry("k", 7, b"\2")]), "'k' holds the byte 2 as a truth value"),
    "alignment 0": (whole([entry("general.alignment", U32, bytes(4))]), "general.alignment is 0"),
    "alignment 24": (whole([entry("general.alignment", U32, struct.pack("<I", 24))]), "general.alignment is 24"),
    "alignment 4": (whole([entry("general.alignment", U32, struct.pack("<I", 4))]), "general.alignment is 4"),
    "alignment 2**40": (
        whole([entry("general.alignment", 10, struct.pack("<Q", 2**40))]),
        "general.alignment is 1099511627776",
    ),
    "alignment negative": (whole([entry("general.alignment", 5, struct.pack("<i", -32))]), "general.alignment is -32"),
    "alignment a string": (whole([entry("general.alignment", STRING, text("32"))]), "general.alignment is '32'"),
    "alignment true": (whole([entry("general.alignment", 7, b"\1")]), "general.alignment is True"),
    "duplicate tensor": (whole([], [row("w"), row("w", offset=128)], bytes(256)), "tensor 'w' appears twice"),
    "tensor without a name": (whole([], [row("")], bytes(128)), "name of tensor 0 has 0 bytes"),
    "tensor name not UTF-8": (whole([], [row(b"\xc3")], bytes(128)), "name of tensor 0 is not valid UTF-8"),
    "tensor name too long": (whole([], [row("w" * 2000)], bytes(128)), "name of tensor 0 has 2000 bytes"),
    "no dimensions": (whole([], [row("w", ())], bytes(128)), "'w' has 0 dimensions, expected 1 to 4"),
    "five dimensions": (whole([], [row("w", (1, 1, 1, 1, 1))], bytes(128)), "'w' has 5 dimensions"),
    "absurd number of dimensions": (
        whole([], [text("w") + struct.pack("<IQQ", 2**32 - 1, 1, 1) + bytes(64)]),
        "'w' has 4294967295 dimensions",
    ),
    "dimension 0": (whole([], [row("w", (32, 0))], bytes(128)), "'w' has shape (0, 32): every dimension"),
    "huge dimension": (whole([], [row("w", (2**63,))], bytes(128)), "'w' (shape (9223372036854775808,), F32) takes"),
    "size that overflows 64 bits to 0": (whole([], [row("w", (2**32, 2**32))], bytes(128)), "but the file ends at"),
    "row of half a block": (
        whole([], [row("w", (48, 2), TensorType.Q8_0)], bytes(128)),
        "'w' has rows of 48 weights, expected a multiple of 32",
    ),
    "misaligned offset": (
        whole([], [row("w", (8,), offset=16)], bytes(128)),
        "'w' starts at offset 16, expected a multiple of the alignment 32",
    ),
    "offset outside the file": (whole([], [row("w", offset=2**40)], bytes(128)), "'w' (shape (32,), F32) takes the bytes"),
    "offset that overflows": (whole([], [row("w", offset=2**64 - 32)], bytes(128)), "but the file ends at"),
    "tensor ends outside the file": (whole([], [row("w")], bytes(127)), "is it truncated?"),
    "tensors overlap": (whole([], [row("v"), row("w", offset=96)], bytes(256)), "tensors 'v' and 'w' overlap"),
    "tensors overlap by less than the alignment": (
        whole([], [row("v", dims=(33,)), row("w", offset=128)], bytes(512)),
        "tensors 'v' and 'w' overlap at byte",
    ),
    "same tensor twice under two names": (whole([], [row("v"), row("w")], bytes(256)), "tensors 'v' and 'w' overlap"),
    "parts without part names": (whole([entry("split.count", 2, struct.pack("<H", 3))]), "one of 3 parts, so the file name"),
    "split count a string": (
        whole([entry("split.count", STRING, text("3"))]),
        "'split.count' is the str '3', expected an integer",
    ),
    "absurd split count": (whole([entry("split.count", 10, struct.pack("<Q", HUGE))]), "one of 18446744073709551615 parts"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_file_is_an_error_that_names_the_file_and_the_fault(kind, tmp_path):
    raw, message = MALFORMED[kind]
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match=re.escape(message)) as caught:
        ModelFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < len(str(path)) + 400


@pytest.mark.parametrize("n", range(0, 700, 13))
def test_a_file_cut_off_anywhere_is_an_error(n, tmp_path):
    path = tmp_path / "m.gguf"
    write_model(path, tensors_of(1))
    raw = path.read_bytes()
    assert n < len(raw)
    path.write_bytes(raw[:n])
    with pytest.raises(ModelFileError):
        ModelFile.open(path)


def test_a_huge_file_of_zeros_is_refused_before_its_strings_are_read(tmp_path):
    path = tmp_path / "zeros.gguf"
    n = 2**30  # strings without a letter, one after another, all within the file
    head = whole([entry("k", ARRAY, array(STRING, n, b""))], alignment=1)
    path.write_bytes(head)
    os.truncate(path, 2**34)
    with pytest.raises(ModelFileError, match=f"announces {n} items of 8 bytes or more, beyond the {MAX_HEADER_BYTES} that"):
        ModelFile.open(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "is a directory, expected a GGUF file"),
        (lambda path: (path.mkdir(), (path / "m.gguf").touch()), "expected a GGUF file; name a file in it, such as m.gguf"),
        (lambda path: (path.mkdir(), (path / "config.json").touch()), "llama.cpp's convert_hf_to_gguf.py makes one of it, see"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda _: None, "cannot be read: No such file or directory"),
    ],
    ids=["directory", "directory of models", "model in another format", "pipe", "link to itself", "nothing"],
)
def test_what_is_no_file_is_an_error(make, message, tmp_path):
    make(tmp_path / "x.gguf")
    with pytest.raises(ModelFileError, match=re.escape(message)):
        ModelFile.open(tmp_path / "x.gguf")


# Split models


@pytest.fixture
def parts(tmp_path):
    write_model(tmp_path / "m.gguf", tensors_of(5), n_parts_of=2)
    found = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in found] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return found


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_any_part_of_a_split_model_opens_the_whole(parts, asked):
    file = ModelFile.open(parts[asked])
    assert file.path == parts[asked]
    assert file.paths == tuple(parts)
    assert file.n_bytes == sum(path.stat().st_size for path in parts)
    assert file.get("llama.block_count", int) == 2
    for name, values in tensors_of(5).items():
        assert np.array_equal(file.tensor(name, values.shape).data.view(np.float32), values.ravel())


def identity(path):
    with ModelFile.open(path) as file:
        return file.identity


def test_an_identity_changes_with_any_part_and_stays_without_change(parts):
    before = identity(parts[0])
    assert identity(parts[1]) == before
    assert len(before) == len(parts)
    parts[1].write_bytes(parts[1].read_bytes())
    assert identity(parts[0])[0] == before[0]
    assert identity(parts[0])[1] != before[1]


def test_a_digest_tells_weights_and_headers_apart_and_not_where_they_lie(parts, tmp_path):
    def digest(path):
        with ModelFile.open(path) as file:
            return file.digest

    before = digest(parts[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for part in parts:
        shutil.copy(part, elsewhere)
    assert digest(elsewhere / parts[1].name) == digest(parts[2]) == before
    for part in parts:
        data = part.read_bytes()
        with ModelFile._open_one(part) as file:
            sizes = [tensor.n_bytes for tensor in file.tensors.values()]
        at = len(data) - sizes[-1] // 2
        part.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert digest(parts[0]) != before
        part.write_bytes(data)
    assert digest(parts[0]) == before
    with ModelFile.open(parts[0], {"general.name": "another"}) as file:  # or what says how it is computed
        assert file.digest != before


def test_a_missing_part_is_named(parts):
    parts[1].unlink()
    with pytest.raises(ModelFileError, match=r"1 of 3 parts are missing beside it: m-00002-of-00003\.gguf"):
        ModelFile.open(parts[0])


def test_many_missing_parts_make_a_short_message(tmp_path):
    path = tmp_path / "m-00001-of-60000.gguf"
    path.write_bytes(whole([entry("split.count", 2, struct.pack("<H", 60000))]))
    with pytest.raises(ModelFileError, match=r"59999 of 60000 parts are missing.*and 59996 more") as caught:
        ModelFile.open(path)
    assert len(str(caught.value)) < len(str(path)) + 200


@pytest.mark.parametrize("name", ["m.gguf", "m-00001-of-00004.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf"])
def test_a_part_under_another_name_is_an_error(parts, name):
    path = parts[0].rename(parts[0].with_name(name))
    with pytest.raises(ModelFileError, match="file name"):
        ModelFile.open(path)


def test_parts_that_changed_places_are_an_error(parts):
    spare = parts[0].with_name("spare")
    parts[1].rename(spare)
    parts[2].rename(parts[1])
    spare.rename(parts[2])
    with pytest.raises(ModelFileError, match=r"split\.no is 2, expected 1 in part 2 of 3"):
        ModelFile.open(parts[0])


def part(no, count, n_tensors, rows, data, n_layers=2):
    entries = [
        entry("llama.block_count", U32, struct.pack("<I", n_layers)),
        entry("split.no", 2, struct.pack("<H", no)),
        entry("split.count", 2, struct.pack("<H", count)),
        entry("split.tensors.count", 5, struct.pack("<i", n_tensors)),
    ]
    return whole(entries, rows, data)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (part(1, 2, 2, [row("w")], bytes(128)), "tensor 'w' is in an earlier part too"),
        (part(1, 3, 2, [row("v")], bytes(128)), "split.count is 3, expected 2"),
        (part(1, 2, 9, [row("v")], bytes(128)), "split.tensors.count is 9, but the 2 parts hold 2 tensors"),
        (whole([], [row("v")], bytes(128)), "'split.no' is missing"),
        (part(1, 2, 2, [row("v")], bytes(128), 3), "'llama.block_count' is the int 3, but the int 2 in part 1; take"),
        (b"nothing", "not a GGUF file"),
    ],
    ids=["shared tensor", "other count", "other total", "no part", "other model", "no GGUF"],
)
def test_parts_that_do_not_belong_together_are_an_error(tmp_path, second, message):
    paths = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    paths[0].write_bytes(part(0, 2, 2, [row("w")], bytes(128)))
    paths[1].write_bytes(part(1, 2, 2, [row("v")], bytes(128)))
    assert len(ModelFile.open(paths[0]).tensors) == 2
    paths[1].write_bytes(second)
    with pytest.raises(AuguryError, match=re.escape(message)) as caught:
        ModelFile.open(paths[0])
    assert str(paths[1]) in str(caught.value)


def test_a_whole_model_may_have_the_name_of_a_part(tmp_path):
    path = tmp_path / "m-00001-of-00003.gguf"
    write_model(path, tensors_of(1))
    assert ModelFile.open(path).paths == (path,)


def test_arrays_may_be_nested_four_deep(open_bytes):
    file = open_bytes(whole([entry("k", ARRAY, array(ARRAY, 1, b"") * 3 + array(U32, 1, struct.pack("<I", 7)))]))
    assert [int(each) for each in file.metadata["k"][0][0][0]] == [7]
