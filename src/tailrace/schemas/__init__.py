"""What tables look like, for consumers: schema documents, and drift that the stream does not show.

documents   a document per version of a table, and which one applies to a change; pure
catalog     the present columns of the published tables
store       the documents in a JetStream bucket
publisher   keeps the documents of a pipeline current
follow      the loop of publishers: publish at the start, on a change, every minute
schedule    how often the catalogs are read
drift/      changes of tables that produce no row events
"""
