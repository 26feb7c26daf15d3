"""The bulk path of JetStream: whole batches out, acks in, and what a stream already holds."""
