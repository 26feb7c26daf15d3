"""The sink `postgres`: into another PostgreSQL database, exactly once.

settings      the keys of `sink:` with `type: postgres`
destination   the table of a message, filled from a template
session       the connection: transactions, COPY, errors
failures      PostgreSQL's errors: about a message, the connection or the database
positions     the position of each lane, in a table of the target database
binary        columns in COPY's binary format
events        mode `events`: every message is a row of one table
partitions    partitions of that table by time
tables        mode `tables`: rows are upserted and deleted by key
catalog       the target tables as they are: columns, types, key
net           the statements that apply the net effect of changes to a table
sifting       which messages of a batch are refused
sink          `Postgres`, which implements the contract of `tailrace.sinks.contract`
"""
