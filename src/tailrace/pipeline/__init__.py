"""Stage ③ on Spark: read → where → select → route → encode → deliver. Alone imports pyspark."""
