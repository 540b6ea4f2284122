"""Checksums as list files and origins write them."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest

from common.errors import BadInputError
from common.pelican.checksums import hasher, matches

CONTENT = bytes(range(256)) * 40
VALUES = {
    "adler32": f"{zlib.adler32(CONTENT):08x}",
    "crc32": f"{zlib.crc32(CONTENT):08x}",
    "md5": hashlib.md5(CONTENT).hexdigest(),
    "sha1": hashlib.sha1(CONTENT).hexdigest(),
    "sha256": hashlib.sha256(CONTENT).hexdigest(),
}


def is_checksum_of(checksum: str, content: bytes) -> bool:
    found = hasher(checksum)
    found.update(content)
    return matches(checksum, found)


@pytest.mark.parametrize(
    ("checksum", "content"),
    [
        ("adler32=11e60398", b"Wikipedia"),
        ("crc32=cbf43926", b"123456789"),
        ("md5=900150983cd24fb0d6963f7d28e17f72", b"abc"),
        ("sha1=a9993e364706816aba3e25717850c26c9cd0d89d", b"abc"),
        ("sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", b""),
    ],
)
def test_published_values_match(checksum: str, content: bytes) -> None:
    assert is_checksum_of(checksum, content)


@pytest.mark.parametrize("algorithm", VALUES)
def test_one_wrong_bit_is_found(algorithm: str) -> None:
    checksum = f"{algorithm}={VALUES[algorithm]}"
    assert is_checksum_of(checksum, CONTENT)
    assert not is_checksum_of(checksum, CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))


@pytest.mark.parametrize("algorithm", VALUES)
@pytest.mark.parametrize("num_pieces", [1, 2, 7])
def test_pieces_give_what_the_whole_gives(algorithm: str, num_pieces: int) -> None:
    found = hasher(f"{algorithm}=")
    step = len(CONTENT) // num_pieces + 1
    for first in range(0, len(CONTENT), step):
        found.update(CONTENT[first : first + step])
    assert found.hexdigest() == VALUES[algorithm]


@pytest.mark.parametrize("algorithm", VALUES)
def test_upper_case_and_spaces_around_do_not_matter(algorithm: str) -> None:
    assert is_checksum_of(f"{algorithm}= {VALUES[algorithm].upper()} ", CONTENT)


def test_adler32_is_taken_without_its_leading_zeros() -> None:
    content = b"a"  # 00620062
    assert is_checksum_of("adler32=620062", content)
    assert is_checksum_of("adler32=00620062", content)


def test_md5_is_taken_in_base64_as_digest_headers_have_it() -> None:
    value = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    assert is_checksum_of(f"md5={value}", CONTENT)
    assert not is_checksum_of(f"md5={value}", CONTENT + b"x")


@pytest.mark.parametrize("value", ["", "xyz", "0", VALUES["md5"][:-1], VALUES["md5"] + "0", "not base64!"])
def test_what_is_no_value_of_the_algorithm_matches_nothing(value: str) -> None:
    assert not is_checksum_of(f"md5={value}", CONTENT)


@pytest.mark.parametrize("checksum", ["crc64=00", "MD5=00", "", "=00", "900150983cd24fb0d6963f7d28e17f72"])
def test_an_unknown_algorithm_is_refused_with_those_that_are_known(checksum: str) -> None:
    with pytest.raises(BadInputError, match="expected adler32"):
        hasher(checksum)
