"""Snapshots on request: a message over NATS, and the table's rows arrive in a stream.

record    what is known of a snapshot, on disk, so that a crash continues it
catalog   which tables there are to ask for
maker     one snapshot from its beginning to its end, whatever fails in between
bound     up to which LSN a snapshot has every change
answers   what is asked for and answered, in Tailrace's words or in Creek's
service   all of them together, for one pipeline
"""
