"""The shared key: both sides prove that they know it, without sending it.

A proof is an HMAC over both nonces, so that it is of no use in another connection, and over the
role, so that neither side can send back what it has received.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import socket
from typing import TYPE_CHECKING

from tailrace.errors import ReplicaRefusedError

if TYPE_CHECKING:
    from tailrace.config.replication import Replication
    from tailrace.log.store import Store

_NONCE_BYTES = 16
_ID_FILE = "follower-id"
_ID = re.compile("[0-9a-f]{32}")


def nonce() -> str:
    """Random bytes, once per connection."""
    return secrets.token_hex(_NONCE_BYTES)


def proof(settings: Replication, role: str, leader_nonce: str, follower_nonce: str) -> str:
    """The proof of one side; empty without a key."""
    key = settings.key.get_secret_value()
    if not key:
        return ""
    text = f"{role} {leader_nonce} {follower_nonce}".encode()
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest()


def check_proof(
    settings: Replication, role: str, leader_nonce: str, follower_nonce: str, given: str
) -> None:
    """Refuse a peer that does not know the key, or that knows one where there is none."""
    expected = proof(settings, role, leader_nonce, follower_nonce)
    if not hmac.compare_digest(expected.encode(), given.encode()):
        raise ReplicaRefusedError(
            f"the {role} does not know the shared key",
            hint="Set replication.key to the same secret on both machines.",
        )


def follower_id(store: Store) -> str:
    """What tells this copy from all others, however many addresses its machine has."""
    try:
        found = store.read(_ID_FILE, 0, 2 * _NONCE_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        found = ""
    if not _ID.fullmatch(found):
        found = nonce()
        store.write_atomic(_ID_FILE, found.encode())
    return found


def node_name(settings: Replication) -> str:
    """The name of this machine."""
    return settings.node or socket.gethostname()
