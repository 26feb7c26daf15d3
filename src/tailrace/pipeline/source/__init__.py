"""`format("tailrace")`: streaming and batch readers of the log, and the batch reader of a table."""
