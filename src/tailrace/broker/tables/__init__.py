"""The broker's tables: topics, records and their retention, read and written in bulk."""
