"""A group coordinator with a clock and ids of the test."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.broker.groups import Coordinator
from tailrace.broker.membership import GroupError, Member, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tailrace.broker.membership import Group, JoinResult

GROUP = "g"
SESSION_S, REBALANCE_S = 10.0, 30.0
RANGE, STICKY = ("range", b"r"), ("sticky", b"s")


class Bench:
    """A coordinator with a clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._ids = Counter[str]()
        self.groups = Coordinator(clock=lambda: self.now, new_suffix=self._suffix)

    def _suffix(self) -> str:
        self._ids["id"] += 1
        return str(self._ids["id"])

    @property
    def group(self) -> Group:
        group = self.groups.find(GROUP)
        assert group is not None
        return group

    async def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (RANGE,),
        protocol_type: str = "consumer",
        group: str = GROUP,
        session_s: float = SESSION_S,
        require_member_id: bool = False,
        can_skip_assignment: bool = True,
    ) -> JoinResult:
        member = Member(
            id=member_id,
            instance=instance,
            client="client",
            host="127.0.0.1",
            session_s=session_s,
            rebalance_s=REBALANCE_S,
            protocol_type=protocol_type,
            protocols=protocols,
        )
        return await self.groups.join(
            group,
            member,
            require_member_id=require_member_id,
            can_skip_assignment=can_skip_assignment,
        )

    async def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes], **given: Any
    ) -> bytes:
        values: dict[str, Any] = {"instance": None, "protocol_type": None, "protocol": None}
        return await self.groups.sync(GROUP, generation, member_id, assignments, **(values | given))

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> None:
        self.groups.heartbeat(GROUP, generation, member_id, instance=instance)

    def commit(self, member_id: str, generation: int, instance: str | None = None) -> None:
        self.groups.check_commit(GROUP, generation, member_id, instance=instance)

    async def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a request until it waits."""
        task = asyncio.create_task(coroutine)
        await asyncio.sleep(0)
        return task

    async def stable(self, *instances: str | None) -> list[JoinResult]:
        """A group with one member per instance, the first of them the leader."""
        joined = [await self.join(instance=instances[0])]
        for instance in instances[1:]:
            task = await self.start(self.join(instance=instance))
            again = [
                await self.start(self.join(one.member, instance=name))
                for one, name in zip(joined, instances, strict=False)
            ]
            joined = [*(await asyncio.gather(*again)), await task]
        assignments = {one.member: b"share of " + one.member.encode() for one in joined}
        tasks = [
            await self.start(
                self.sync(one.member, one.generation, assignments if one.members else {})
            )
            for one in reversed(joined)
        ]
        await asyncio.gather(*tasks)
        assert self.group.state is State.STABLE
        return joined


def scenario(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs in an event loop with a new bench."""

    def run() -> None:
        async def work() -> None:
            await test(Bench())

        asyncio.run(work())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


async def failing(awaitable: Awaitable[Any]) -> str:
    with pytest.raises(GroupError) as caught:
        await awaitable
    return str(caught.value)


def refused(call: Callable[..., None], *arguments: Any, **given: Any) -> str:
    with pytest.raises(GroupError) as caught:
        call(*arguments, **given)
    return str(caught.value)
