"""Members of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker.auth.access import Operation
from tailrace.broker.groups import GroupError, Member, MemberIdError, State

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.groups import Group

NODE = 1
_GROUP = 0
_STORED = "SELECT DISTINCT group_id FROM kafka.consumer_offsets"


async def find_coordinator(call: Call) -> Answer:
    """It is always us; transactions have none."""
    if getattr(call.request, "key_type", _GROUP) != _GROUP:
        return {
            "error_code": ErrorCode.transactional_id_authorization_failed,
            "error_message": "transactions are not served",
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    if not call.may_group(Operation.DESCRIBE, call.request.key):
        error = ErrorCode.group_authorization_failed
        return {"error_code": error, "error_message": None, "node_id": -1, "host": "", "port": -1}
    return {"error_message": None, "node_id": NODE, "host": call.host, "port": call.port}


async def join(call: Call) -> Answer:
    """Answered when all members are there."""
    request = call.request
    session_s = request.session_timeout.total_seconds()
    rebalance = getattr(request, "rebalance_timeout", request.session_timeout).total_seconds()
    member = Member(
        id=request.member_id,
        instance=getattr(request, "group_instance_id", None),
        client=call.client,
        host=call.peer,
        session_s=session_s,
        rebalance_s=rebalance if rebalance > 0 else session_s,
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
    )
    failed = {"generation_id": -1, "protocol_name": "", "leader": "", "members": ()}
    try:
        _check(call)
        joined = await call.broker.groups.join(
            request.group_id, member, known_ids=call.version >= 4, may_rest=call.version >= 9
        )
    except MemberIdError as error:
        return failed | {"error_code": ErrorCode.member_id_required, "member_id": error.member}
    except GroupError as error:
        return failed | {"error_code": ErrorCode[str(error)], "member_id": request.member_id}
    return {
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol,
        "leader": joined.leader,
        "skip_assignment": joined.settled,
        "member_id": joined.member,
        "members": [
            {"member_id": name, "group_instance_id": instance, "metadata": metadata}
            for name, instance, metadata in joined.members
        ],
    }


async def sync(call: Call) -> Answer:
    """Answered when the leader has divided the partitions."""
    request = call.request
    shares = {each.member_id: bytes(each.assignment) for each in request.assignments}
    try:
        _check(call)
        share = await call.broker.groups.sync(
            request.group_id, request.generation_id, request.member_id, shares,
            instance=getattr(request, "group_instance_id", None),
            protocol_type=getattr(request, "protocol_type", None),
            protocol=getattr(request, "protocol_name", None),
        )  # fmt: skip
    except GroupError as error:
        return {"error_code": ErrorCode[str(error)], "assignment": b""}
    group = call.broker.groups.find(request.group_id)
    assert group is not None
    return {
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": share,
    }


async def heartbeat(call: Call) -> Answer:
    """Whether the member is still one."""
    request = call.request
    try:
        _check(call)
        call.broker.groups.heartbeat(
            request.group_id, request.generation_id, request.member_id,
            instance=getattr(request, "group_instance_id", None),
        )  # fmt: skip
    except GroupError as error:
        return {"error_code": ErrorCode[str(error)]}
    return {}


async def leave(call: Call) -> Answer:
    """One member, or several in later versions."""
    request = call.request
    if not call.may_group(Operation.READ, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "members": ()}
    if hasattr(request, "member_id"):
        return {"error_code": _leave(call, request.member_id, None)}
    return {
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.group_instance_id,
                "error_code": _leave(call, each.member_id, each.group_instance_id),
            }
            for each in request.members
        ]
    }


def _check(call: Call) -> None:
    """An error unless the user may be a member."""
    if not call.may_group(Operation.READ, call.request.group_id):
        raise GroupError("group_authorization_failed")


def _leave(call: Call, member: str, instance: str | None) -> ErrorCode:
    try:
        call.broker.groups.leave(call.request.group_id, member, instance=instance)
    except GroupError as error:
        return ErrorCode[str(error)]
    return ErrorCode.none


async def list_groups(call: Call) -> Answer:
    """Those with members, and those with committed offsets."""
    found = {group.id: group for group in call.broker.groups.all()}
    async with call.broker.pool.connection() as connection:
        rows = await (await connection.execute(_STORED)).fetchall()
    states = getattr(call.request, "states_filter", ())
    all_of_them = call.may_cluster(Operation.DESCRIBE)
    listed = []
    for name in sorted({*found, *(row[0] for row in rows)}):
        if not all_of_them and not call.may_group(Operation.DESCRIBE, name):
            continue
        group = found.get(name)
        state = group.state.value if group is not None else State.EMPTY.value
        if not states or state in states:
            kind = group.protocol_type if group is not None else "consumer"
            listed.append({"group_id": name, "protocol_type": kind, "group_state": state})
    return {"groups": listed}


async def describe(call: Call) -> Answer:
    """Who is in a group, and with which share."""
    return {"groups": [await _described(call, name) for name in call.request.groups]}


async def _described(call: Call, name: str) -> dict[str, Any]:
    if not call.may_group(Operation.DESCRIBE, name):
        return {
            "error_code": ErrorCode.group_authorization_failed,
            "group_id": name,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
        }
    group = call.broker.groups.find(name)
    if group is None:
        async with call.broker.pool.connection() as connection:
            rows = await (await connection.execute(_STORED)).fetchall()
        state = State.EMPTY if name in {row[0] for row in rows} else State.DEAD
        return {
            "group_id": name,
            "group_state": state.value,
            "protocol_type": "consumer" if state is State.EMPTY else "",
            "protocol_data": "",
            "members": (),
        }
    return {
        "group_id": name,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [_member(group, each) for each in group.members.values()],
    }


def _member(group: Group, member: Member) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "group_instance_id": member.instance,
        "client_id": member.client,
        "client_host": f"/{member.host}",
        "member_metadata": dict(member.protocols).get(group.protocol, b""),
        "member_assignment": member.assignment,
    }


async def delete(call: Call) -> Answer:
    """A group without members, and its offsets."""
    results = []
    for name in call.request.groups_names:
        error = ErrorCode.none
        try:
            if not call.may_group(Operation.DELETE, name):
                raise GroupError("group_authorization_failed")
            call.broker.groups.forget(name)
            async with call.broker.pool.connection() as connection:
                query = "DELETE FROM kafka.consumer_offsets WHERE group_id = %s"
                gone = await connection.execute(query, (name,))
            if not gone.rowcount:
                error = ErrorCode.group_id_not_found
        except GroupError as refused:
            error = ErrorCode[str(refused)]
        results.append({"group_id": name, "error_code": error})
    return {"results": results}
