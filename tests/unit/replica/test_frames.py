"""Frames of both versions as bytes: golden ones, round trips, and garbage."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedError
from tailrace.log.format.mark import Mark
from tailrace.position import Lsn, Position
from tailrace.replica import frames, seed
from tailrace.replica.frames import (
    HEADER,
    Begin,
    Data,
    Fault,
    Header,
    Heartbeat,
    Hello,
    Marked,
    Proof,
    State,
    Type,
)

MARK = Mark(
    sequence=3, offset=4096, position=Position(Lsn(0x10), 2), end_lsn=Lsn(0x20), time=5, epoch=7
)
GOLDEN = {
    "handshake": (
        seed.Handshake(version=1, node=7, sync=True).encode(),
        "0001" "0000000000000007" "01",
    ),
    "answer": (
        seed.Answer(accepted=True, end_lsn=Lsn(0x16B374D848)).encode(),
        "00" "00000016b374d848" "0000",
    ),
    "refusal": (
        seed.Answer(accepted=False, end_lsn=Lsn(0), message="no").encode(),
        "01" "0000000000000000" "0002" "6e6f",
    ),
    "entry": (
        seed.EntryFrame(
            topic="shop.t", first_lsn=Lsn(0x1100), changes=2, time_ms=946684800001, data=b"abc"
        ).encode(),
        "5741" "0001" "00000027" "0006" "73686f702e74" "00000000" "0000000000001100" "00000002"
        "000000dc6acfac01" "352441c2",
    ),
    "heartbeat": (seed.heartbeat(1000), "4842" "00000000000003e8"),
    "heartbeat answer": (seed.heartbeat_answer(1000), "00000000000003e8"),
    "HEARTBEAT": (
        frames.encode(Type.HEARTBEAT, Heartbeat(7, 1000).encode()),
        "54527270" "08" "00" "0000" "10000000" "CRC" "0700000000000000" "e803000000000000",
    ),
    "DATA": (
        frames.encode(Type.DATA, *Data(3, 0x1000, 64, index=False, content=b"abc").parts()),
        "54527270" "05" "00" "0000" "1c000000" "CRC"
        "0300000000000000" "0010000000000000" "4000000000000000" "00" "616263",
    ),
    "MARK": (
        frames.encode(Type.MARK, Marked(oldest=1, mark=MARK).encode()),
        "54527270" "06" "00" "0000" "4c000000" "CRC" "0100000000000000" + MARK.encode().hex(),
    ),
    "HELLO": (
        frames.encode(Type.HELLO, Hello(node="a", nonce="00").encode()),
        "54527270" "01" "00" "0000" "24000000" "CRC"
        + b'{"node":"a","nonce":"00","proof":""}'.hex(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_frames(name: str) -> None:
    """The bytes on the wire, as docs/formats/replication.md describes them."""
    data, expected = GOLDEN[name]
    text = data.hex()
    if "CRC" in expected:
        # The checksum itself is tested with the header.
        text = text[:24] + "CRC" + text[32:]
    assert text == expected


@pytest.mark.parametrize("compress", [False, True])
def test_a_frame_is_read_back(compress: bool) -> None:
    payload = b"tailrace" * 1000
    data = frames.encode(Type.DATA, payload, compress=compress)
    header = Header.decode(data[: HEADER.size])
    assert header.payload(data[HEADER.size :]) == payload
    assert len(data) < 1000 or not compress


@pytest.mark.parametrize("at", [0, 4, 5, 6, 9, 13, 20])
def test_a_flipped_bit_is_noticed(at: int) -> None:
    data = bytearray(frames.encode(Type.DATA, b"some content of a log"))
    data[at] ^= 1
    with pytest.raises(MalformedError):
        Header.decode(data[: HEADER.size]).payload(data[HEADER.size :])


def test_a_length_is_checked_before_anything_is_read() -> None:
    header = HEADER.pack(b"TRrp", Type.DATA, 0, 0, frames.MAX_PAYLOAD_BYTES + 1, 0)
    with pytest.raises(MalformedError, match="claims"):
        Header.decode(header)
    with pytest.raises(MalformedError, match="claims"):
        seed.content_bytes(seed.HEAD.pack(seed.ENTRY_MAGIC, 1, seed.MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize(
    "message",
    [
        Hello(node="a", nonce="b", proof="c"),
        Proof(proof="a", log_id="b", epoch=1 << 40),
        State(
            log_id="a",
            epoch=2,
            mark=MARK.encode().hex(),
            epochs=((1, 2), (4, 3)),
            tail_bytes=3,
            tail_crc=4,
        ),
        Begin(action="cut", sequence=4, offset=5),
        Fault(code="FENCED", message="m", hint="h"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_control_frames_are_read_back(message: frames.Message) -> None:
    assert type(message).decode(message.encode()) == message


def test_a_later_release_may_add_keys() -> None:
    assert Begin.decode(b'{"action":"reset","sequence":2,"more":[1]}') == Begin(
        action="reset", sequence=2
    )


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b'{"sequence":"1"}', b'{"sequence":true}', b"\xff", b"[" * 100_000]
)
def test_an_invalid_control_frame(payload: bytes) -> None:
    with pytest.raises(MalformedError):
        Begin.decode(payload)


@pytest.mark.parametrize("epochs", ["[1]", "[[1]]", '[["a",1]]', "[[2,1],[1,2]]", "[[1,true]]"])
def test_invalid_epochs(epochs: str) -> None:
    with pytest.raises(MalformedError, match="epochs"):
        State.decode(b'{"epochs":%s}' % epochs.encode())


def test_the_epoch_of_a_segment() -> None:
    state = State(epochs=((3, 1), (5, 2)))
    assert [state.epoch_of(number) for number in (2, 3, 4, 5, 9)] == [None, 1, 1, 2, 2]


def test_marks_are_read_back() -> None:
    for visible in (None, MARK):
        marked = Marked(oldest=1, mark=MARK, visible=visible)
        assert Marked.decode(marked.encode()) == marked
    assert State(mark=MARK.encode().hex(), epochs=((1, 1),)).end() == MARK
    with pytest.raises(MalformedError, match="no epochs"):
        State(mark=MARK.encode().hex()).end()
    assert State().end() is None


def test_an_entry_is_read_back() -> None:
    frame = seed.EntryFrame(topic="shop.t", first_lsn=Lsn(1), changes=2, time_ms=3, data=b"content")
    data = frame.encode() + b"content"
    size = seed.content_bytes(data[: seed.HEAD.size])
    assert size == len(data) - seed.HEAD.size
    assert seed.EntryFrame.decode(data[seed.HEAD.size :]) == frame


@given(st.binary(max_size=400), st.sampled_from(list(Type)))
def test_any_payload_is_read_or_refused(payload: bytes, kind: Type) -> None:
    """Bytes of a stranger end in MalformedError or a value, and in nothing else."""
    readers = {
        Type.HELLO: Hello.decode,
        Type.PROOF: Proof.decode,
        Type.STATE: lambda data: State.decode(data).end(),
        Type.BEGIN: Begin.decode,
        Type.DATA: Data.decode,
        Type.MARK: Marked.decode,
        Type.ACK: frames.decode_mark,
        Type.HEARTBEAT: Heartbeat.decode,
        Type.ERROR: Fault.decode,
    }
    with suppress(MalformedError):
        readers.get(kind, Hello.decode)(payload)
    with suppress(MalformedError):
        seed.EntryFrame.decode(payload)
    if len(payload) >= HEADER.size:
        with suppress(MalformedError):
            Header.decode(payload[: HEADER.size]).payload(payload[HEADER.size :])
