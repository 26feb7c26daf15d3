"""Terms: which machine's turn it is to write the log.

The upper 32 bits of an epoch are its term, the lower 32 bits count the starts of capture in it. A
takeover (`tailrace.replica.takeover`) begins the next term. Each term has a replication slot of its
own: PostgreSQL creates a name once, so a term has one winner.

    term  slot            epochs
    0     shop            1, 2, 3 ...
    1     shop_e1         4294967297, 4294967298 ...
    2     shop_e2         8589934593 ...

Pure functions. `tailrace.log.lease` stores the epoch, `tailrace.postgres.slot_terms` reads the
slots.
"""

from __future__ import annotations

import re

from tailrace.errors import ConfigError

_COUNTER_BITS = 32
LAST_TERM = (1 << 32) - 1
_NAME_CHARACTERS = 63


def term_of(epoch: int) -> int:
    """The term of an epoch.

    >>> term_of(7), term_of(4294967297)
    (0, 1)
    """
    return epoch >> _COUNTER_BITS


def first_epoch(term: int) -> int:
    """The lowest epoch of a term that capture can have."""
    return term << _COUNTER_BITS | 1


def slot_name(base: str, term: int) -> str:
    """The slot of a term. `base` is the configured name, which is the slot of term 0.

    >>> slot_name("shop", 0), slot_name("shop", 2)
    ('shop', 'shop_e2')
    """
    if not 0 <= term <= LAST_TERM:
        raise ConfigError(f"a term must be between 0 and {LAST_TERM}, got {term}")
    if not term:
        return base
    name = f"{base}_e{term}"
    if len(name) > _NAME_CHARACTERS:
        before = f"_e{term - 1}" if term > 1 else ""
        raise ConfigError(
            f"source.slot {base!r} is too long for term {term}: its slot would be called {name!r}, "
            f"and PostgreSQL allows {_NAME_CHARACTERS} characters",
            hint="Stop capture, copy the slot to a shorter name (SELECT "
            f"pg_copy_logical_replication_slot('{base}{before}', 'SHORTER{before}')), set "
            "source.slot to SHORTER on all machines, and start capture.",
        )
    return name


def term_of_slot(name: str, base: str) -> int | None:
    """The term of a slot; None if it is not a slot of this base.

    >>> term_of_slot("shop", "shop"), term_of_slot("shop_e12", "shop"), term_of_slot("s", "shop")
    (0, 12, None)
    """
    if name == base:
        return 0
    suffix = re.fullmatch(r"_e([1-9][0-9]{0,9})", name.removeprefix(base), re.ASCII)
    if not name.startswith(base) or suffix is None:
        return None
    term = int(suffix[1])
    return term if term <= LAST_TERM else None


def base_of(slot: str, epoch: int) -> str:
    """The configured name of the slot that capture reads in an epoch: what users know it by.

    >>> base_of("shop", 3), base_of("shop_e1", 4294967299), base_of("shop_e1", 3)
    ('shop', 'shop', 'shop_e1')
    """
    term = term_of(epoch)
    return slot.removesuffix(f"_e{term}") if term else slot
