from __future__ import annotations

import pytest

from tailrace.run.origin import is_same_origin


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "shop.example:9090"}, True),
        ({"host": "shop.example:9090", "origin": "http://shop.example:9090"}, True),
        ({"host": "SHOP.example:9090", "origin": "http://shop.EXAMPLE:9090"}, True),
        ({"host": "10.0.0.7:9090", "origin": "http://10.0.0.7:9090"}, True),
        ({"host": "10.0.0.7:9090", "origin": "http://10.0.0.8:9090"}, False),
        ({"host": "localhost:9090", "sec-fetch-site": "none"}, True),
        ({"host": "localhost:9090", "sec-fetch-site": "same-origin"}, True),
        ({"host": "localhost:9090", "sec-fetch-site": "cross-site"}, False),
        ({"origin": "http://localhost"}, False),
        ({"host": "", "origin": ""}, False),
        ({"host": "[bad", "origin": "http://[bad"}, False),
    ],
)
def test_which_requests_are_allowed(headers: dict[str, str], allowed: bool) -> None:
    assert is_same_origin(headers) is allowed
