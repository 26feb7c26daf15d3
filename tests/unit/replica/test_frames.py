"""Frames of both versions as bytes: golden ones, round trips, and garbage."""

from __future__ import annotations

from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedError
from tailrace.log.format.mark import Mark
from tailrace.position import Lsn, Position
from tailrace.replica import frames, seed
from tailrace.replica.frames import (
    HEADER,
    Begin,
    BundleHead,
    Bundles,
    Data,
    Fault,
    Fetch,
    Fetched,
    Header,
    Heartbeat,
    Hello,
    Marked,
    Proof,
    State,
    Stored,
    Type,
)

MARK = Mark(
    sequence=3, offset=4096, position=Position(Lsn(0x10), 2), end_lsn=Lsn(0x20), time=5, epoch=7
)
MARK_HEX = (
    "5452646d" "0100" "0000" "0300000000000000" "0010000000000000" "1000000000000000"
    "0200000000000000" "2000000000000000" "0500000000000000" "0700000000000000" "75ff50f8"
)  # fmt: skip
STATE = State(
    log_id="l", epoch=7, mark=MARK.encode().hex(), epochs=((1, 6), (3, 7)), tail_bytes=64,
    tail_crc=9,
)  # fmt: skip
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
        "54527270" "06" "00" "0000" "4c000000" "CRC" "0100000000000000" + MARK_HEX,
    ),
    "MARK, visible": (
        frames.encode(Type.MARK, Marked(oldest=1, mark=MARK, visible=MARK).encode()),
        "54527270" "06" "00" "0000" "90000000" "CRC" "0100000000000000" + MARK_HEX + MARK_HEX,
    ),
    "HELLO": (
        frames.encode(Type.HELLO, Hello(node="a", nonce="00").encode()),
        "54527270" "01" "00" "0000" "2c000000" "CRC"
        + b'{"node":"a","nonce":"00","proof":"","id":""}'.hex(),
    ),
    "PROOF": (
        frames.encode(Type.PROOF, Proof(proof="ab", log_id="l", epoch=1 << 32).encode()),
        "54527270" "02" "00" "0000" "2e000000" "CRC"
        + b'{"proof":"ab","log_id":"l","epoch":4294967296}'.hex(),
    ),
    "STATE": (
        frames.encode(Type.STATE, STATE.encode()),
        "54527270" "03" "00" "0000" "de000000" "CRC"
        + b'{"log_id":"l","epoch":7,"mark":"'.hex() + MARK_HEX.encode().hex()
        + b'","epochs":[[1,6],[3,7]],"tail_bytes":64,"tail_crc":9}'.hex(),
    ),
    "STATE, no log": (
        frames.encode(Type.STATE, State().encode()),
        "54527270" "03" "00" "0000" "49000000" "CRC"
        + b'{"log_id":"","epoch":0,"mark":"","epochs":[],"tail_bytes":0,"tail_crc":0}'.hex(),
    ),
    "BEGIN": (
        frames.encode(Type.BEGIN, Begin(action="cut", sequence=4, offset=5).encode()),
        "54527270" "04" "00" "0000" "28000000" "CRC"
        + b'{"action":"cut","sequence":4,"offset":5}'.hex(),
    ),
    "DATA, index": (
        frames.encode(Type.DATA, *Data(3, 0x1000, 0, index=True, content=b"i").parts()),
        "54527270" "05" "00" "0000" "1a000000" "CRC"
        "0300000000000000" "0010000000000000" "0000000000000000" "01" "69",
    ),
    "ACK": (
        frames.encode(Type.ACK, MARK.encode()),
        "54527270" "07" "00" "0000" "44000000" "CRC" + MARK_HEX,
    ),
    "ACK, no log": (frames.encode(Type.ACK, b""), "54527270" "07" "00" "0000" "00000000" "CRC"),
    "ERROR": (
        frames.encode(Type.ERROR, Fault(code="FENCED", message="m", hint="h").encode()),
        "54527270" "09" "00" "0000" "2a000000" "CRC"
        + b'{"code":"FENCED","message":"m","hint":"h"}'.hex(),
    ),
    "BUNDLES": (
        frames.encode(Type.BUNDLES, Bundles(names=("shared",)).encode()),
        "54527270" "0a" "00" "0000" "14000000" "CRC"
        + b'{"names":["shared"]}'.hex(),
    ),
    "BUNDLE": (
        frames.encode(Type.BUNDLE, BundleHead(name="shared", size=5, crc=9).encode()),
        "54527270" "0b" "00" "0000" "22000000" "CRC"
        + b'{"name":"shared","size":5,"crc":9}'.hex(),
    ),
    "CONTENT": (
        frames.encode(Type.CONTENT, b"abc"),
        "54527270" "0c" "00" "0000" "03000000" "CRC" "616263",
    ),
    "STORED": (
        frames.encode(Type.STORED, Stored(name="shared", crc=9).encode()),
        "54527270" "0d" "00" "0000" "19000000" "CRC"
        + b'{"name":"shared","crc":9}'.hex(),
    ),
    "FETCH": (
        frames.encode(Type.FETCH, Fetch(3).encode()),
        "54527270" "14" "00" "0000" "08000000" "CRC" "0300000000000000",
    ),
    "PIECE": (
        frames.encode(Type.PIECE, *Data(3, 0x1000, 64, index=False, content=b"abc").parts()),
        "54527270" "15" "00" "0000" "1c000000" "CRC"
        "0300000000000000" "0010000000000000" "4000000000000000" "00" "616263",
    ),
    "FETCHED": (
        frames.encode(Type.FETCHED, Fetched(sequence=3, size=67).encode()),
        "54527270" "16" "00" "0000" "2f000000" "CRC"
        + b'{"sequence":3,"size":67,"code":"","message":""}'.hex(),
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


def test_every_type_is_golden() -> None:
    kinds = {Header.decode(data[: HEADER.size]).type for name, (data, _) in GOLDEN.items()
             if data.startswith(b"TRrp")}  # fmt: skip
    assert kinds == set(Type)


def test_the_checksum_of_a_frame() -> None:
    """CRC-32C over the header with a blank checksum, then the payload."""
    data, _ = GOLDEN["HELLO"]
    blank = data[:12] + bytes(4)
    assert data[12:16] == crc32c(blank + data[16:]).to_bytes(4, "little")
    assert data[12:16].hex() == "1849f5e4"


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
        Fetched(sequence=3, size=4, code="CORRUPT", message="m"),
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
        Type.FETCH: Fetch.decode,
        Type.PIECE: Data.decode,
        Type.FETCHED: Fetched.decode,
    }
    with suppress(MalformedError):
        readers.get(kind, Hello.decode)(payload)
    with suppress(MalformedError):
        seed.EntryFrame.decode(payload)
    if len(payload) >= HEADER.size:
        with suppress(MalformedError):
            Header.decode(payload[: HEADER.size]).payload(payload[HEADER.size :])
