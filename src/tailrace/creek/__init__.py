"""The services of Creek's shape: the Avro schemas of what a pipeline publishes, and its tables.

sql        the schema `_creek` in the source: stored schemas, functions that add and remove tables
versions   the schemas of the log's relations, in memory
cache      the same in the data folder, for the next start
answers    schemas on request, by fingerprint
worker     a thread for blocking calls of an event loop
catalog    the published tables at present
table_log  the commits that added tables, in the log
members    tables that join and leave the publication, and the LSN from which they are complete
stream     the newest schema of each table, in JetStream
watcher    keeps the table and the stream current
service    the threads of a pipeline

The encoding is in `tailrace.encode.creek`, the preset in `tailrace.run.presets.creek`, the client
in `tailrace.client.creek`.

A schema depends only on a table's columns, so all of this can be rebuilt: from the log, or from
`_creek.avro_schemas` for what retention has removed from the log.
"""
