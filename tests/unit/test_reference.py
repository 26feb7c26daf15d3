from __future__ import annotations

import pytest

from docs.generate import PAGES, REFERENCE


@pytest.mark.parametrize("page", PAGES)
def test_reference_page_is_fresh(page: str) -> None:
    assert (REFERENCE / page).read_text() == PAGES[page](), "run: make docs"
