"""The outbox pattern: an order and its event in one transaction, read by a Kafka consumer.

tailrace broker --init --dsn "$DSN" && tailrace broker --dsn "$DSN" &
python examples/outbox.py "$DSN" 127.0.0.1:9092
"""

from __future__ import annotations

import sys

import psycopg
from confluent_kafka import Consumer

ORDERS = """
CREATE TABLE IF NOT EXISTS shop_orders (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    item text NOT NULL
)
"""
PLACE = """
WITH placed AS (INSERT INTO shop_orders (item) VALUES (%s) RETURNING id, item)
SELECT kafka.produce('shop.orders', id::text, to_jsonb(placed)::text) FROM placed
"""


def main(dsn: str, bootstrap: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "shop", "auto.offset.reset": "earliest"}
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(ORDERS)
        if not connection.execute("SELECT FROM kafka.topics WHERE name = 'shop.orders'").rowcount:
            connection.execute("SELECT kafka.create_topic('shop.orders')")
        consumer.subscribe(["shop.orders"])
        with connection.transaction():
            connection.execute(PLACE, ("a book",))
        with connection.transaction(force_rollback=True):
            connection.execute(PLACE, ("never",))
        with connection.transaction():
            connection.execute(PLACE, ("a lamp",))
    for _ in range(2):
        message = consumer.poll(60)
        if message is None or message.error() is not None:
            sys.exit(f"no message: {message and message.error()}")
        value = message.value() or b""
        print(message.topic(), message.partition(), message.offset(), value.decode())
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
