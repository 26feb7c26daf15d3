"""What the sinks for services of AWS share: `sqs`, `sns`, `kinesis` and `eventbridge`.

`session` logs in and creates the client, `codes` and `failures` say what an error means, `answers`
what an answer says about each message, `text` and `attributes` what a service takes as a message,
`checking` what can be checked before. The services differ in their limits, in what an entry of a
request is, and in how an answer names the failed ones.
"""
