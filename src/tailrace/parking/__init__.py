"""Parked messages: what a sink does not accept, kept until an operator has it retried or dropped.

A task that delivers writes what it parks to a part (`part`), durably, before its progress counts.
That decides: a replay of the micro-batch leaves it parked. Once the batch is committed the planner
adds the part to the store (`store`). The planner also carries out the orders of operators
(`order`): it puts messages that are to be retried into a release, which the next micro-batch
delivers, and records which groups of messages are blocked (`blocked`). So a replayed batch finds
what its first attempt found. There is one writer of the sink, and one order.

This package does not import pyspark. `tailrace.pipeline.guard` decides what is parked.
"""
