"""What the memberships of both group protocols have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trimtab.kafka.wire.sentinels import NO_EPOCH


class GroupIdentity(NamedTuple):
    """Who commits: the member, and the generation (classic) or the member epoch (KIP-848).

    Generation -1 is no member's: such a commit is accepted while the group has no members.
    """

    generation: int = NO_EPOCH
    member_id: str = ""


NO_MEMBER = GroupIdentity()


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """A member's options. Times are in seconds.

    Attributes:
        instance_id: the name of a static member, which keeps its partitions when it restarts
            (KIP-345); None for a dynamic one.
        session: a member that is silent for this long is removed (classic protocol).
        heartbeat: between heartbeats (classic protocol; the coordinator decides with KIP-848).
        poll_interval: the application polls at least this often, or loses its partitions
            (KIP-62). Also how long a rebalance waits for it.
        server_assignor: of KIP-848; None for the coordinator's first.
    """

    group_id: str
    instance_id: str | None
    session: float
    heartbeat: float
    poll_interval: float
    rack: str | None
    server_assignor: str | None


class Membership(Protocol):
    """A consumer's membership in its group, as one of the two protocols keeps it.

    Attributes:
        identity: for commits.
    """

    identity: GroupIdentity

    def subscribe(self, topics: frozenset[str]) -> None:
        """The topics to read have changed."""

    async def run(self) -> None:
        """Join, heartbeat and rejoin until cancelled, or until an error that cannot pass."""

    async def leave(self, reason: str) -> None:
        """End the membership, so that the group need not wait for its time-out."""
