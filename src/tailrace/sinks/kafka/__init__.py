"""Apache Kafka: a message a change, at least once, or exactly once in transactions.

    names         escaped names → topics
    failures      librdkafka's errors → ours
    client        settings → librdkafka's; what it says besides its answers
    topics        topics: looked at once, made when missing, never altered
    publisher     the bulk path: rows out, delivery reports in
    positions     how far a lane is, in a topic of the pipeline
    ledger        what of a batch that comes again is left to deliver
    sink          `Kafka`, which holds to the contract of `tailrace.sinks.contract`

The client library is confluent-kafka (librdkafka): it owns the connections, keeps order and refuses
repetitions within a life of a producer. What costs time here is its call a message.
"""
