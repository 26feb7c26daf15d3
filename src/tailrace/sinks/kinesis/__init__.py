"""The sink `kinesis`: data streams of Amazon Kinesis."""
