"""Servers and stand-ins for tests, demos and benchmarks; public, for users' tests as well."""

from tailrace.testing.nats import EmbeddedNats
from tailrace.testing.postgres import EmbeddedPostgres
from tailrace.testing.proxy import TcpProxy
from tailrace.testing.shop import SampleShop

__all__ = ["EmbeddedNats", "EmbeddedPostgres", "SampleShop", "TcpProxy"]
