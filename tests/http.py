"""Requests to HTTP endpoints: one client, since each new one reads the certificates."""

from __future__ import annotations

import httpx

_CLIENT = httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0))
get, post = _CLIENT.get, _CLIENT.post
