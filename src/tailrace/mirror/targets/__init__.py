"""Targets: the databases that hold the copies of tables.

target       the contract of a target, and `TargetType`, which describes one
registry     the target of an address
sqlite/  duckdb/  postgresql/   the built-in targets
values       values of messages, converted by column
sql          quoted names and lists of them
copytext     columns as the text of PostgreSQL's COPY
file_url     file paths in addresses
file_lock    one writer per file
failures     the errors that all targets have in common
"""
