"""Terms in epochs and in the names of slots."""

from __future__ import annotations

import pytest

from tailrace.config import load
from tailrace.errors import ConfigError
from tailrace.log.term import LAST_TERM, base_of, first_epoch, slot_name, term_of, term_of_slot


@pytest.mark.parametrize("term", [0, 1, 2, 77, LAST_TERM])
def test_a_term_contains_all_epochs_from_its_first(term: int) -> None:
    assert term_of(first_epoch(term)) == term
    assert term_of(first_epoch(term) - 1) == term
    assert term_of(first_epoch(term) - 2) == term - 1
    assert term_of(first_epoch(term) + (1 << 32) - 2) == term
    assert term_of(first_epoch(term) + (1 << 32) - 1) == term + 1


@pytest.mark.parametrize("base", ["shop", "shop_e1", "s", "e1", "shop_e", "a" * 51])
@pytest.mark.parametrize("term", [0, 1, 10, LAST_TERM])
def test_the_name_of_a_slot_tells_its_term(base: str, term: int) -> None:
    name = slot_name(base, term)
    assert term_of_slot(name, base) == term
    assert base_of(name, first_epoch(term)) == base
    if term:
        # PostgreSQL and the settings accept it.
        assert load(None, {"source": {"slot": name}}).source.slot == name


@pytest.mark.parametrize(
    "name",
    [
        "shop_", "shop_e", "shop_e0", "shop_e01", "shop_e-1", "shop_e1x", "shop_e1_e2", "shop_f1",
        "shop_oracle", "shop1", "shops_e1", "hop", "xshop", "xshop_e1", "", "_e1",
        "shop_e4294967296", "shop_e99999999999", "shop_e\N{ARABIC-INDIC DIGIT ONE}", "SHOP_e1",
    ],
)  # fmt: skip
def test_other_names_have_no_term(name: str) -> None:
    assert term_of_slot(name, "shop") is None


def test_a_name_that_is_too_long_is_refused_with_the_fix() -> None:
    fits = "a" * 60
    assert len(slot_name(fits, 9)) == 63
    with pytest.raises(ConfigError, match="63 characters") as caught:
        slot_name(fits, 10)
    assert "pg_copy_logical_replication_slot" in caught.value.hint
    # The slot of the present term is the one to copy.
    assert f"('{fits}_e9', 'SHORTER_e9')" in caught.value.hint
    longest = "a" * 63
    assert slot_name(longest, 0) == longest
    with pytest.raises(ConfigError) as caught:
        slot_name(longest, 1)
    assert f"('{longest}', 'SHORTER')" in caught.value.hint


@pytest.mark.parametrize("term", [-1, LAST_TERM + 1])
def test_a_term_has_32_bits(term: int) -> None:
    with pytest.raises(ConfigError, match="between 0 and 4294967295"):
        slot_name("shop", term)


def test_a_slot_of_an_earlier_setting_keeps_its_name() -> None:
    """The name in a segment is that of its own term; anything else is the user's."""
    assert base_of("other", first_epoch(1)) == "other"
    assert base_of("shop_e2", first_epoch(1)) == "shop_e2"
