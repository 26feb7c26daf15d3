"""NATS JetStream: one login, one TLS mapping and one error translation for all that speak to it.

settings     models: how to reach a server, and what a stream is created with
login        addresses, credentials and TLS, for both kinds of connection
connection   a blocking connection for sinks and snapshots; `protocol` parses its bytes
client       short asyncio sessions through nats-py; `bucket` and `requests` use it
stream       create or check the stream that messages go to
names        table and column names as subjects and keys; `subjects` validates destinations
bulk/        batches of messages out, acknowledgements in, and what a stream already holds

nats-py is imported here and in `tailrace.client` only.
"""
