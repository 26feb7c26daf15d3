#!/bin/sh
# The interpreter of Spark's Python processes, without Spark's zip files: see interpreter.py.
set -f # a `*` in a path is not a pattern
kept=
IFS=:
for entry in $PYTHONPATH; do
    case "$entry" in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) kept="${kept:+$kept:}$entry" ;;
    esac
done
unset IFS
export PYTHONPATH="$kept"
if [ -n "$TAILRACE_FORK_SERVER" ]; then
    exec "$TAILRACE_PYTHON" -I -S "${0%/*}/forked.py" "$@"
fi
exec "$TAILRACE_PYTHON" "$@"
