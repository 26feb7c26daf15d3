"""Backfills: the rows a table has, through a pipeline, while its changes go on.

order     what people ask for, and what became of it: two files for each backfill
unseen    which transactions in the log the next snapshot may not see
filler    one backfill from its beginning to its end: pages of the table into the spool
service   the backfills of one pipeline, one after another
desk      for commands and HTTP: place an order, pause, resume, cancel, look
"""
