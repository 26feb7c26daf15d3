"""PostgreSQL's changes as a streaming DataFrame, without a daemon."""

import sys

import tailrace

spark = tailrace.session()
changes = spark.readStream.format("tailrace").option("dsn", sys.argv[1]).load()
shown = changes.select("op", "table", "after").writeStream.format("console")
shown.option("truncate", False).start().awaitTermination()
