"""⑤ A broker that serves Kafka's clients from tables of PostgreSQL.

    settings     the options of the command
    serving      the process
    server       the listener; `connection` is one client
    wire         requests and responses of every version; `bounds` checks their counts first
    api          one handler per kind of request, typed by `api.requests`
    broker       what connections share, and the background tasks
    groups       consumer groups; `membership` is one group
    limits       connections, memory, time
    figures      status and metrics, from a `tally`; `endpoints` serve them
    auth         users and ACLs: `login` and `scram`, `access`, `accounts` for operators, `tls`
    tables       `schema.sql`, `catalog` and `configs` of topics, `records` (batches ⇄ rows),
                 `writer`, `reader`, `retention`, `pool`, `presence` of groups
    resets       moves offsets of groups; `tables.inspection` is what consoles and commands see

The broker is a process of its own, not an extension of the server: it also works with managed
PostgreSQL.
"""
