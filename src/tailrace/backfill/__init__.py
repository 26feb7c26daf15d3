"""Backfills: deliver the existing rows of a table through a pipeline that is delivering changes.

page      reads pages of a table by key, one transaction per page
spool     keeps pages on disk until the pipeline has delivered them
bound     finds where in the log the changes begin that a page may not see
handover  drops the rows of a page that newer changes in the stream have replaced
order     the requested backfill and its progress: two files per backfill
queue     submits, pauses, resumes, cancels and lists backfills, for commands and HTTP
filler    runs one backfill: pages of the table into the spool
service   runs the backfills of one pipeline, one after another
"""
