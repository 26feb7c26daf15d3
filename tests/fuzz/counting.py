"""A loop over mutated inputs that reports how many there were, and repeats with a seed.

TAILRACE_FUZZ sets the number of inputs of each parser, TAILRACE_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import time
from itertools import islice
from typing import TYPE_CHECKING

from tests.chance import examples
from tests.fuzz.mutate import Mutator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GIVEN = os.environ.get("TAILRACE_FUZZ")
SEED = int(os.environ.get("TAILRACE_SEED", random.SystemRandom().getrandbits(32)))
TIMEOUT_S = 600 + int(_GIVEN or 0) // 100
"""Far longer than measured, so that only a parser that hangs reaches it."""


def fuzz(
    name: str, corpus: Sequence[bytes], accepts: Callable[[bytes], bool], *, factor: float = 1.0
) -> None:
    """Pass mutated inputs to `accepts`, which checks each and says whether it was valid.

    Some must be valid and some invalid: otherwise the corpus or the mutations are useless. A slow
    parser gets `factor` times the inputs unless TAILRACE_FUZZ sets their number.
    """
    count = int(_GIVEN or examples(400 * factor))
    started = time.perf_counter()
    valid = 0
    for number, data in enumerate(islice(Mutator(corpus, SEED), count)):
        try:
            valid += accepts(data)
        except BaseException as error:
            raise AssertionError(f"TAILRACE_SEED={SEED}, input {number}: {data!r}") from error
    rate = count / (time.perf_counter() - started)
    print(f"{name}: {count:_} inputs, {valid:_} valid, {rate:_.0f} inputs/s, seed {SEED}")
    assert 0 < valid < count
