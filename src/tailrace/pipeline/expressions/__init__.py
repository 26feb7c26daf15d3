"""SQL expressions of pipelines: parsed, checked, and compiled to Spark SQL over the cells frame."""
