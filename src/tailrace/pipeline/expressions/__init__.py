"""SQL expressions of pipelines: parsed, checked, and compiled to Spark SQL over the cells frame.

The path of an expression: `syntax` parses it, `render` checks it against the allow-list
(`allowed`, `functions`), `names` resolves its columns, `compile` writes Spark SQL for one version
of a table, and `analysis` asks Spark for the type of the result.
"""
