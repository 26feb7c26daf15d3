"""Snapshots on request: a client sends a request over NATS, and the rows arrive in a stream.

record      the state of one snapshot, on disk, so that it resumes after a crash
catalog     which tables clients can request
jobs        creates the job of a new snapshot, or of one that resumes
maker       runs one snapshot from start to end, through any failure in between
bound       the LSN up to which a snapshot contains every change
dictionary  trains and stores the dictionary of a compressed snapshot
answers     requests and replies, in Tailrace's form or in Creek's
service     all of them together, for one pipeline
"""
