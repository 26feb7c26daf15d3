"""RabbitMQ: messages to exchanges over AMQP 0-9-1, with publisher confirms.

    settings      the keys of `sink:` with `type: rabbitmq`
    address       `url` taken apart
    destination   exchange and routing key, filled from a template
    failures      errors of RabbitMQ and of py-amqp as Tailrace's
    connection    one connection: login, TLS, heartbeats, alarms of the broker
    topology      exchanges and queues: which exist, and how missing ones are declared
    frames        columns as the frames of messages
    channel       messages out, confirms and returned messages in
    waits         which message must wait for which
    pool          messages without a final answer
    outbox        which of them to send, and what their answers mean
    sink          `RabbitMQ`, which implements the contract of `tailrace.sinks.contract`

Many messages are in flight on one channel, but never two of one key. A confirm is the broker's
answer for a message, and it may be a refusal: a message that was sent meanwhile cannot be taken
back, and if it was of the same key, the key would be out of order. The sinks of
`tailrace.sinks.requests` keep the same rule per request; here a request would be one message, and
Python would run for each of them. So `waits` and `pool` work on whole columns.

The client library is py-amqp, which connects, logs in and reads answers, and is as blocking as a
sink. The frames of messages are built from whole columns.
"""
