"""The Protocols of requests name fields that `kio` has, in the versions that the broker serves."""

from __future__ import annotations

import dataclasses
import types
from datetime import timedelta
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from kio.index import load_request_schema

from tailrace.broker.api import APIS, requests
from tailrace.broker.api.requests import Since, Until, field_or

REQUESTS: dict[int, type] = {
    0: requests.Produce,
    1: requests.Fetch,
    2: requests.ListOffsets,
    3: requests.Metadata,
    8: requests.OffsetCommit,
    9: requests.OffsetFetch,
    10: requests.FindCoordinator,
    11: requests.JoinGroup,
    12: requests.Heartbeat,
    13: requests.LeaveGroup,
    14: requests.SyncGroup,
    15: requests.DescribeGroups,
    16: requests.ListGroups,
    17: requests.SaslHandshake,
    19: requests.CreateTopics,
    20: requests.DeleteTopics,
    21: requests.DeleteRecords,
    22: requests.InitProducerId,
    32: requests.DescribeConfigs,
    33: requests.AlterConfigs,
    36: requests.SaslAuthenticate,
    37: requests.CreatePartitions,
    42: requests.DeleteGroups,
    44: requests.IncrementalAlterConfigs,
}


def exists(hint: Any, version: int) -> tuple[Any, bool]:
    """A field's type without its marks, and whether this version has the field."""
    if get_origin(hint) is not Annotated:
        return hint, True
    inner, *marks = get_args(hint)
    return inner, all(
        version >= mark.version if isinstance(mark, Since) else version <= mark.version
        for mark in marks
        if isinstance(mark, Since | Until)
    )


def parts(hint: Any) -> tuple[set[type], bool, bool]:
    """The types of a value or of its elements, whether it is a tuple, whether it may be null."""
    if get_origin(hint) in (Union, types.UnionType):
        inner, many, _ = parts(next(one for one in get_args(hint) if one is not type(None)))
        return inner, many, type(None) in get_args(hint)
    if get_origin(hint) is tuple:
        return {get_args(hint)[0]}, True, False
    return {hint}, False, False


def compare(protocol: Any, entity: Any, version: int) -> None:
    fields = {field.name for field in dataclasses.fields(entity)}
    actual = get_type_hints(entity)
    for name, hint in get_type_hints(protocol, include_extras=True).items():
        declared, served = exists(hint, version)
        assert (name in fields) == served, f"{entity.__name__} v{version}: {name}"
        if not served:
            continue
        (wanted,), many, nullable = parts(declared)
        (found,), found_many, found_nullable = parts(actual[name])
        assert many == found_many, name
        # Later versions may allow null where early ones do not.
        assert nullable or not found_nullable, f"{entity.__name__} v{version}: {name} may be null"
        if dataclasses.is_dataclass(found):
            compare(wanted, found, version)
        else:
            assert issubclass(getattr(found, "__supertype__", found), wanted), name


@pytest.mark.parametrize("key", sorted(REQUESTS))
def test_protocols_match_every_served_version(key: int) -> None:
    api = APIS[key]
    for version in range(api.min_version, api.max_version + 1):
        compare(REQUESTS[key], load_request_schema(key, version), version)


def test_every_served_request_has_a_protocol() -> None:
    assert set(REQUESTS) == set(APIS)


def test_a_field_that_a_version_lacks_has_its_default() -> None:
    request: Any = types.SimpleNamespace(present=timedelta(1))
    assert field_or(lambda: request.present, timedelta(2)) == timedelta(1)
    assert field_or(lambda: request.absent, timedelta(2)) == timedelta(2)
