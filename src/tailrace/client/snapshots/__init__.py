"""Snapshots on request, as clients get them.

messages  the messages of a snapshot: metadata and chunks, and their subjects
requests  requests to the snapshot service, repeated until the snapshot is complete
snapshot  the rows of a complete snapshot
chunks    the chunks of a snapshot while the service still writes it
"""
