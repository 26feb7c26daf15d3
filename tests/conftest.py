"""The fixture plugins of all tests, one a dependency."""

pytest_plugins = [
    "tests.fix_postgres",
    "tests.fix_capture",
    "tests.fix_log",
    "tests.fix_pipeline",
    "tests.fix_broker",
    "tests.fix_kafka",
    "tests.fix_certificates",
]
