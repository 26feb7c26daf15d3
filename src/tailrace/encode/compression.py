"""Compression of snapshot chunks: zstd, with a dictionary trained on a table's rows.

A dictionary helps small chunks; in a chunk of thousands of rows zstd finds the repetitions itself.
The dictionary is trained on a sample of encoded rows. It has an id, which every compressed frame
repeats, and is published where consumers fetch it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import zstandard

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEVEL = 3
_MAX_BYTES, _MIN_BYTES = 64 << 10, 1 << 10
_SAMPLE_RATIO = 20
"""Consumers fetch the dictionary too: the sample is at least this many times as large."""
_MIN_SAMPLES = 100


@dataclass(frozen=True)
class Compression:
    """The compression of one snapshot's chunks. `dictionary` may be empty."""

    dictionary: bytes = b""

    @classmethod
    def trained(cls, samples: Sequence[bytes]) -> Self:
        """Train a dictionary; none for samples that are too few, too small or too uniform."""
        size = min(_MAX_BYTES, sum(map(len, samples)) // _SAMPLE_RATIO)
        if len(samples) < _MIN_SAMPLES or size < _MIN_BYTES:
            return cls()
        try:
            trained = zstandard.train_dictionary(size, list(samples))
        except zstandard.ZstdError:
            return cls()
        return cls(trained.as_bytes())

    @cached_property
    def number(self) -> int:
        """The id of the dictionary; 0 without one."""
        return self._data.dict_id() if self.dictionary else 0

    @cached_property
    def _data(self) -> zstandard.ZstdCompressionDict:
        return zstandard.ZstdCompressionDict(self.dictionary)

    @cached_property
    def _compressor(self) -> zstandard.ZstdCompressor:
        if not self.dictionary:
            return zstandard.ZstdCompressor(level=_LEVEL)
        return zstandard.ZstdCompressor(level=_LEVEL, dict_data=self._data)

    def compress(self, data: bytes) -> bytes:
        """Compress to one zstd frame."""
        return self._compressor.compress(data)

    def decompress(self, data: bytes) -> bytes:
        """Decompress one frame."""
        if not self.dictionary:
            return zstandard.ZstdDecompressor().decompress(data)
        return zstandard.ZstdDecompressor(dict_data=self._data).decompress(data)

    def __getstate__(self) -> bytes:
        """Pickle the dictionary only: a compressor cannot be pickled."""
        return self.dictionary

    def __setstate__(self, dictionary: bytes) -> None:
        object.__setattr__(self, "dictionary", dictionary)
