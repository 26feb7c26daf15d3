"""The parts that settings models are built from."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def _size(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise ValueError("must be a number of bytes, or a size such as 64MiB or 10GiB")
    return int(float(match[1]) * units[match[2].lower()])


Bytes = Annotated[int, BeforeValidator(_size)]
"""A number of bytes, also written as 64MiB or 10GiB."""


def error_text(detail: ErrorDetails) -> str:
    """Pydantic's message in Tailrace's style: `must be greater than or equal to 0`."""
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return re.sub(r"\bshould\b", "must", message)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("10.0.0.7"), is_loopback("")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Section(BaseModel):
    """Base of all settings models: frozen, unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        defer_build=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """How a field looks on the command line, where its name and type do not say it all."""

    name: str = ""
    """`--name`; without it, the name of the field."""
    env: str = ""
    """The environment variable to read."""
    env_aliases: tuple[str, ...] = ()
    """Other variables, read in this order if the first is not set."""
    metavar: str = ""
    """What stands for the value in `--help`."""
    switch: bool = False
    """`--name` alone, without `--no-name`."""
