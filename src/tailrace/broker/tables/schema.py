"""Whether a database has the tables of `schema.sql`, and the lock of the broker that serves it."""

from __future__ import annotations

from tailrace.errors import ConfigError

BROKER_LOCK = 0x7461696C_6B61666B
"""The advisory lock that makes a broker the only one of its database."""
INSTALLED = "SELECT to_regclass('kafka.groups')"
"""The table that was added to the schema last."""
MISSING = "the tables of the broker are missing in this database, or of an older version"
INSTALL_HINT = "Create or upgrade them: tailrace broker --init"


def missing() -> ConfigError:
    """The error of a database without the tables."""
    return ConfigError(MISSING, hint=INSTALL_HINT)
