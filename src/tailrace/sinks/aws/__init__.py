"""What the sinks for services of AWS share: `sqs`, `sns`, `kinesis` and `eventbridge`.

`session` logs in and creates the client, `failures` says what an error means, `text` what a service
takes as a body, `sink` and `sink_type` are what the four have in common. The services differ in
their limits, in what an entry of a request is, and in how an answer names the failed ones.
"""
