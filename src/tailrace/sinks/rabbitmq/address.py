"""The `url` of a RabbitMQ sink: one server, or the nodes of a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

from tailrace.settings import is_loopback

_URL = re.compile(r"(amqps?)://(?:([^@/]*)@)?([^@/?#]+)(?:/([^/?#]*))?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where servers are, and the login and virtual host that `url` contains."""

    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    virtual_host: str = "/"
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a URL; ValueError if it is invalid.

        >>> found = Address.parse("amqps://ann@a.example,b.example:5600/my%2Fshop")
        >>> found.hosts, found.virtual_host
        ((('a.example', 5671), ('b.example', 5600)), 'my/shop')
        >>> Address.parse("amqp://localhost/").virtual_host
        '/'
        """
        match = _URL.fullmatch(url)
        if match is None:
            raise ValueError("must be amqp://HOST:PORT/VHOST or amqps://..., without options")
        tls = match[1] == "amqps"
        user, _, password = (match[2] or "").partition(":")
        return cls(
            hosts=tuple(_host(each, 5671 if tls else 5672) for each in match[3].split(",")),
            tls=tls,
            virtual_host=unquote(match[4] or "/"),
            user=unquote(user),
            password=unquote(password),
        )

    @property
    def local(self) -> bool:
        """Whether nothing leaves this machine."""
        return all(is_loopback(host) for host, _ in self.hosts)

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def _host(text: str, port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    number = int(match[2] or port) if match else 0
    if match is None or not 0 < number < 65536:
        raise ValueError("must have addresses such as rabbitmq.example.com:5672")
    return match[1].strip("[]"), number
