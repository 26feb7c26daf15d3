"""The options of `tailrace mirror`."""

from __future__ import annotations

from tailrace.cli.mirror.command import MirrorOptions


def test_addresses_are_not_shown() -> None:
    options = MirrorOptions(source="nats://ann:s3cret@nats", to="postgresql://ann:s3cret@db/shop")
    assert "s3cret" not in repr(options)
