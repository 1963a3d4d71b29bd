"""One member of a classic group: what it has told, and who waits for a response to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.cluster.coordinator.effects import Caller, Now
from trimtab.kafka.wire.messages.group_records import MemberMetadata

_MEMBER_SIZE: Final = 40
"""Bytes of numbers and lengths for each member, at most."""


class Tally:
    """Sums over the members of a group, kept as they change: a request of one member would
    otherwise cost a look at all.

    Attributes:
        size: bytes that a record of the group takes for them, at most, without assignments.
        joining: how many wait for a response to their JoinGroup.
        supporting: how many support each protocol.
    """

    __slots__ = ("joining", "size", "supporting")

    def __init__(self) -> None:
        self.size = self.joining = 0
        self.supporting: dict[str, int] = {}

    def count_member(self, member: ClassicMember) -> None:
        self.size += member.size
        self.joining += member.joining is not None
        for name in member.protocols:
            self.supporting[name] = self.supporting.get(name, 0) + 1

    def uncount_member(self, member: ClassicMember) -> None:
        self.size -= member.size
        self.joining -= member.joining is not None
        for name in member.protocols:
            self.supporting[name] -= 1
            if not self.supporting[name]:
                del self.supporting[name]


class ClassicMember:
    """A member of the group.

    Attributes:
        protocols: by name, its metadata; the preferred one first.
        assignment: in the newest generation.
        deadline: when it is removed unless it is heard of.
        size: bytes that a record of the group takes for it, at most, without its assignment.
        joining, syncing: who waits for a response to its JoinGroup or SyncGroup.
        is_new: whether it waits for its first generation.
    """

    __slots__ = (
        "_joining",
        "_tally",
        "assignment",
        "client_id",
        "deadline",
        "host",
        "id",
        "instance_id",
        "is_new",
        "protocols",
        "rebalance_s",
        "session_s",
        "size",
        "syncing",
    )

    def __init__(self, member_id: str, instance_id: str | None, client_id: str, host: str) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.host = host
        self.session_s = self.rebalance_s = self.deadline = 0.0
        self.protocols: dict[str, bytes] = {}
        self.size = 0
        self.assignment = b""
        self._joining: Caller | None = None
        self.syncing: Caller | None = None
        self.is_new = False
        self._tally: Tally | None = None

    @property
    def joining(self) -> Caller | None:
        return self._joining

    @joining.setter
    def joining(self, caller: Caller | None) -> None:
        if self._tally is not None:
            self._tally.joining += (caller is not None) - (self._joining is not None)
        self._joining = caller

    def enter(self, tally: Tally) -> None:
        """Be counted, from now on, among the members of a group."""
        self._tally = tally
        tally.count_member(self)

    def leave(self) -> None:
        """Be counted no more."""
        if self._tally is not None:
            self._tally.uncount_member(self)
            self._tally = None

    def support(self, protocols: dict[str, bytes]) -> None:
        """Take over the protocols that it supports."""
        tally = self._tally
        self.leave()
        self.protocols = protocols
        names = (self.id, self.instance_id or "", self.client_id, self.host)
        self.size = measure_member(names, protocols.values())
        if tally is not None:
            self.enter(tally)

    @property
    def memory(self) -> int:
        """Bytes of what it has told and was given."""
        return sum(map(len, self.protocols.values())) + len(self.assignment)

    @classmethod
    def read(cls, record: MemberMetadata, protocol: str) -> ClassicMember:
        """The member that a record of its group tells of; it supports the group's protocol."""
        member = cls(
            record.member_id, record.group_instance_id, record.client_id, record.client_host
        )
        timeout = record.rebalance_timeout
        member.session_s = record.session_timeout / 1000
        member.rebalance_s = (timeout if timeout >= 0 else record.session_timeout) / 1000
        member.support({protocol: record.subscription})
        member.assignment = record.assignment
        return member

    def write(self, protocol: str) -> MemberMetadata:
        """The member as a record of its group has it, with its metadata for the protocol."""
        return MemberMetadata(
            member_id=self.id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.host,
            rebalance_timeout=round(self.rebalance_s * 1000),
            session_timeout=round(self.session_s * 1000),
            subscription=self.protocols[protocol],
            assignment=self.assignment,
        )

    def is_over(self, now: Now) -> bool:
        """Whether its session has ended. While it waits for the group it need send nothing."""
        waits = self.syncing is not None or (self.joining is not None and not self.is_new)
        return not waits and self.deadline <= now.s


def measure_member(names: Iterable[str], metadata: Iterable[bytes]) -> int:
    """Bytes that a record of the group takes for a member, at most, without its assignment.

    Args:
        names: its id and instance id, its client's id and host.
        metadata: of each protocol that it supports.
    """
    names_size = sum(len(each.encode()) for each in names)
    return _MEMBER_SIZE + names_size + max(map(len, metadata), default=0)
