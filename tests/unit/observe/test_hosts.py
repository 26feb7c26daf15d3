"""Which names in `Host` are those of the server."""

from __future__ import annotations

import pytest

from tailrace.observe.hosts import AllowedHosts


@pytest.mark.parametrize(
    ("listen", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:9090", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost:1234", True),
        ("127.0.0.1", "LOCALHOST.", True),
        ("127.0.0.1", "tailrace.localhost:9090", True),
        ("127.0.0.1", "[::1]:9090", True),
        ("127.0.0.1", "shop.example:9090", True),
        ("127.0.0.1", "Shop.Example", True),
        ("127.0.0.1", "10.0.0.7:9090", False),
        ("127.0.0.1", "evil.example:9090", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "evillocalhost", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "localhost@evil.example", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "[bad", False),
        ("10.0.0.7", "10.0.0.7:9090", True),
        ("10.0.0.7", "10.0.0.8:9090", False),
        ("server.internal", "server.internal:9090", True),
        ("0.0.0.0", "10.0.0.7:9090", True),
        ("::", "[fe80::1]:9090", True),
        ("0.0.0.0", "evil.example:9090", False),
    ],
)
def test_names_and_addresses_of_the_server(listen: str, host: str, allowed: bool) -> None:
    assert AllowedHosts(listen, ["shop.example"]).allow(host) is allowed


def test_the_address_of_the_connection_is_the_servers() -> None:
    hosts = AllowedHosts("server.internal")
    assert hosts.allow("10.0.0.7:9090", local="10.0.0.7")
    assert not hosts.allow("10.0.0.8:9090", local="10.0.0.7")
    assert not hosts.allow("evil.example", local="10.0.0.7")
