"""Compressed chunks: zstd, with a dictionary of what a table's rows have in common.

A dictionary pays for small chunks; in one of thousands of rows zstd finds the same by itself. It is
trained on a sample of encoded rows, has a number of its own that every compressed frame repeats,
and is kept where consumers fetch it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import zstandard

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEVEL = 3
_MOST_BYTES, _LEAST_BYTES = 64 << 10, 1 << 10
_SHARE = 20
"""A dictionary is fetched, too: it has at most this part of the sample's size."""
_LEAST_SAMPLES = 100


@dataclass(frozen=True)
class Compression:
    """How the chunks of one snapshot are compressed. `dictionary` may be empty."""

    dictionary: bytes = b""

    @classmethod
    def trained(cls, samples: Sequence[bytes]) -> Self:
        """With a dictionary for such rows, unless they are too few or too much alike for one."""
        size = min(_MOST_BYTES, sum(map(len, samples)) // _SHARE)
        if len(samples) < _LEAST_SAMPLES or size < _LEAST_BYTES:
            return cls()
        try:
            found = zstandard.train_dictionary(size, list(samples))
        except zstandard.ZstdError:
            return cls()
        return cls(found.as_bytes())

    @cached_property
    def number(self) -> int:
        """The dictionary's own number; 0 without one."""
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
        """One frame."""
        return self._compressor.compress(data)

    def decompress(self, data: bytes) -> bytes:
        """What was compressed."""
        if not self.dictionary:
            return zstandard.ZstdDecompressor().decompress(data)
        return zstandard.ZstdDecompressor(dict_data=self._data).decompress(data)

    def __getstate__(self) -> bytes:
        """The compressor itself stays behind."""
        return self.dictionary

    def __setstate__(self, dictionary: bytes) -> None:
        object.__setattr__(self, "dictionary", dictionary)
