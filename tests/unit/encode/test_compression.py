"""Compression of snapshot chunks, with and without a dictionary."""

from __future__ import annotations

import pickle
import random

import pytest
import zstandard

from tailrace.encode.compression import Compression

RNG = random.Random(7)
ROWS = [
    b'{"id":%d,"status":"%s","customer":"customer-%06d"}'
    % (number, RNG.choice([b"paid", b"open", b"shipped"]), RNG.randrange(10**6))
    for number in range(2000)
]


@pytest.fixture(params=[Compression(), Compression.trained(ROWS)], ids=["plain", "dictionary"])
def compression(request: pytest.FixtureRequest) -> Compression:
    chosen: Compression = request.param
    return chosen


def test_decompressed_data_is_the_original(compression: Compression) -> None:
    data = b",".join(ROWS[:10])
    assert compression.decompress(compression.compress(data)) == data


def test_every_frame_repeats_the_id_of_the_dictionary(compression: Compression) -> None:
    frame = compression.compress(ROWS[0])
    assert zstandard.get_frame_parameters(frame).dict_id == compression.number


def test_a_dictionary_helps_small_chunks() -> None:
    trained = Compression.trained(ROWS)
    assert trained.number > 0
    assert len(trained.compress(ROWS[5])) < len(Compression().compress(ROWS[5]))
    assert len(trained.dictionary) * 20 <= sum(map(len, ROWS))


@pytest.mark.parametrize("samples", [[], ROWS[:99], [b"x"] * 200])
def test_unsuitable_samples_give_no_dictionary(samples: list[bytes]) -> None:
    trained = Compression.trained(samples)
    assert trained == Compression()
    assert trained.number == 0


def test_compression_can_be_pickled(compression: Compression) -> None:
    compression.compress(b"x")
    copy = pickle.loads(pickle.dumps(compression))
    assert copy == compression
    assert copy.decompress(compression.compress(ROWS[0])) == ROWS[0]
