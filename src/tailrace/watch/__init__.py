"""The watchdog: is the system healthy, and where do alerts go if not?

It is a process that shares only files with the others.

It must work when everything else hangs. So what may block runs in threads of its own (`poller`):
reading files, asking PostgreSQL, sending alerts, writing the history. The main loop only computes:

    facts (files, source) ─► checks ─► results ─► alerting ─► messages ─► delivery ─► channels
                                          └─► history, status file

`facts` are values; `checks` are pure functions over them and over what was seen before (`motion`);
`alerting` decides what is sent, with a clock as an argument. It imports little, for its memory and
its start: no numpy, no Spark.
"""
