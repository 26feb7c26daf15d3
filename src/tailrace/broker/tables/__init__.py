"""The tables behind the broker: topics, records and their retention, read and written in bulk."""
