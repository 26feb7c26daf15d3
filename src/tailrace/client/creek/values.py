"""Avro values as Python values, or in the form of the bridge's messages.

Avro has numbers where PostgreSQL has dates, times and numerics. In the form `python` they become
`date`, `time`, `datetime` and `Decimal`; values that these cannot hold (a year before 1 or after
9999, `24:00:00`, `infinity`) become PostgreSQL's text. In the form `message`, which mirrors read,
all of them are text, and JSON is the text that PostgreSQL wrote.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import numpy as np

from tailrace.encode.creek.schema import INFINITY

if TYPE_CHECKING:
    from collections.abc import Callable

    ValueReader = Callable[[Any], Any]

ValueForm = Literal["python", "message"]

_INFINITIES = dict(zip(INFINITY, ("infinity", "-infinity"), strict=True))
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_CYCLE_DAYS = 146_097
"""Days in 400 years, after which the calendar repeats."""
# As array_out() in PostgreSQL: quotes around braces, commas, white space, NULL and empty elements.
_QUOTED = re.compile(r'[{}",\\ \t\n\r\v\f]|\A\Z|\Anull\Z', re.IGNORECASE)
_ESCAPED = re.compile(r'(["\\])')


class Json(str):
    """A JSON document as PostgreSQL wrote it, as opposed to a string value."""

    __slots__ = ()


def value_reader(tree: Any, pg_type: str, form: ValueForm) -> ValueReader | None:
    """The conversion for values of an Avro type; None: they need no conversion."""
    python = form == "python"
    reader: ValueReader | None = None
    match _value_type(tree):
        case {"type": "array", "items": items}:
            reader = _array_reader(items, pg_type.removeprefix("_"), form)
        case {"logicalType": "decimal"} as decimal:
            reader = _decimal_reader(int(decimal.get("scale", 0)), form)
        case {"logicalType": "date"}:
            reader = _python_date if python else _text_reader(date_text)
        case {"logicalType": "time-micros"}:
            reader = _python_time if python else _text_reader(time_text)
        case {"logicalType": "timestamp-micros"}:
            reader = _timestamp_reader(pg_type, form)
        case {"logicalType": "uuid"}:
            reader = _or_text(UUID) if python else None
        # Creek writes json and jsonb as bytes, bytea as text.
        case "bytes":
            reader = bytes.decode if python else _json
        case "float":
            reader = _shortest
        case "string":
            reader = _TEXT_READERS[form].get(pg_type)
    return reader


def _value_type(tree: Any) -> Any:
    """The type of ordinary values in a union: its first branch that is not null.

    The other branches are for NULL and for values that the first one cannot hold, as text.
    """
    if isinstance(tree, list):
        return next((branch for branch in tree if branch != "null"), "null")
    return tree


def _json(value: bytes) -> Json:
    return Json(value.decode())


def _shortest(value: float) -> float:
    """The shortest digits of a single-precision number: 1.1, not 1.10000002384185791.

    >>> _shortest(1.10000002384185791)
    1.1
    """
    return float(str(np.float32(value)))


def _or_text(parse: ValueReader) -> ValueReader:
    """A conversion that keeps invalid values as they are."""

    def parse_or_text(value: Any) -> Any:
        try:
            return parse(value)
        except ValueError:
            return value

    return parse_or_text


def _bytea(text: str) -> bytes | str:
    return bytes.fromhex(text[2:]) if text.startswith("\\x") else text


_TEXT_READERS: dict[ValueForm, dict[str, ValueReader]] = {
    "python": {"numeric": Decimal, "bytea": _bytea, "oid": int},
    "message": {"bytea": _bytea, "oid": int},
}
"""Types that Creek writes as text, and Python has a type for."""


def _decimal_reader(scale: int, form: ValueForm) -> ValueReader:
    def text(value: bytes | str) -> str:
        return value if isinstance(value, str) else decimal_text(value, scale)

    if form == "message":
        return text
    return lambda value: Decimal(text(value))


def decimal_text(value: bytes, scale: int) -> str:
    """The text of a numeric, from its unscaled two's complement bytes.

    >>> decimal_text(bytes.fromhex("ff85"), 2), decimal_text(b"\\x05", 0)
    ('-1.23', '5')
    """
    number = int.from_bytes(value, "big", signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    whole = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{whole}" if number < 0 else whole


def _text_reader(number_text: Callable[[int], str]) -> ValueReader:
    """Numbers become text. Text stays, except that Creek's infinities get PostgreSQL's name."""

    def text(value: int | str) -> str:
        return _INFINITIES.get(value, value) if isinstance(value, str) else number_text(value)

    return text


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month, day of any date; year 0 is 1 BC. Python's `date` has years 1 to 9999 only."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    day = date.fromordinal(rest + 1)
    return day.year + 400 * cycles, day.month, day.day


def _date_text(days: int, clock: str = "") -> str:
    year, month, day = _civil(days)
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}{clock}{era}"


def date_text(days: int) -> str:
    """A date as PostgreSQL writes it, from days since 1970.

    >>> date_text(0), date_text(-735160), date_text(2145042905)
    ('1970-01-01', '0044-03-15 BC', '5874897-12-31')
    """
    return _date_text(days)


def time_text(micros: int) -> str:
    """A time of day as PostgreSQL writes it, from microseconds.

    >>> time_text(500_000), time_text(86_400_000_000)
    ('00:00:00.5', '24:00:00')
    """
    seconds, rest = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}{fraction}"


def stamp_text(micros: int, zone: str = "") -> str:
    """A timestamp as PostgreSQL writes it, from microseconds since 1970.

    >>> stamp_text(0, "+00"), stamp_text(-62_198_755_200_000_000)
    ('1970-01-01 00:00:00+00', '0002-01-01 00:00:00 BC')
    """
    days, rest = divmod(micros, _DAY_US)
    return _date_text(days, f" {time_text(rest)}{zone}")


def _message_text(micros: int, zone: str, sign: str) -> str:
    """A timestamp as in messages: ISO 8601 for years 1 to 9999, PostgreSQL's text for others."""
    try:
        text = (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return stamp_text(micros, zone)
    return (text.rstrip("0") if "." in text else text) + sign


def _timestamp_reader(pg_type: str, form: ValueForm) -> ValueReader:
    zoned = pg_type == "timestamptz"
    zone, sign = ("+00", "Z") if zoned else ("", "")
    if form == "message":
        return _text_reader(lambda micros: _message_text(micros, zone, sign))
    epoch = _EPOCH_UTC if zoned else _EPOCH

    def python(value: int | str) -> datetime | str:
        if isinstance(value, str):
            return _INFINITIES.get(value, value)
        try:
            return epoch + timedelta(microseconds=value)
        except OverflowError:
            return stamp_text(value, zone)

    return python


def _python_date(value: int | str) -> date | str:
    if isinstance(value, str):
        return _INFINITIES.get(value, value)
    try:
        return date.fromordinal(value + _EPOCH_DAY)
    except (OverflowError, ValueError):
        return date_text(value)


def _python_time(value: int | str) -> time | str:
    if isinstance(value, str):
        return _INFINITIES.get(value, value)
    if not 0 <= value < _DAY_US:
        return time_text(value)
    return (_EPOCH + timedelta(microseconds=value)).time()


def _array_reader(items: Any, pg_type: str, form: ValueForm) -> ValueReader:
    if form == "message":
        return _array_text_reader(items, pg_type)
    element = value_reader(items, pg_type, form)

    def python(value: list[Any] | str) -> Any:
        if isinstance(value, str) or element is None:
            return value
        return [element(item) for item in value]

    return python


def _array_text_reader(items: Any, pg_type: str) -> ValueReader:
    element = _element_text(items, pg_type)

    def text(value: list[Any] | str) -> str:
        if isinstance(value, str):
            return value
        return "{" + ",".join(_quote(element(item)) for item in value) + "}"

    return text


def _element_text(items: Any, pg_type: str) -> Callable[[Any], str]:
    """The text of an element as PostgreSQL writes it inside an array."""
    match _value_type(items):
        case "boolean":
            return lambda value: "t" if value else "f"
        case "float":
            return lambda value: float_text(_shortest(value), 6)
        case "double":
            return lambda value: float_text(value, 15)
        case {"logicalType": "timestamp-micros"}:
            zone = "+00" if pg_type == "timestamptz" else ""
            return _text_reader(lambda micros: stamp_text(micros, zone))
        case _:
            reader = value_reader(items, pg_type, "message")
            return str if reader is None else lambda value: str(reader(value))


def _quote(text: str) -> str:
    if _QUOTED.search(text) is None:
        return text
    return '"{}"'.format(_ESCAPED.sub(r"\\\1", text))


def float_text(value: float, digits: int) -> str:
    """A number as PostgreSQL writes it: the shortest digits, with an exponent beyond `digits`.

    >>> float_text(0.1, 15), float_text(1e15, 15), float_text(-2.0, 15), float_text(1e-05, 15)
    ('0.1', '1e+15', '-2', '1e-05')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    minus = "-" if math.copysign(1, value) < 0 else ""
    shortest = Decimal(repr(abs(value))).normalize()
    _, figures, _ = shortest.as_tuple()
    exponent = shortest.adjusted() if value else 0
    if -4 <= exponent < digits:
        return f"{minus}{shortest:f}"
    tail = "".join(map(str, figures[1:]))
    mantissa = f"{figures[0]}.{tail}" if tail else str(figures[0])
    return f"{minus}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
