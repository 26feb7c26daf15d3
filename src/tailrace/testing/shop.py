"""A sample shop: a schema with common types, and the traffic of its customers.

For the demo, for benchmarks and for users' own tests. Each `step` is one transaction; `committed`
counts the changed rows, so that the captured changes can be compared with it. The schema is in
`shop.sql` next to this file.

>>> with EmbeddedPostgres() as server, server.connect() as connection:   # doctest: +SKIP
...     shop = SampleShop(connection)
...     shop.create()
...     for _ in range(100):
...         shop.step()
"""

from __future__ import annotations

import random
from collections import Counter, deque
from importlib import resources
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb

from tailrace.change import Op

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from psycopg import Connection

TABLES = ("customers", "products", "orders", "order_items", "visits")
CLOSED = "shop.closed"
"""Prefix of the message that `close` sends: the last change of the shop."""

_FIRST_NAMES = ("Ada", "Zoë", "Nguyễn", "Olu", "Ingrid", "José", "Mei", "Łukasz", "Priya", "Søren")
_LAST_NAMES = ("Lovelace", "O'Neill", "Thị", "Adeyemi", "Ek", "García", "林", "Nowak", "Rao", "Bo")
_GOODS = ("kettle", "lamp", "teapot", "bicycle", "umbrella", "atlas", "violin", "hammock", "globe")
_WORDS = ("hand", "made", "of", "oak", "and", "brass", "with", "care", "for", "long", "winters")
_PAGES = ("/", "/kettles", "/lamps", "/basket", "/about")
_DESCRIPTION_WORDS = 1500
_OPEN_ORDERS = 200
_NO_ORDER = 0


class SampleShop:
    """One shop on one connection in autocommit mode; several may share a database.

    The first steps make every kind of change once; then `rng` decides.
    """

    def __init__(self, connection: Connection, *, rng: random.Random | None = None) -> None:
        self._connection = connection
        self._rng = rng or random.Random(0)  # noqa: S311
        self._customers: list[int] = []
        self._products: list[int] = []
        self._orders: deque[int] = deque()
        """Open orders, oldest first."""
        self._pending: Counter[Op] = Counter()
        self._script = self._choose()
        self.committed: Counter[Op] = Counter()
        """Rows changed by committed transactions, and messages, by operation."""
        self.transactions = 0
        """Committed transactions that changed something."""
        self.rollbacks = 0

    @staticmethod
    def schema() -> str:
        """The SQL that creates the tables."""
        return resources.files("tailrace.testing").joinpath("shop.sql").read_text("utf-8")

    def create(self) -> None:
        """Create the tables."""
        self._connection.execute(self.schema().encode())

    def run(self, stop: threading.Event, *, per_second: float) -> None:
        """Make `per_second` steps per second until `stop` is set."""
        while not stop.wait(1 / per_second):
            self.step()

    def step(self) -> None:
        """Run the next transaction."""
        self._transact(next(self._script))

    def close(self) -> None:
        """Commit a last message with the prefix `CLOSED`, which follows all other changes."""
        self._transact(lambda: self._say(CLOSED, f"{self.transactions} transactions"))

    def _transact(self, action: Callable[[], None]) -> None:
        self._pending.clear()
        with self._connection.transaction():
            action()
        self.committed.update(self._pending)
        self.transactions += any(self._pending.values())

    def _choose(self) -> Iterator[Callable[[], None]]:
        yield from (self._open, self._sign_up, self._place_order, self._place_order)
        yield from (self._advance, self._describe, self._renumber, self._change_mind)
        yield from (self._visit, self._note, self._cancel, self._sweep, self._place_order)
        weights = {
            self._place_order: 30,
            self._advance: 20,
            self._visit: 16,
            self._sign_up: 12,
            self._cancel: 8,
            self._renumber: 5,
            self._describe: 3,
            self._change_mind: 3,
            self._note: 2,
            self._sweep: 1,
        }
        while True:
            crowded = len(self._orders) > _OPEN_ORDERS
            (action,) = self._rng.choices(list(weights), list(weights.values()))
            yield self._cancel if crowded else action

    def _do(self, op: Op, query: LiteralString, *params: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(query, params)
        # TRUNCATE has no row count; it counts as one change.
        self._pending[op] += 1 if op is Op.TRUNCATE else cursor.rowcount
        return cursor.fetchall() if cursor.description else []

    def _open(self) -> None:
        """Insert the products."""
        for name in _GOODS:
            rows = self._do(
                Op.INSERT,
                "INSERT INTO products (name, price, stock, tags, description) "
                "VALUES (%s, %s, %s, %s, %s) RETURNING id",
                *(name, f"{self._rng.randint(500, 90000) / 100:.2f}", 1_000_000),
                *(self._rng.sample(_WORDS, 2), self._description()),
            )
            self._products.append(rows[0][0])

    def _sign_up(self) -> None:
        first, last = self._rng.choice(_FIRST_NAMES), self._rng.choice(_LAST_NAMES)
        profile = {"lang": self._rng.choice(["en", "de", "vi"]), "news": self._rng.random() < 0.5}
        ((customer,),) = self._do(
            Op.INSERT,
            "INSERT INTO customers (email, name, vip, profile) VALUES (%s, %s, %s, %s) "
            "RETURNING id",
            *(f"{first.lower()}{self._rng.randrange(10**6)}@example.com", f"{first} {last}"),
            *(self._rng.random() < 0.1, Jsonb(profile)),
        )
        self._customers.append(customer)

    def _place_order(self) -> None:
        """Insert an order and its lines, and update the stock, in one transaction."""
        # All shops lock products in the same order, which prevents deadlocks.
        goods = sorted(self._rng.sample(self._products, self._rng.randint(1, 3)))
        ((order,),) = self._do(
            Op.INSERT,
            "INSERT INTO orders (customer_id, total) SELECT %s, sum(price) FROM products "
            "WHERE id = ANY(%s) RETURNING id",
            *(self._rng.choice(self._customers), goods),
        )
        for line, product in enumerate(goods, 1):
            self._do(
                Op.INSERT,
                "INSERT INTO order_items SELECT %s, %s, id, 1, price FROM products WHERE id = %s",
                *(order, line, product),
            )
            self._do(Op.UPDATE, "UPDATE products SET stock = stock - 1 WHERE id = %s", product)
        self._orders.append(order)

    def _advance(self) -> None:
        order = self._rng.choice(self._orders or [_NO_ORDER])
        status = self._rng.choice(["paid", "shipped", "returned"])
        note = self._rng.choice([None, "ring twice", "gift wrap, please 🎁"])
        self._do(
            Op.UPDATE, "UPDATE orders SET status = %s, note = %s WHERE id = %s", status, note, order
        )

    def _describe(self) -> None:
        """Change a TOAST value."""
        self._do(
            Op.UPDATE,
            "UPDATE products SET description = %s WHERE id = %s",
            *(self._description(), self._rng.choice(self._products)),
        )

    def _renumber(self) -> None:
        """Change the key of a row."""
        order = self._rng.choice(self._orders or [_NO_ORDER])
        self._do(
            Op.UPDATE,
            "UPDATE order_items SET line = line + 100 WHERE order_id = %s AND line < 100",
            order,
        )

    def _cancel(self) -> None:
        if not self._orders:
            return
        order = self._orders.popleft()
        self._do(Op.DELETE, "DELETE FROM order_items WHERE order_id = %s", order)
        self._do(Op.DELETE, "DELETE FROM orders WHERE id = %s", order)

    def _change_mind(self) -> None:
        """Roll a transaction back."""
        order = self._rng.choice(self._orders or [_NO_ORDER])
        self._do(Op.DELETE, "DELETE FROM order_items WHERE order_id = %s", order)
        self._do(Op.INSERT, "INSERT INTO visits (page) VALUES ('/never')")
        self._pending.clear()
        self.rollbacks += 1
        raise psycopg.Rollback

    def _visit(self) -> None:
        self._do(Op.INSERT, "INSERT INTO visits (page) VALUES (%s)", self._rng.choice(_PAGES))

    def _sweep(self) -> None:
        self._do(Op.TRUNCATE, "TRUNCATE visits")

    def _note(self) -> None:
        self._say("shop.note", f'{{"open_orders": {len(self._orders)}}}')

    def _say(self, prefix: str, content: str) -> None:
        self._do(Op.MESSAGE, "SELECT pg_logical_emit_message(true, %s, %s)", prefix, content)

    def _description(self) -> str:
        return " ".join(self._rng.choices(_WORDS, k=_DESCRIPTION_WORDS))
