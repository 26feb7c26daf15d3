"""What the sinks `opensearch` and `elasticsearch` share: rows as documents, through the bulk API.

    settings      the keys of `sink:`
    destination   the name of an index, filled from a template
    versions      positions as versions of documents
    client        requests to the cluster, and errors as Tailrace's
    histories     which log the versions belong to
    bulk          messages as the body of a bulk request
    incomplete    updates that lack large values, completed from the documents
    answers       what the result of each item means
    indexing      one request: its parts, in order
    sink          `Search`, which implements the contract of `tailrace.sinks.contract`
    sink_type     what both have in common as kinds of sinks

The client library is elastic-transport: connections to several nodes, TLS and timeouts, without an
opinion about the product and the version at the other end. The full clients add methods for every
API, of which these sinks need three; elasticsearch-py also refuses OpenSearch and asks for media
types that older servers do not know. Bodies are built from whole columns, which the helpers of both
clients do row by row.
"""
