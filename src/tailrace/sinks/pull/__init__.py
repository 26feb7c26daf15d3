"""The sink `pull`: messages wait in a store of this machine until consumers fetch them over HTTP.

Two processes write the store, an SQLite file (`database`), and each only its own part of it:

| process                     | module   | what it writes                                     |
|-----------------------------|----------|----------------------------------------------------|
| a worker of Spark, per lane | `intake` | new messages, with the position that they reach    |
| the HTTP server             | `queue`  | deliveries, acknowledgements, and what has expired |

Each change is one transaction. A lane's position is in the transaction of its messages, and a sink
that was replaced owns the lane no longer, so each message enters the store once. `succession` says
which messages may be delivered, `wake` tells the server of new ones.
"""
