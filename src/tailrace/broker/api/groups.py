"""Requests about consumer groups and their members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker.api.requests import field_or
from tailrace.broker.auth.access import Operation
from tailrace.broker.membership import GroupError, Member, MemberIdRequiredError, State

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.api.requests import (
        DeleteGroups,
        DescribeGroups,
        FindCoordinator,
        GroupRequest,
        Heartbeat,
        JoinGroup,
        LeaveGroup,
        ListGroups,
        SyncGroup,
    )
    from tailrace.broker.membership import Group

NODE = 1
"""The node id of the only broker."""
_GROUP_KEY = 0
_MEMBER_ID_REQUIRED = 4
"""The first version of JoinGroup in which a new member joins twice (KIP-394)."""
_SKIP_ASSIGNMENT = 9
"""The first version of JoinGroup that has `skip_assignment` (KIP-814)."""
_WITH_OFFSETS = "SELECT DISTINCT group_id FROM kafka.consumer_offsets"
_OF_THESE_WITH_OFFSETS = _WITH_OFFSETS + " WHERE group_id = ANY (%s)"
_DELETE_OFFSETS = "DELETE FROM kafka.consumer_offsets WHERE group_id = ANY (%s) RETURNING group_id"
_RESPONSE_BYTES = 64 << 10
"""Responses up to this size do not wait for memory, so that small groups are never delayed."""


async def find_coordinator(call: Call[FindCoordinator]) -> Answer:
    """This broker, for every group. Transactions have no coordinator."""
    request = call.request
    none = {"error_message": None, "node_id": -1, "host": "", "port": -1}
    if field_or(lambda: request.key_type, _GROUP_KEY) != _GROUP_KEY:
        return none | {
            "error_code": ErrorCode.transactional_id_authorization_failed,
            "error_message": "transactions are not supported",
        }
    if not call.may_group(Operation.DESCRIBE, request.key):
        return none | {"error_code": ErrorCode.group_authorization_failed}
    return {"error_message": None, "node_id": NODE, "host": call.host, "port": call.port}


async def join(call: Call[JoinGroup]) -> Answer:
    """Join a group. The response is sent when all members have joined."""
    request = call.request
    failed = {"generation_id": -1, "protocol_name": "", "leader": "", "members": ()}
    try:
        _check_access(call)
        result = await call.broker.groups.join(
            request.group_id,
            _joining_member(call),
            require_member_id=call.version >= _MEMBER_ID_REQUIRED,
            can_skip_assignment=call.version >= _SKIP_ASSIGNMENT,
        )
    except MemberIdRequiredError as error:
        return failed | {"error_code": ErrorCode.member_id_required, "member_id": error.member_id}
    except GroupError as error:
        return failed | {"error_code": ErrorCode[str(error)], "member_id": request.member_id}
    if (group := call.broker.groups.find(request.group_id)) is not None:
        await call.broker.presence.announce(group)
    await _reserve(call, sum(len(metadata) for _, _, metadata in result.members))
    return {
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member,
        "members": [
            {"member_id": member_id, "group_instance_id": instance, "metadata": metadata}
            for member_id, instance, metadata in result.members
        ],
    }


async def _reserve(call: Call[Any], size: int) -> None:
    """Wait for the memory of a large response, until it is the next of its connection."""
    if size > _RESPONSE_BYTES:
        await call.earlier_answered.wait()
        await call.memory.replace(size)


def _joining_member(call: Call[JoinGroup]) -> Member:
    request = call.request
    session_s = request.session_timeout.total_seconds()
    rebalance = field_or(lambda: request.rebalance_timeout, request.session_timeout)
    rebalance_s = rebalance.total_seconds()
    return Member(
        id=request.member_id,
        instance=field_or(lambda: request.group_instance_id, None),
        client=call.client,
        host=call.peer,
        session_s=session_s,
        rebalance_s=rebalance_s if rebalance_s > 0 else session_s,
        protocol_type=request.protocol_type,
        protocols=tuple((one.name, bytes(one.metadata)) for one in request.protocols),
    )


async def sync(call: Call[SyncGroup]) -> Answer:
    """A member's assignment. The response is sent when the leader has sent all assignments."""
    request = call.request
    assignments = {one.member_id: bytes(one.assignment) for one in request.assignments}
    try:
        _check_access(call)
        assignment = await call.broker.groups.sync(
            request.group_id, request.generation_id, request.member_id, assignments,
            instance=field_or(lambda: request.group_instance_id, None),
            protocol_type=field_or(lambda: request.protocol_type, None),
            protocol=field_or(lambda: request.protocol_name, None),
        )  # fmt: skip
    except GroupError as error:
        return {"error_code": ErrorCode[str(error)], "assignment": b""}
    group = call.broker.groups.find(request.group_id)
    assert group is not None
    return {
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": assignment,
    }


async def heartbeat(call: Call[Heartbeat]) -> Answer:
    """Keep a member's session alive."""
    request = call.request
    try:
        _check_access(call)
        call.broker.groups.heartbeat(
            request.group_id, request.generation_id, request.member_id,
            instance=field_or(lambda: request.group_instance_id, None),
        )  # fmt: skip
    except GroupError as error:
        return {"error_code": ErrorCode[str(error)]}
    return {}


async def leave(call: Call[LeaveGroup]) -> Answer:
    """Remove one member, from version 3 on several."""
    request = call.request
    if not call.may_group(Operation.READ, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "members": ()}
    member_id = field_or(lambda: request.member_id, None)
    if member_id is not None:
        return {"error_code": _leave(call, member_id, None)}
    return {
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": _leave(call, member.member_id, member.group_instance_id),
            }
            for member in request.members
        ]
    }


def _check_access(call: Call[GroupRequest]) -> None:
    """An error unless the user may be a member of the group."""
    if not call.may_group(Operation.READ, call.request.group_id):
        raise GroupError("group_authorization_failed")


def _leave(call: Call[LeaveGroup], member_id: str, instance: str | None) -> ErrorCode:
    try:
        call.broker.groups.leave(call.request.group_id, member_id, instance=instance)
    except GroupError as error:
        return ErrorCode[str(error)]
    return ErrorCode.none


async def list_groups(call: Call[ListGroups]) -> Answer:
    """The groups that have members or committed offsets."""
    request = call.request
    active = {group.id: group for group in call.broker.groups.all()}
    async with call.broker.pool.connection() as connection:
        rows = await (await connection.execute(_WITH_OFFSETS)).fetchall()
    states: tuple[str, ...] = field_or(lambda: request.states_filter, ())
    may_describe_all = call.may_cluster(Operation.DESCRIBE)
    listed = []
    for name in sorted({*active, *(row[0] for row in rows)}):
        if not may_describe_all and not call.may_group(Operation.DESCRIBE, name):
            continue
        group = active.get(name)
        state = group.state.value if group is not None else State.EMPTY.value
        if not states or state in states:
            protocol_type = group.protocol_type if group is not None else "consumer"
            listed.append({"group_id": name, "protocol_type": protocol_type, "group_state": state})
    return {"groups": listed}


async def describe(call: Call[DescribeGroups]) -> Answer:
    """The state of groups, their members, and the members' assignments; each group once."""
    names = list(dict.fromkeys(call.request.groups))
    async with call.broker.pool.connection() as connection:
        rows = await (await connection.execute(_OF_THESE_WITH_OFFSETS, (_texts(names),))).fetchall()
    with_offsets = {row[0] for row in rows}
    groups = [call.broker.groups.find(name) for name in names]
    await _reserve(call, sum(group.memory_bytes for group in groups if group is not None))
    return {"groups": [_describe(call, name, name in with_offsets) for name in names]}


def _describe(call: Call[DescribeGroups], name: str, has_offsets: bool) -> dict[str, Any]:
    response: dict[str, Any] = {
        "group_id": name, "group_state": "", "protocol_type": "", "protocol_data": "",
        "members": (),
    }  # fmt: skip
    if not call.may_group(Operation.DESCRIBE, name):
        return response | {"error_code": ErrorCode.group_authorization_failed}
    group = call.broker.groups.find(name)
    if group is not None:
        return response | {
            "group_state": group.state.value,
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol,
            "members": [_describe_member(group, member) for member in group.members.values()],
        }
    if has_offsets:
        return response | {"group_state": State.EMPTY.value, "protocol_type": "consumer"}
    return response | {"group_state": State.DEAD.value}


def _describe_member(group: Group, member: Member) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "group_instance_id": member.instance,
        "client_id": member.client,
        "client_host": f"/{member.host}",
        "member_metadata": dict(member.protocols).get(group.protocol, b""),
        "member_assignment": member.assignment,
    }


async def delete(call: Call[DeleteGroups]) -> Answer:
    """Delete groups without members, with their offsets."""
    errors = {name: _forget(call, name) for name in call.request.groups_names}
    allowed = [name for name, error in errors.items() if error is ErrorCode.none]
    async with call.broker.pool.connection() as connection:
        rows = await (await connection.execute(_DELETE_OFFSETS, (_texts(allowed),))).fetchall()
    deleted = {row[0] for row in rows}
    errors |= {name: ErrorCode.group_id_not_found for name in allowed if name not in deleted}
    return {"results": [{"group_id": name, "error_code": error} for name, error in errors.items()]}


def _texts(names: list[str]) -> list[str]:
    """The names that PostgreSQL's text can hold: no group with a NUL has offsets."""
    return [name for name in names if "\0" not in name]


def _forget(call: Call[DeleteGroups], name: str) -> ErrorCode:
    """Forget a group; the error if it may not be deleted."""
    if not call.may_group(Operation.DELETE, name):
        return ErrorCode.group_authorization_failed
    try:
        call.broker.groups.delete(name)
    except GroupError as error:
        return ErrorCode[str(error)]
    return ErrorCode.none
