"""⑤ Shadow mode: copies the broker's topics to a Kafka cluster, until clients move there.

    contract    the contract of sinks for records
    sink        records → Kafka, each once and in order
    source      the broker's tables: topics, and records that are older than the log
    ledger      the progress of each partition, in a topic of Kafka
    refusals    topics that Kafka refuses, each by itself
    target      topics of Kafka: created like the broker's, and read back
    comparison  the records of both sides, compared in order of their offsets
    verify      reads both sides for a comparison; moves the offsets of consumer groups
    settings    the options of the command

The log delivers records at least once. Offsets make the copy exactly once: the broker's offsets
have no gaps, so the next offset of a partition is its complete progress. It is written in the
Kafka transaction that writes the records. Records that the log does not have, because they are
older, are read from the table.
"""
