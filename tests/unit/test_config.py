"""The settings file: defaults, sizes, references, and errors that name the key."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from tailrace.config import Config, load
from tailrace.errors import ConfigError

CANARY = "canary-7f3a"


@pytest.fixture
def write(tmp_path: Path) -> Path:
    return tmp_path / "tailrace.yml"


def refused(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    return str(caught.value)


def test_an_empty_file_is_valid(write: Path) -> None:
    write.write_text("")
    config = load(write)
    assert config.source.slot == "tailrace"
    assert config.log.flush_ms == 20
    assert config.capture.messages is True


def test_sections_may_be_empty(write: Path) -> None:
    write.write_text("source:\nlog:\n  # path: elsewhere\n")
    assert load(write).log.path == write.parent / "tailrace-data/log"


def test_no_file_gives_the_defaults() -> None:
    assert load() == Config()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64MiB", 64 * 2**20),
        ("10 GiB", 10 * 2**30),
        ("1.5KiB", 1536),
        ("2MB", 2_000_000),
        ("3kb", 3_000),
        ("1TiB", 2**40),
    ],
)
def test_sizes(write: Path, text: str, size: int) -> None:
    write.write_text(f"log:\n  segment_bytes: {text}\n")
    assert load(write).log.segment_bytes == size


def test_a_size_of_unknown_unit_is_refused(write: Path) -> None:
    message = refused(write, "log:\n  segment_bytes: 64 MegaBytes\n")
    assert "log.segment_bytes: must be a number of bytes, or a size such as 64MiB" in message


def test_an_unknown_key_names_the_nearest(write: Path) -> None:
    message = refused(write, "log:\n  flush_msec: 5\n")
    assert "log.flush_msec: unknown key, did you mean flush_ms?" in message


def test_an_unknown_section_names_the_nearest(write: Path) -> None:
    assert "sorce: unknown key, did you mean source?" in refused(write, "sorce:\n  dsn: x\n")


def test_an_unknown_key_without_a_near_one_lists_the_valid_keys(write: Path) -> None:
    message = refused(write, "source:\n  zzz: 5\n")
    assert "source.zzz: unknown key; valid keys: dsn, slot, publication" in message


def test_all_problems_are_reported_at_once(write: Path) -> None:
    message = refused(
        write, "source:\n  slot: My-Slot\nlog:\n  codec: lz5\n  flush_ms: -1\ncapture: 3\n"
    )
    assert "4 problems" in message
    assert "source.slot: must be 1 to 63 of the characters a-z, 0-9 and _" in message
    assert "log.codec: must be 'none' or 'zstd'" in message
    assert "log.flush_ms: must be greater than or equal to 0" in message
    assert "capture: must be a section with keys" in message


@pytest.mark.parametrize("slot", ["", "My", "a-b", "a" * 64, "ä", "a b", "x;--"])
def test_slot_names_are_checked(slot: str) -> None:
    with pytest.raises(ConfigError, match=r"source\.slot"):
        load(None, {"source": {"slot": slot}})


@pytest.mark.parametrize("publication", ["", "p" * 64, "ü" * 32, "a\0b"])
def test_publication_names_are_checked(publication: str) -> None:
    with pytest.raises(ConfigError, match=r"source\.publication"):
        load(None, {"source": {"publication": publication}})


def test_publication_names_may_need_quotes() -> None:
    name = 'Odd "name"; --'
    assert load(None, {"source": {"publication": name}}).source.publication == name


@pytest.mark.parametrize("value", [".inf", ".nan", "-1"])
def test_durations_are_finite_and_not_negative(write: Path, value: str) -> None:
    assert "capture.heartbeat_s" in refused(write, f"capture:\n  heartbeat_s: {value}\n")


def test_references_are_replaced_from_the_environment(
    write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_HOST", "db.example")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("ABSENT", raising=False)
    write.write_text(
        "source:\n"
        "  dsn: host=${SHOP_HOST} port=${ABSENT:-5433} user=${EMPTY:-me} options=$${x}\n"
        "log:\n  flush_ms: ${ABSENT:-7}\n"
    )
    config = load(write)
    dsn = config.source.dsn.get_secret_value()
    assert dsn == "host=db.example port=5433 user=me options=${x}"
    assert config.log.flush_ms == 7


def test_a_missing_variable_is_named_with_its_key(
    write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    message = refused(write, "source:\n  dsn: host=${ABSENT}\n")
    assert "source.dsn: the environment variable ABSENT is not set" in message


def test_overrides_win_and_are_not_expanded(write: Path) -> None:
    write.write_text("source:\n  slot: one\n  publication: kept\n")
    config = load(write, {"source": {"slot": "two"}, "log": {"path": "${X}"}})
    assert config.source.slot == "two"
    assert config.source.publication == "kept"
    assert config.log.path == Path("${X}")


def test_overrides_do_not_hide_a_bad_section(write: Path) -> None:
    write.write_text("log: 3\n")
    with pytest.raises(ConfigError, match="log: must be a section"):
        load(write, {"log": {"flush_ms": 3}})


def test_paths_of_a_file_are_relative_to_it(write: Path) -> None:
    write.write_text("log:\n  path: here/log\n")
    assert load(write).log.path == write.parent / "here/log"
    assert load(write, {"log": {"path": "there"}}).log.path == Path("there")


def test_absolute_paths_stay(write: Path) -> None:
    write.write_text("log:\n  path: /var/log/tailrace\n")
    assert load(write).log.path == Path("/var/log/tailrace")


def test_a_duplicate_key_is_refused(write: Path) -> None:
    message = refused(write, "log:\n  flush_ms: 1\n  flush_ms: 2\n")
    assert "duplicate key at line 3, column 3" in message


def test_invalid_yaml_names_the_line_and_shows_no_value(write: Path) -> None:
    message = refused(write, f"source:\n  dsn: 'password={CANARY}\n")
    assert "invalid YAML at line" in message
    assert CANARY not in message


def test_a_file_without_sections_is_refused(write: Path) -> None:
    assert "must be sections such as `source:`" in refused(write, "- a\n- b\n")


def test_binary_files_are_refused(write: Path) -> None:
    write.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load(write)


def test_control_characters_are_refused(write: Path) -> None:
    assert "invalid YAML" in refused(write, "a: \x07\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.yml: No such file"):
        load(tmp_path / "gone.yml")


def test_keys_that_are_not_strings_are_refused(write: Path) -> None:
    assert "1: Keys must be strings" in refused(write, "1: a\n")


def test_the_dsn_is_never_shown() -> None:
    config = load(None, {"source": {"dsn": f"host=x password={CANARY}"}})
    for text in (repr(config), str(config), repr(config.source), config.model_dump_json()):
        assert CANARY not in text
    assert CANARY in config.source.dsn.get_secret_value()


@pytest.mark.parametrize("key", ["dsn", "slot", "publication", "nonsense"])
def test_refused_values_are_never_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"source": {key: [CANARY]}})
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_models_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load().log.flush_ms = 3


def test_a_config_survives_pickling() -> None:
    config = load(None, {"source": {"dsn": "host=x"}})
    assert pickle.loads(pickle.dumps(config)) == config


def test_every_key_is_described() -> None:
    def descriptions(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            assert field.description, name
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                descriptions(field.annotation)

    descriptions(Config)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shape": "creek", "encoding": "json"}, "shape creek has no encoding json: use avro"),
        ({"shape": "plain", "encoding": "avro"}, "shape plain has no encoding avro"),
        ({"shape": "creek", "messages": ["*"]}, "delivers whole rows"),
        ({"shape": "creek", "select": ["id"]}, "delivers whole rows"),
        ({"shape": "creek", "namespace": "a.b"}, "namespace"),
        ({"shape": "creek", "snapshots": {}}, "CREEK._snapshot"),
        ({"shape": "creek", "layout": "database"}, "must be named CREEK_wal_DATABASE"),
        (
            {
                "shape": "creek",
                "layout": "database",
                "snapshots": {"request": "CREEK._snapshot"},
                "sink": {"type": "nats", "stream": {"name": "CREEK_wal_shop"}},
            },
            "a request such as CREEK_snap_shop",
        ),
    ],
)
def test_options_that_shape_creek_excludes(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(None, {"pipelines": {"p": {"sink": {"type": "nats"}, **given}}})


def test_shape_creek_sets_avro() -> None:
    loaded = load(None, {"pipelines": {"p": {"shape": "creek", "sink": {"type": "nats"}}}})
    assert loaded.pipelines["p"].format == "avro"


@pytest.mark.parametrize("given", [{"where": "id > 1"}, {"select": ["id"]}])
def test_snapshots_do_not_bypass_where_and_select(given: dict[str, object]) -> None:
    pipeline = {**given, "snapshots": {}, "sink": {"type": "nats"}}
    with pytest.raises(ConfigError, match="`snapshots` deliver whole rows"):
        load(None, {"pipelines": {"p": pipeline}})


NATS = {"type": "nats", "url": "nats://localhost"}
POSTGRES = {"type": "postgres", "dsn": "host=localhost"}


@pytest.mark.parametrize(
    ("sink", "park", "expected"),
    [
        (NATS, None, "key"),
        ({**NATS, "atomic": "transaction"}, None, "never"),
        (POSTGRES, None, "key"),
        ({**POSTGRES, "mode": "tables"}, None, "never"),
        ({**POSTGRES, "mode": "tables"}, "key", "key"),
        (POSTGRES, "never", "never"),
    ],
)
def test_messages_are_parked_unless_that_tears_transactions(
    sink: dict[str, object], park: str | None, expected: str
) -> None:
    pipeline = {"sink": sink, "shape": "plain", "park": park}
    assert load(None, {"pipelines": {"orders": pipeline}}).pipelines["orders"].parks == expected


def test_a_transaction_of_nats_cannot_be_parked_in_part() -> None:
    pipeline = {"sink": {**NATS, "atomic": "transaction"}, "park": "message"}
    with pytest.raises(ConfigError, match=r"without its parked messages: use `park: never`"):
        load(None, {"pipelines": {"orders": pipeline}})


@pytest.mark.parametrize("master", ["spark://spark.example.com:7077", "yarn", "k8s://https://k"])
def test_a_remote_spark_without_protection_is_refused(master: str) -> None:
    """Tasks carry the passwords of sinks."""
    with pytest.raises(ConfigError, match=r"spark\.authenticate and spark\.network\.crypto"):
        load(None, {"spark": {"master": master}})
    conf = {"spark.authenticate": "true"}
    with pytest.raises(ConfigError, match=r"set spark\.network\.crypto\.enabled to true"):
        load(None, {"spark": {"master": master, "conf": conf}})
    conf |= {"spark.network.crypto.enabled": "true"}
    assert load(None, {"spark": {"master": master, "conf": conf}}).spark.master == master


@pytest.mark.parametrize("master", ["local[*]", "spark://127.0.0.1:7077", "spark://localhost:1"])
def test_a_local_spark_needs_no_protection(master: str) -> None:
    assert load(None, {"spark": {"master": master}}).spark.master == master


def test_the_endpoints_listen_on_loopback_by_default() -> None:
    assert load().http.host == "127.0.0.1"
