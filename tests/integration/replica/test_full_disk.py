"""A follower whose disk is full at the worst moment: while it cuts what a connection has left."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import DiskFullError
from tailrace.testing.proxy import TcpProxy
from tests.integration.replica.cluster import arrived
from tests.waiting import wait_for

if TYPE_CHECKING:
    import pytest

    from tests.integration.replica.cluster import Source
    from tests.integration.replica.conftest import Copies, Leads


def more_cuts(proxy: TcpProxy, than: int) -> bool:
    return proxy.cuts > than


def test_bytes_after_the_mark_are_cut_later(
    source: Source, copy: Copies, lead: Leads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a connection that has left bytes after the mark, and no space to recover the
    log WHEN the leader connects again and again THEN the follower says DISK_FULL and writes nothing
    behind those bytes; with space it continues, and the copy is sound."""
    follower = copy()
    proxy = TcpProxy("127.0.0.1", follower.port)
    full = True
    tried = 0

    def rewrite(name: str, size: int) -> None:
        nonlocal tried
        tried += 1
        if full:
            raise DiskFullError(f"cannot copy {name}")
        original(name, size)

    original = follower.store.rewrite
    monkeypatch.setattr(follower.store, "rewrite", rewrite)
    lead(f"127.0.0.1:{proxy.port}")
    source.append(5)
    arrived(source, follower)
    # Where a connection breaks decides whether it leaves bytes that no mark covers.
    for allowed in range(1_000, 8_000, 500):
        cut_before = proxy.cuts
        proxy.cut_after(allowed)
        source.append(100)
        wait_for(partial(more_cuts, proxy, cut_before))
        wait_for(lambda: tried or follower.follower.counts.figures.connected)
        if tried:
            break
    wait_for(lambda: tried > 2, "several connections")
    assert follower.state == DiskFullError.code
    full = False
    arrived(source, follower)
    wait_for(lambda: follower.state == "following")
    proxy.close()
