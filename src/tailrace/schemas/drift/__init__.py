"""Changes of tables that produce no row events: found in the catalogs, told, or backfilled.

facts     what the catalogs say of published tables, cheap enough to ask every few seconds
compare   two looks at the catalogs → findings; pure
sent      what the stream has told of truncations and partitions between the two
record    findings in the data folder, until everybody has been told, and for people
telling   the consumers' side of a finding
watcher   the thread that looks, compares and tells
"""
