"""The bulk path of JetStream: batches out, acknowledgements in, and what a stream already holds.

frames             a batch of messages as bytes
publisher          frames out, acknowledgements in, on one connection
acks               count and read acknowledgements
atomic_batches     source transactions as JetStream's atomic batches
read_back          the messages that an interrupted attempt has stored
snapshot_messages  the messages of snapshots
"""
