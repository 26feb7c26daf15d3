"""Readers: the messages of a JetStream stream in order, across reconnects and server restarts.

reader   what the two readers have in common: start, message, contract
pull     one pull consumer
ordered  a reader that keeps its own position; nothing is acknowledged
durable  a reader whose position is on the server, by acknowledgements
timed    waits for a reader with a timeout, without losing messages
"""
