"""Schema drift: changes of tables that produce no row events, found in the catalogs.

facts     what the catalogs say of published tables, cheap enough to read every few seconds
compare   two reads of the catalogs → the drift between them; pure
sent      the truncations and partitions that the stream has shown between the two
record    drift in the data folder, until every pipeline has handled it, and for `/status`
notify    the message to consumers
watcher   the thread that reads, compares, notifies and backfills
"""
