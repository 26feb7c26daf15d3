"""The settings of a Spark session: where it listens, and what is on the JVM's command line."""

from __future__ import annotations

import pytest
from pyspark import SparkConf, SparkContext

from tailrace.config import Spark
from tailrace.pipeline import session

PROTECTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
ADDRESSES = ("spark.driver.host", "spark.driver.bindAddress")


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:7077", "spark://localhost:7077"])
def test_a_driver_on_one_machine_listens_on_loopback(master: str) -> None:
    conf = session.conf_of(Spark(master=master))
    assert [conf[name] for name in ADDRESSES] == ["127.0.0.1", "127.0.0.1"]


def test_a_driver_of_a_cluster_listens_where_spark_or_the_user_says() -> None:
    conf = session.conf_of(Spark(master="spark://spark-1:7077", conf=PROTECTED))
    assert not any(name in conf for name in ADDRESSES)
    own = PROTECTED | {"spark.driver.host": "10.0.0.7"}
    conf = session.conf_of(Spark(master="spark://spark-1:7077", conf=own))
    assert [conf.get(name) for name in ADDRESSES] == ["10.0.0.7", None]


def test_a_local_session_creates_a_secret() -> None:
    name = "spark.authenticate"
    assert session.conf_of(Spark(master="local[2]"))[name] == "true"
    # The user and the master share a secret.
    assert name not in session.conf_of(Spark(master="spark://localhost:7077"))
    own = session.conf_of(Spark(master="spark://spark-1:7077", conf=PROTECTED))
    assert own[name] == "true"


def test_sparks_user_interface_is_off() -> None:
    assert session.conf_of(Spark())["spark.ui.enabled"] == "false"
    own = {"spark.ui.enabled": "true"}
    assert session.conf_of(Spark(conf=own))["spark.ui.enabled"] == "true"


def test_secrets_are_not_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark turns the settings that it starts a JVM with into options of `spark-submit`."""
    started: list[SparkConf] = []

    def start(conf: SparkConf) -> None:
        started.append(conf)

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", start)
    secrets = {
        "spark.authenticate.secret": "s3cret",
        "spark.hadoop.fs.s3a.secret.key": "s3cret",
        "spark.hadoop.fs.s3a.access.key": "s3cret",
        "spark.ssl.keyStorePassword": "s3cret",
        "spark.kubernetes.authenticate.oauthToken": "s3cret",
    }
    session._start_jvm(secrets | {"spark.driver.memory": "1g"})
    assert dict(started[0].getAll()) == {"spark.driver.memory": "1g"}


def test_checkpoints_are_for_their_owner() -> None:
    assert session.STREAMING["spark.hadoop.fs.permissions.umask-mode"] == "077"


def test_settings_are_not_shown() -> None:
    assert "s3cret" not in repr(Spark(conf={"spark.authenticate.secret": "s3cret"}))


def test_executors_elsewhere_start_the_daemon_of_pyspark() -> None:
    name = "spark.python.daemon.module"
    assert session.conf_of(Spark())[name] == "tailrace.pipeline.daemon"
    assert name not in session.conf_of(Spark(master="spark://spark-1:7077", conf=PROTECTED))
    own = {name: "pyspark.daemon"}
    assert session.conf_of(Spark(conf=own))[name] == "pyspark.daemon"
