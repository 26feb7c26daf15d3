"""`format("tailrace")`: the streaming reader over the log and the batch reader of a table."""
