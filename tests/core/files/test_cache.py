from io import BytesIO

import pytest
from xxhash import xxh3_128_digest

from augury.files import cache


@pytest.mark.parametrize("n", [0, 1, 4, 5, 11])
def test_it_is_that_of_the_next_bytes_alone(n, monkeypatch):
    monkeypatch.setattr(cache, "_CHUNK", 4)
    file = BytesIO(b"..0123456789a...")
    file.seek(2)
    assert cache.checksum(file, n, b"before") == xxh3_128_digest(b"before" + b"0123456789a"[:n])
    assert file.tell() == 2 + n


def test_a_file_that_ends_early_is_taken_as_it_is():
    assert cache.checksum(BytesIO(b"abc"), 10**12) == xxh3_128_digest(b"abc")
