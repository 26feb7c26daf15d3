"""The `url` of a Redis sink: one server, the nodes of a cluster, or Sentinels."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

from tailrace.settings import is_loopback

_URL = re.compile(r"(rediss?)://(?:([^@/]*)@)?([^@/?#]+)(?:/([0-9]{0,4}))?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_UNIX = re.compile(r"unix://(?:([^@/]*)@)?(/[^?#]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where servers are, and the login that `url` contains."""

    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    """Of a Unix domain socket, instead of hosts."""
    tls: bool = False
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, *, port: int = 6379) -> Self:
        """Read a URL; ValueError if it is invalid. `port` is the default.

        >>> Address.parse("rediss://ann@a.example,b.example:6380/2").hosts
        (('a.example', 6379), ('b.example', 6380))
        >>> Address.parse("unix:///run/redis.sock").path
        '/run/redis.sock'
        """
        if unix := _UNIX.fullmatch(url):
            user, password = _login(unix[1])
            return cls(path=unquote(unix[2]), user=user, password=password)
        match = _URL.fullmatch(url)
        if match is None:
            raise ValueError(
                "must be redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH, without options"
            )
        user, password = _login(match[2])
        return cls(
            hosts=tuple(_host(each, port) for each in match[3].split(",")),
            tls=match[1] == "rediss",
            database=int(match[4] or 0),
            user=user,
            password=password,
        )

    @property
    def local(self) -> bool:
        """Whether nothing leaves this machine."""
        return all(is_loopback(host) for host, _ in self.hosts)

    def __str__(self) -> str:
        return self.path or ",".join(f"{host}:{port}" for host, port in self.hosts)


def _host(text: str, port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    number = int(match[2] or port) if match else 0
    if match is None or not 0 < number < 65536:
        raise ValueError("must have addresses such as redis.example.com:6379")
    return match[1].strip("[]"), number


def _login(text: str | None) -> tuple[str, str]:
    user, _, password = (text or "").partition(":")
    return unquote(user), unquote(password)
