"""⑤ Kafka's clients on tables of PostgreSQL: a listener beside the server.

    schema.sql   the tables, and functions to write to topics with SQL
    serving      the process
    server       the listener: who may connect, for how long; `tls`
    connection   one client: frames in, frames out
    login        users prove who they are, by `scram`
    access       what they may do; `accounts` changes it
    limits       connections, memory, time
    wire         requests and responses of every version; `bounds` looks at their counts first
    api          an answer for each kind of request
    broker       what connections share
    catalog      topics        configs   their settings
    records      record batches ⇄ rows
    writer       producing     reader    consuming
    groups       consumer groups
    pool         connections to PostgreSQL
    figures      what it tells of itself, from a `tally`; `endpoints` serve it

It is a process of its own and not part of the server's, so it serves managed PostgreSQL as well.
"""
