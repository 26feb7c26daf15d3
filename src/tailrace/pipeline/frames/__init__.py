"""What rows the source makes of the log: changes, one table's rows, blocks, cells."""
