"""Creek: the preset, and the schemas of what it publishes.

preset     a few variables → a settings file; the first start
versions   the schemas that the log states, in memory
kept       the same on disk, for the next start
answers    a fingerprint comes in, its schema goes out
worker     what blocks, beside the event loop
catalog    the published tables as they are now
members    tables that join and leave, and from which LSN on
shelf      the newest schema of each table, in JetStream
watcher    keeps table and stream current
service    the threads of a pipeline

A schema depends on a table's columns alone, so everything here can be forgotten and found again:
the log states what it holds, and `_creek.avro_schemas` keeps what the log has dropped.
"""
