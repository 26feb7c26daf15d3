"""The fixture plugins of all tests, one per dependency, and what holds for every test."""

from __future__ import annotations

import pytest

from tests.chance import register_profiles

pytest_plugins = [
    "tests.fix_postgres",
    "tests.fix_capture",
    "tests.fix_log",
    "tests.fix_pipeline",
    "tests.fix_broker",
    "tests.fix_kafka",
    "tests.fix_certificates",
]

register_profiles()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need Spark's JVM: starting it takes longer than most unit tests together."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
