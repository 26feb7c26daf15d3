"""Redis: streams, keys with the latest state, or publish/subscribe.

    settings      the keys of `sink:` with `type: redis`
    address       `url` taken apart
    destination   the name of a stream, key or channel, filled from a template
    failures      Redis' errors as Tailrace's
    connection    one connection, over which requests are sent ahead of their answers
    servers       which connection a key belongs to: one server, Sentinel or a cluster
    scripts       Lua: messages and the position that they reach, in one script
    resp          columns as the bytes of a request
    operations    the keys that messages set and delete
    account       the position of a lane, and the right to write it
    writer        messages in scripts, or as single commands where no script can hold them
    sink          `Redis`, which implements the contract of `tailrace.sinks.contract`

A script is atomic: no other client sees a part of it, and the append-only file and replicas contain
all of it or nothing. It compares the lane's position with the one that the sink knows, then writes
the messages and the new position. The client library is redis-py, which connects, logs in and finds
servers. Requests are built from whole columns.
"""
