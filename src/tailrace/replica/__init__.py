"""Replicas: copies of the log on other machines.

The leader is the machine whose capture writes the log. `leader` connects to each follower and
sends what is durable; `follower` listens, writes and acknowledges. Version 1 of the protocol sends
entries (`seed`), version 2 copies files (`frames`).
"""
