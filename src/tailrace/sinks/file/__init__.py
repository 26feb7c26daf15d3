"""The sink `file`: JSON Lines or Parquet, in a local folder or an object store.

Messages are spooled per folder (`spool`, `formats`). A commit completes everything that is spooled:
the files are stored under temporary names, a record says so (`commits`), and then they are moved to
their final names. The record is what counts. After a crash the next sink of the lane finds it,
moves what is not yet moved, and skips what is delivered (`progress`). A file with a final name is
therefore complete, and no other file has its messages.

`local` and `objects` are the two kinds of stores. Only `objects` imports fsspec.
"""
