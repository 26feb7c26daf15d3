"""Snapshots: all rows of a table as of one point in time, read in parallel.

One session exports the snapshot. Any number of sessions import it, each reads its own range of
pages, and every value has the same text form as in the stream. The snapshot's visibility is known
exactly, so a client can decide for every change whether the rows already contain it.

export    takes and imports an exported snapshot
keeper    the process that holds an exported snapshot open
table     a table's columns and page ranges
copy, receive, lines, cells    COPY, from the socket to columns of cells
rows      rows of a snapshot as a group of changes
unseen    transactions in the log that a snapshot does not see
job       a snapshot that is being published to a stream
formats/  the messages of a snapshot in its stream
service/  snapshots on request over NATS
"""
