"""Pages are rendered again only when something may have changed."""

from __future__ import annotations

from itertools import count

from tailrace.console.live import _unless_equal


def test_a_view_that_takes_time_is_not_repeated() -> None:
    """GIVEN a version WHEN it stays equal THEN the page is not rendered again."""
    version, rendered = ["one"], count()
    page = _unless_equal(lambda: f"page {next(rendered)}", lambda: version[0])
    assert [page(), page(), page()] == ["page 0"] * 3
    version[0] = "two"
    assert [page(), page()] == ["page 1"] * 2


def test_without_a_version_every_view_is_new() -> None:
    rendered = count()
    page = _unless_equal(lambda: f"page {next(rendered)}", None)
    assert [page(), page()] == ["page 0", "page 1"]
