"""⑤ Shadow mode: the broker's topics in a real Kafka, until a team moves there.

    source    the broker's tables: topics, and records older than the log
    ledger    how far each partition is, in a topic of Kafka's
    target    topics of Kafka: made alike, and read back
    sink      records → Kafka, each once and in order
    verify    both sides side by side; where consumers go on over there

The stream of changes brings records as they are committed, at least once. What makes it exactly
once is their offset: offsets have no holes here, so the next one a partition needs is all there is
to know, and it is written in the transaction that writes the records. Records that the stream does
not bring, because they are older than it, are read from the table when their turn comes.
"""
