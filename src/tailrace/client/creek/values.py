"""Avro's values as Python's, and as messages of the bridge have them.

Avro has numbers where PostgreSQL has dates, times and numerics. Read as Python they are `date`,
`time`, `datetime` and `Decimal`; what those cannot hold (a year before Christ or after 9999,
`24:00:00`, `infinity`) is PostgreSQL's text. Written, they are what mirrors take: text where SQL
has more to say than Python does, and JSON as PostgreSQL wrote it.
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

    Read = Callable[[Any], Any]

Form = Literal["python", "written"]

_ENDLESS = dict(zip(INFINITY, ("infinity", "-infinity"), strict=True))
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_CYCLE_DAYS = 146_097
"""In 400 years, after which the calendar repeats itself."""
_QUOTED = re.compile(r'[{}",\\ \t\n\r\v\f]|\A\Z|\Anull\Z', re.IGNORECASE)
_ESCAPED = re.compile(r'(["\\])')


class Json(str):
    """JSON as PostgreSQL wrote it: text that is a document, and not a string of one."""

    __slots__ = ()


def read(tree: Any, pg_type: str, form: Form) -> Read | None:
    """How values of an Avro type are read; None: they are what they shall be."""
    python = form == "python"
    found: Read | None = None
    match _main(tree):
        case {"type": "array", "items": items}:
            found = _array(items, pg_type.removeprefix("_"), form)
        case {"logicalType": "decimal"} as digits:
            found = _decimal(int(digits.get("scale", 0)), form)
        case {"logicalType": "date"}:
            found = _python_date if python else _either(date_text)
        case {"logicalType": "time-micros"}:
            found = _python_time if python else _either(time_text)
        case {"logicalType": "timestamp-micros"}:
            found = _stamp(pg_type, form)
        case {"logicalType": "uuid"}:
            found = _tolerant(UUID) if python else None
        case "bytes":
            found = bytes.decode if python else _json
        case "float":
            found = _shortest
        case "string":
            found = _TEXTS[form].get(pg_type)
    return found


def _main(tree: Any) -> Any:
    """The branch that values have, if they are neither NULL nor out of the ordinary."""
    if isinstance(tree, list):
        return next((branch for branch in tree if branch != "null"), "null")
    return tree


def _json(value: bytes) -> Json:
    return Json(value.decode())


def _shortest(value: float) -> float:
    """A number of single precision by its own digits: 1.1, not 1.10000002384185791.

    >>> _shortest(1.10000002384185791)
    1.1
    """
    return float(str(np.float32(value)))


def _tolerant(make: Read) -> Read:
    def made(value: Any) -> Any:
        try:
            return make(value)
        except ValueError:
            return value

    return made


def _bytea(text: str) -> bytes | str:
    return bytes.fromhex(text[2:]) if text.startswith("\\x") else text


_TEXTS: dict[Form, dict[str, Read]] = {
    "python": {"numeric": Decimal, "bytea": _bytea, "oid": int},
    "written": {"bytea": _bytea, "oid": int},
}
"""Types that Avro has as text, and Python as more than that."""


def _decimal(scale: int, form: Form) -> Read:
    def written(value: bytes | str) -> str:
        return value if isinstance(value, str) else decimal_text(value, scale)

    if form == "written":
        return written
    return lambda value: Decimal(written(value))


def decimal_text(value: bytes, scale: int) -> str:
    """The digits of a numeric.

    >>> decimal_text(bytes.fromhex("ff85"), 2), decimal_text(b"\\x05", 0)
    ('-1.23', '5')
    """
    number = int.from_bytes(value, "big", signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    whole = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{whole}" if number < 0 else whole


def _either(text: Callable[[int], str]) -> Read:
    """Numbers by their text; what is text already stays, and infinity has its name."""

    def written(value: int | str) -> str:
        return _ENDLESS.get(value, value) if isinstance(value, str) else text(value)

    return written


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day, whatever the year; 0 is the year before 1."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    found = date.fromordinal(rest + 1)
    return found.year + 400 * cycles, found.month, found.day


def _dated(days: int, clock: str = "") -> str:
    year, month, day = _civil(days)
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}{clock}{era}"


def date_text(days: int) -> str:
    """A date as PostgreSQL writes it.

    >>> date_text(0), date_text(-735160), date_text(2145042905)
    ('1970-01-01', '0044-03-15 BC', '5874897-12-31')
    """
    return _dated(days)


def time_text(micros: int) -> str:
    """A time of day as PostgreSQL writes it.

    >>> time_text(500_000), time_text(86_400_000_000)
    ('00:00:00.5', '24:00:00')
    """
    seconds, rest = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}{fraction}"


def stamp_text(micros: int, zone: str = "") -> str:
    """A timestamp as PostgreSQL writes it.

    >>> stamp_text(0, "+00"), stamp_text(-62_198_755_200_000_000)
    ('1970-01-01 00:00:00+00', '0002-01-01 00:00:00 BC')
    """
    days, rest = divmod(micros, _DAY_US)
    return _dated(days, f" {time_text(rest)}{zone}")


def _message_text(micros: int, zone: str, sign: str) -> str:
    """As messages have it: ISO 8601 where that has a form for it."""
    try:
        text = (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return stamp_text(micros, zone)
    return (text.rstrip("0") if "." in text else text) + sign


def _stamp(pg_type: str, form: Form) -> Read:
    zoned = pg_type == "timestamptz"
    zone, sign = ("+00", "Z") if zoned else ("", "")
    if form == "written":
        return _either(lambda micros: _message_text(micros, zone, sign))
    epoch = _EPOCH_UTC if zoned else _EPOCH

    def python(value: int | str) -> datetime | str:
        if isinstance(value, str):
            return _ENDLESS.get(value, value)
        try:
            return epoch + timedelta(microseconds=value)
        except OverflowError:
            return stamp_text(value, zone)

    return python


def _python_date(value: int | str) -> date | str:
    if isinstance(value, str):
        return _ENDLESS.get(value, value)
    try:
        return date.fromordinal(value + _EPOCH_DAY)
    except (OverflowError, ValueError):
        return date_text(value)


def _python_time(value: int | str) -> time | str:
    if isinstance(value, str):
        return _ENDLESS.get(value, value)
    if not 0 <= value < _DAY_US:
        return time_text(value)
    return (_EPOCH + timedelta(microseconds=value)).time()


def _array(items: Any, pg_type: str, form: Form) -> Read:
    if form == "written":
        return _array_text(items, pg_type)
    element = read(items, pg_type, form)

    def python(value: list[Any] | str) -> Any:
        if isinstance(value, str) or element is None:
            return value
        return [element(each) for each in value]

    return python


def _array_text(items: Any, pg_type: str) -> Read:
    element = _element(items, pg_type)

    def written(value: list[Any] | str) -> str:
        if isinstance(value, str):
            return value
        return "{" + ",".join(_quoted(element(each)) for each in value) + "}"

    return written


def _element(items: Any, pg_type: str) -> Callable[[Any], str]:
    """An element as PostgreSQL writes it inside of an array."""
    match _main(items):
        case "boolean":
            return lambda value: "t" if value else "f"
        case "float":
            return lambda value: float_text(_shortest(value), 6)
        case "double":
            return lambda value: float_text(value, 15)
        case {"logicalType": "timestamp-micros"}:
            zone = "+00" if pg_type == "timestamptz" else ""
            return _either(lambda micros: stamp_text(micros, zone))
        case _:
            found = read(items, pg_type, "written")
            return str if found is None else lambda value: str(found(value))


def _quoted(text: str) -> str:
    if _QUOTED.search(text) is None:
        return text
    return '"{}"'.format(_ESCAPED.sub(r"\\\1", text))


def float_text(value: float, digits: int) -> str:
    """A number as PostgreSQL writes it: the shortest digits, with an exponent from so many on.

    >>> float_text(0.1, 15), float_text(1e15, 15), float_text(-2.0, 15), float_text(1e-05, 15)
    ('0.1', '1e+15', '-2', '1e-05')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    minus = "-" if math.copysign(1, value) < 0 else ""
    found = Decimal(repr(abs(value))).normalize()
    _, figures, _ = found.as_tuple()
    exponent = found.adjusted() if value else 0
    if -4 <= exponent < digits:
        return f"{minus}{found:f}"
    tail = "".join(map(str, figures[1:]))
    mantissa = f"{figures[0]}.{tail}" if tail else str(figures[0])
    return f"{minus}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
