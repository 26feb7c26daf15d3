"""Followers of version 2: copies that are byte for byte the leader's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError, LogFencedError
from tailrace.log import acknowledged, lease
from tailrace.log.format import mark as marks
from tailrace.log.format.segment import list_segments
from tailrace.log.reader import Log
from tailrace.testing.proxy import TcpProxy
from tests.integration.replica.cluster import Source, arrived, equal
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.replica.conftest import Copies, Leads


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_log_is_copied_and_followed(
    source: Source, copy: Copies, lead: Leads, compression: str
) -> None:
    """GIVEN a log of several segments WHEN a follower connects THEN it has all of it, and what
    comes."""
    source.append(60)
    follower = copy()
    leader = lead(follower.address, compression=compression)
    arrived(source, follower)
    source.append(60)
    arrived(source, follower)
    [figures] = leader.leader.figures().followers
    assert (figures.state, figures.version, figures.connected) == ("streaming", 2, True)
    assert figures.acknowledged == source.mark().end_lsn
    assert follower.follower.counts.figures.end_lsn == source.mark().end_lsn


def test_two_followers(source: Source, copy: Copies, lead: Leads) -> None:
    followers = [copy("one"), copy("two")]
    lead(*(each.address for each in followers))
    for _ in range(5):
        source.append(20)
    arrived(source, *followers)


def test_an_open_transaction_is_not_sent_beyond_the_mark(
    source: Source, copy: Copies, lead: Leads
) -> None:
    """GIVEN fragments of a transaction over several segments THEN a copy has no byte of them until
    it is whole."""
    follower = copy()
    lead(follower.address)
    source.append(5)
    arrived(source, follower)
    unit = source.load.unit(steps=120)
    pieces = source.log.pieces(unit, *range(5, 120, 5))
    for piece in pieces[:-1]:
        source.log._put(piece)
    holds(lambda: len(list_segments(follower.store)) == 1, 0.5)
    source.log._put(pieces[-1])
    arrived(source, follower)


def test_a_follower_that_was_away_continues(source: Source, copy: Copies, lead: Leads) -> None:
    follower = copy()
    leader = lead(follower.address)
    source.append(30)
    arrived(source, follower)
    follower.end()
    source.append(30)
    again = copy(port=follower.port)
    arrived(source, again)
    assert leader.leader.figures().followers[0].resets == 0


def test_a_torn_end_of_a_copy_is_cut(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a follower that died while it wrote THEN it keeps whole transactions and gets the
    rest again."""
    follower = copy()
    lead(follower.address)
    source.append(30)
    arrived(source, follower)
    follower.end()
    last = list_segments(follower.store)[-1]
    torn = follower.store.append_to(last.file)
    torn.write([b"TRen half an entry"])
    torn.close()
    source.append(10)
    arrived(source, copy(port=follower.port))


def test_a_damaged_segment_is_fetched_again(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a flipped byte in the last segment of a copy WHEN the follower starts THEN it drops the
    segment, fetches it again, and reports the repair."""
    follower = copy()
    lead(follower.address)
    source.append(30)
    arrived(source, follower)
    follower.end()
    last = list_segments(follower.store)[-1]
    path = follower.store.folder / last.file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = copy(port=follower.port)
    wait_for(lambda: again.follower.counts.figures.repairs == 1)
    arrived(source, again)


def test_a_connection_that_breaks_anywhere(source: Source, copy: Copies, lead: Leads) -> None:
    source.append(200)
    follower = copy()
    proxy = TcpProxy("127.0.0.1", follower.port)
    proxy.cut_after(20_000)
    lead(f"127.0.0.1:{proxy.port}")
    for size in (1, 700, 5_000, 9_000):
        wait_for(lambda: proxy.cuts > 0)
        proxy.cuts = 0
        proxy.cut_after(size)
        source.append(5)
    proxy.heal()
    arrived(source, follower)
    proxy.close()


def test_a_silent_line_is_given_up(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a line that swallows everything THEN both sides notice, and continue when it heals."""
    follower = copy(timeout_s=1.0)
    proxy = TcpProxy("127.0.0.1", follower.port)
    leader = lead(f"127.0.0.1:{proxy.port}", timeout_s=1.0)
    source.append(10)
    arrived(source, follower)
    proxy.black_hole()
    source.append(10)
    wait_for(lambda: leader.leader.figures().followers[0].state == "REPLICA_UNREACHABLE")
    wait_for(lambda: follower.state == "waiting")
    proxy.heal()
    arrived(source, follower)
    proxy.close()


def test_another_log_is_refused(source: Source, copy: Copies, lead: Leads, tmp_path: Path) -> None:
    other = Source(tmp_path / "copy", seed=7, log_id="log-2")
    other.append(30)
    before = other.mark()
    other.close()
    follower = copy()
    leader = lead(follower.address)
    wait_for(lambda: leader.leader.figures().followers[0].state == "DIVERGED")
    wait_for(lambda: follower.state == "DIVERGED")
    assert marks.peek(follower.store) == before


def test_a_lower_epoch_is_refused(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a follower that has seen a later epoch THEN the leader of an earlier one stops."""
    follower = copy()
    leader = lead(follower.address)
    source.append(10)
    arrived(source, follower)
    leader.end()
    lease.note_epoch(follower.store, 1 << 32)
    deposed = lead(follower.address)
    wait_for(lambda: deposed.error is not None)
    assert isinstance(deposed.error, LogFencedError)
    assert deposed.leader.figures().state == "FENCED"
    wait_for(lambda: follower.state == "FENCED")


def test_a_log_with_more_than_the_leader_is_not_cut(
    source: Source, copy: Copies, lead: Leads
) -> None:
    """GIVEN a leader whose disk was restored to an earlier state THEN no follower loses a byte."""
    follower = copy()
    leader = lead(follower.address)
    source.append(10)
    arrived(source, follower)
    early = source.mark()
    source.append(10)
    arrived(source, follower)
    late = source.mark()
    leader.end()
    marks.write(source.store, early)
    lead(follower.address)
    wait_for(lambda: follower.state == "DIVERGED")
    assert marks.peek(follower.store) == late


@pytest.mark.parametrize("quorum", [1, 2])
def test_a_quorum(source: Source, copy: Copies, lead: Leads, quorum: int) -> None:
    """GIVEN mode sync THEN the quorum is where the N-th best follower is, and readers see no
    more."""
    followers = [copy("one"), copy("two")]
    acknowledged.prepare(source.store, quorum)
    marks.write(source.store, source.mark(), name=marks.VISIBLE, durably=True)
    addresses = [each.address for each in followers]
    leader = lead(*addresses, mode="sync", quorum=quorum, visible="quorum")
    source.append(20)
    wait_for(lambda: acknowledged.read(source.store, quorum) == source.mark())
    wait_for(lambda: Log(source.store).end() == source.mark())
    assert leader.leader.figures().in_quorum
    followers[1].end()
    before = source.mark()
    source.append(20)
    arrived_one = followers[0]
    wait_for(lambda: equal(source, arrived_one))
    if quorum == 1:
        wait_for(lambda: acknowledged.read(source.store, 1) == source.mark())
        assert leader.leader.figures().in_quorum
        return
    holds(lambda: acknowledged.read(source.store, 2) == before, 0.5)
    assert Log(source.store).end() == before
    # A reader of the copy sees no more, though it is there.
    assert Log(followers[0].store).end() == before
    wait_for(lambda: not leader.leader.figures().in_quorum)
    copy("two", port=followers[1].port)
    wait_for(lambda: acknowledged.read(source.store, 2) == source.mark())
    wait_for(lambda: Log(followers[0].store).end() == source.mark())


def test_the_shared_key(source: Source, copy: Copies, lead: Leads) -> None:
    source.append(5)
    follower = copy(key="a secret of enough letters")
    refused = lead(follower.address, key="another secret of letters")
    wait_for(lambda: refused.leader.figures().followers[0].state == "REPLICA_REFUSED")
    assert "shared key" in refused.leader.figures().followers[0].reason
    assert not list_segments(follower.store)
    refused.end()
    lead(follower.address, key="a secret of enough letters")
    arrived(source, follower)


def test_an_address_without_protection_is_refused(source: Source, lead: Leads) -> None:
    leader = lead("192.0.2.1:7432")
    wait_for(lambda: leader.error is not None)
    assert isinstance(leader.error, ConfigError)
    assert "replication.tls" in leader.error.hint


def test_mutual_tls(source: Source, copy: Copies, lead: Leads, certificates: Path) -> None:
    """GIVEN certificates THEN only a leader whose certificate the follower's authority has signed
    is served, and the other way round."""

    def tls(name: str, ca: str = "ca") -> dict[str, str]:
        files = {"ca": f"{ca}.crt", "cert": f"{name}.crt", "key": f"{name}.key"}
        return {key: str(certificates / file) for key, file in files.items()}

    source.append(40)
    follower = copy(tls=tls("server"))
    for stranger in (tls("other", ca="ca"), tls("client", ca="other"), None):
        refused = lead(follower.address, tls=stranger)
        wait_for(lambda: refused.leader.figures().followers[0].state == "REPLICA_UNREACHABLE")  # noqa: B023
        refused.end()
    assert not list_segments(follower.store)
    lead(follower.address, tls=tls("client"))
    arrived(source, follower)
    source.append(40)
    arrived(source, follower)
