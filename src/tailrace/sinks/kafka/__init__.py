"""Apache Kafka: one record per change, at least once, or exactly once in transactions.

    settings      how to connect to a cluster, and the keys of `sink:` with `type: kafka`
    destination   the topic of a message, filled from a template
    names         a destination as topic and partition
    client        settings as librdkafka's; its log and error callbacks
    failures      librdkafka's errors as Tailrace's
    topics        topics: checked once, created if missing, never altered
    publisher     the bulk path: rows out, delivery reports in
    positions     the position of each lane, in a compacted topic of the pipeline
    producing     what sinks into Kafka share
    sink          `Kafka`, which implements the contract of `tailrace.sinks.contract`

The client library is confluent-kafka (librdkafka): it owns the connections, keeps order and refuses
duplicates within the life of a producer. Its call per message is what costs time here.
"""
