"""Sessions that give up a server that does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import TailraceError
from tailrace.postgres.limited import limited_session

if TYPE_CHECKING:
    from tests.fix_postgres import Database


def test_the_server_says_what_took_too_long(database: Database) -> None:
    """GIVEN a statement without an end WHEN the limit passes THEN the server ends it, before the
    client closes the connection and the reason is lost."""
    for _ in range(5):
        with (
            pytest.raises(TailraceError, match="canceling statement due to statement timeout"),
            limited_session(database.dsn, application_name="test", timeout_s=0.6) as session,
        ):
            session.execute("SELECT pg_sleep(60)")
