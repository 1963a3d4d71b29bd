"""One classic group: its members, and how they come to a generation with an assignment.

    Empty ──join──▶ Preparing ──all have joined──▶ Completing ──leader syncs──▶ Stable
      ▲                 │ ▲                            │                           │
      └─ nobody is left ┘ └── a member joins or leaves ┴───────────────────────────┘

Requests of JoinGroup and SyncGroup wait in their member until the group is ready for a response.
The class decides, without clocks or I/O of its own.

Source: Kafka's `ClassicGroup` and `GroupMetadataManager`; KIP-62 (rebalance timeout), KIP-134
(initial delay), KIP-345 and KIP-814 (static members), KIP-394 (member ids).

Long because requests, deadlines and the end of a rebalance all move the same members through
the same phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple

from trimtab.cluster.coordinator.classic_member import ClassicMember, Tally, measure_member
from trimtab.cluster.coordinator.effects import Caller, Effects, Now, RecordTooLarge
from trimtab.cluster.coordinator.timers import Timers
from trimtab.kafka.errors import CorruptData, ErrorCode
from trimtab.kafka.wire.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_embedded,
)
from trimtab.kafka.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from trimtab.kafka.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
)
from trimtab.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from trimtab.kafka.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from trimtab.kafka.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from trimtab.kafka.wire.sentinels import NO_EPOCH, NO_TIMESTAMP

NOBODY: Final = ""
"""The member id of a client that has none yet, and in responses that name nobody."""

_NEW_MEMBER_S: Final = 300.0
"""How long a new member may wait for the end of its first rebalance."""
IDS_SINCE: Final = 4
"""The version of JoinGroup from which on a member joins with an id that it was given (KIP-394)."""
_NULL_NAMES_SINCE: Final = 7
_SKIPPING_SINCE: Final = 9
"""The version of JoinGroup whose leader can be told that the assignment stays (KIP-814)."""


_GROUP_SIZE: Final = 150
"""Bytes of a batch with a group, beside its names and its members, at most."""
_ID_SUFFIX: Final = "-" + 36 * "0"


class Rules(NamedTuple):
    """Options of the cluster for its groups; times in seconds."""

    min_session_s: float
    max_session_s: float
    initial_delay_s: float
    max_size: int


class Phase(StrEnum):
    """The state of a classic group, as DescribeGroups names it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup:
    """One group.

    Args:
        timers: asks for `look` at a deadline, by group id and member id; "" for the group's own.
        new_id: makes the part of a member's id that tells it from others.

    Attributes:
        members: by id, in the order in which they joined.
        leader: its member id; None without members.
        since_ms: when it came into its phase, wall clock.
    """

    def __init__(
        self,
        group_id: str,
        rules: Rules,
        effects: Effects,
        timers: Timers[tuple[str, str]],
        new_id: Callable[[], str],
    ) -> None:
        self.id = group_id
        self.phase = Phase.EMPTY
        self.since_ms = NO_TIMESTAMP
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self._tally = Tally()
        self._rules = rules
        self._effects = effects
        self._timers = timers
        self._new_id = new_id
        self._static: dict[str, str] = {}
        self._logged: GroupMetadataValue | None = None
        """The group's last record."""
        self._expected: dict[str, float] = {}
        """Ids that were given, and until when their members may join with them."""
        self._unsynced: set[str] = set()
        self._due = float("inf")
        """When joining, or after it synchronizing, ends without those that are missing."""
        self._initial_end: float | None = None
        """Until when the first rebalance may wait for more members; None if it does not."""
        self._has_grown = False

    # Joining

    def join(self, now: Now, caller: Caller, request: JoinGroupRequest) -> None:
        """Take a member into the next generation. The request has been checked on its own."""
        code, member_id = self._check_join(caller, request)
        if code is not ErrorCode.NONE:
            self._refuse_join(caller, code, member_id)
        elif request.member_id == NOBODY:
            self._join_without_id(now, caller, request)
        elif request.member_id in self._expected:
            del self._expected[request.member_id]
            self._add(now, caller, request, request.member_id)
        else:
            self._join_again(now, caller, request, self.members[request.member_id])

    def _check_join(self, caller: Caller, request: JoinGroupRequest) -> tuple[ErrorCode, str]:
        member_id = request.member_id
        if not self._has_room(member_id):
            return ErrorCode.GROUP_MAX_SIZE_REACHED, NOBODY
        if not self._supports(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id
        if not self._fits(caller, request):
            return ErrorCode.UNKNOWN_SERVER_ERROR, member_id
        is_expected = member_id in self._expected and request.group_instance_id is None
        if member_id == NOBODY or is_expected:
            return ErrorCode.NONE, member_id
        return self._check_member(member_id, request.group_instance_id), member_id

    def _has_room(self, member_id: str) -> bool:
        if self.phase is Phase.EMPTY:
            return True
        member = self.members.get(member_id)
        if self.phase is Phase.PREPARING:
            is_waiting = member is not None and member.joining is not None
            return is_waiting or self._tally.joining < self._rules.max_size
        return member is not None or len(self.members) < self._rules.max_size

    def _supports(self, request: JoinGroupRequest) -> bool:
        """Whether the request names a protocol that all members know."""
        if not self.members:
            return bool(request.protocol_type and request.protocols)
        return self.protocol_type == request.protocol_type and any(
            self._tally.supporting.get(each.name) == len(self.members) for each in request.protocols
        )

    def _fits(self, caller: Caller, request: JoinGroupRequest) -> bool:
        """Whether a record can hold the group with this member. Kafka finds out only when the
        leader sends the assignments, and then refuses all members."""
        member_id = request.member_id or self._static.get(request.group_instance_id or "", NOBODY)
        names = (
            f"{request.group_instance_id or caller.client_id}{_ID_SUFFIX}",
            request.group_instance_id or "",
            caller.client_id,
            caller.host,
        )
        size = measure_member(names, (each.metadata for each in request.protocols))
        known = self.members.get(member_id)
        size += self._tally.size - (0 if known is None else known.size)
        common = [self.id, request.protocol_type, self.leader or names[0]]
        longest = max((each.name for each in request.protocols), key=len, default="")
        size += _GROUP_SIZE + measure_member([*common, longest], ())
        most = self._effects.max_batch()
        if size <= most:
            return True
        self._effects.warnings.append(
            f"group={self.id!r} a member was refused: with it the group's record has {size} bytes, "
            f"but max.message.bytes of the groups' topic is {most}."
        )
        return False

    def _join_without_id(self, now: Now, caller: Caller, request: JoinGroupRequest) -> None:
        instance_id = request.group_instance_id
        member_id = f"{caller.client_id if instance_id is None else instance_id}-{self._new_id()}"
        if instance_id is not None:
            old = self._static.get(instance_id)
            if old is None:
                self._add(now, caller, request, member_id)
            else:
                self._replace(now, caller, request, self.members[old], member_id)
        elif caller.version >= IDS_SINCE:
            self._expected[member_id] = now.s + request.session_timeout_ms / 1000
            self._timers.set((self.id, member_id), self._expected[member_id])
            self._refuse_join(caller, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(now, caller, request, member_id)

    def _add(self, now: Now, caller: Caller, request: JoinGroupRequest, member_id: str) -> None:
        member = ClassicMember(member_id, request.group_instance_id, caller.client_id, caller.host)
        member.is_new = True
        self.members[member_id] = member
        member.enter(self._tally)
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id
            self._write_new_id(member.instance_id, member_id)
        if len(self.members) == 1:
            self.protocol_type = request.protocol_type
        if self.leader is None:
            self.leader = member_id
        self._has_grown = True
        self._wait_for_generation(member, caller, request)
        self._give_time(member, now, _NEW_MEMBER_S)
        self._rebalance(now)

    def _join_again(
        self, now: Now, caller: Caller, request: JoinGroupRequest, member: ClassicMember
    ) -> None:
        """A known member joins. If nothing has changed it gets the generation that there is.

        A leader that joins again in a stable group asks for a new assignment.
        """
        is_same = list(member.protocols.items()) == [
            (protocol.name, protocol.metadata) for protocol in request.protocols
        ]
        asks_for_more = self.phase is Phase.STABLE and member.id == self.leader
        if self.phase is Phase.PREPARING or not is_same or asks_for_more:
            self._wait_for_generation(member, caller, request)
            self._rebalance(now)
        else:
            self._give_time(member, now, member.session_s)
            self._effects.respond(caller, self._describe_generation(caller, member))

    def _replace(
        self,
        now: Now,
        caller: Caller,
        request: JoinGroupRequest,
        old: ClassicMember,
        member_id: str,
    ) -> None:
        """A static member comes back: it gets a new id, and the old id is fenced."""
        self._refuse_waiting(old, ErrorCode.FENCED_INSTANCE_ID)
        leader_before = self.leader
        self.members = {
            (member_id if member.id == old.id else member.id): member
            for member in self.members.values()
        }
        self._static[request.group_instance_id or ""] = member_id
        if self.leader == old.id:
            self.leader = member_id
        if old.id in self._unsynced:
            self._unsynced.remove(old.id)
            self._unsynced.add(member_id)
        old.id = member_id
        old.client_id, old.host = caller.client_id, caller.host
        known = old.protocols
        self._wait_for_generation(old, caller, request)
        self._give_time(old, now, old.session_s)
        if (
            self.phase is not Phase.STABLE
            or self._choose_protocol() != self.protocol
            or known.get(self.protocol or "") != old.protocols.get(self.protocol or "")
        ):
            self._write_new_id(request.group_instance_id, member_id)
            self._rebalance(now)
            return
        caller_before, old.joining = old.joining, None
        try:
            self._write(now)
        except RecordTooLarge:  # without the assignments there is room
            old.joining = caller_before
            self._rebalance(now)
            return
        response = self._describe_generation(caller, old)
        if member_id == self.leader:
            if caller.version >= _SKIPPING_SINCE:
                response.skip_assignment = True
            else:  # as a follower it gives no assignment
                response.leader, response.members = leader_before or NOBODY, []
        self._effects.respond(caller, response)

    def _wait_for_generation(
        self, member: ClassicMember, caller: Caller, request: JoinGroupRequest
    ) -> None:
        if member.joining is not None:  # a later request of the same member replaces it
            self._refuse_join(member.joining, ErrorCode.UNKNOWN_MEMBER_ID, member.id)
        member.joining = caller
        member.session_s = request.session_timeout_ms / 1000
        timeout = request.rebalance_timeout_ms
        member.rebalance_s = (timeout if timeout >= 0 else request.session_timeout_ms) / 1000
        member.support({each.name: each.metadata for each in request.protocols})

    # Rebalancing

    def _rebalance(self, now: Now) -> None:
        """Ask all members to join again, and go on if they have."""
        if self.phase is Phase.PREPARING:
            self._go_on_if_complete(now)
            return
        if self.phase is Phase.COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                self._refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self._unsynced.clear()
        longest = self._longest_rebalance_s()
        delay = min(self._rules.initial_delay_s, longest)
        waits = self.phase is Phase.EMPTY and delay > 0
        self._initial_end = now.s + longest if waits else None
        self._has_grown = False
        self._enter(Phase.PREPARING, now)
        self._set_due(now.s + (delay if waits else longest))
        self._go_on_if_complete(now)

    def _go_on_if_complete(self, now: Now) -> None:
        have_joined = self._tally.joining == len(self.members)
        if self._initial_end is None and have_joined and not self._expected:
            self._begin_generation(now)

    def _end_joining(self, now: Now) -> None:
        """The time to join is over."""
        if self._initial_end is not None and self._has_grown and now.s < self._initial_end:
            self._has_grown = False
            self._set_due(min(now.s + self._rules.initial_delay_s, self._initial_end))
            return
        self._initial_end = None
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._forget(member)
        if self.members and not any(each.joining for each in self.members.values()):
            self._set_due(now.s + self._longest_rebalance_s())  # static members have longer
            return
        self._begin_generation(now)

    def _begin_generation(self, now: Now) -> None:
        self.generation = self.generation + 1 if self.generation < 2**31 - 1 else 1
        if not self.members:
            self.protocol = self.leader = None
            self._due = float("inf")
            self._enter(Phase.EMPTY, now)
            self._write(now)
            return
        if self.leader is None or self.members[self.leader].joining is None:
            self.leader = next(each.id for each in self.members.values() if each.joining)
        self.protocol = self._choose_protocol()
        self._unsynced = set(self.members)
        self._enter(Phase.COMPLETING, now)
        self._set_due(now.s + self._longest_rebalance_s())
        for member in self.members.values():
            caller, member.joining = member.joining, None
            member.is_new = False
            self._give_time(member, now, member.session_s)
            if caller is not None:
                self._effects.respond(caller, self._describe_generation(caller, member))

    def _choose_protocol(self) -> str:
        return choose_protocol([list(each.protocols) for each in self.members.values()])

    def _longest_rebalance_s(self) -> float:
        return max((each.rebalance_s for each in self.members.values()), default=0.0)

    def refuse_all_waiting(self, code: ErrorCode) -> None:
        """Answer all requests that wait for the group with this code."""
        for member in self.members.values():
            self._refuse_waiting(member, code)

    def rebalance(self, now: Now, protocols: Mapping[str, dict[str, bytes]]) -> None:
        """Ask all members to join again, after another kind of group became this one.

        Args:
            protocols: what each member supports, by its id.
        """
        for member_id, supported in protocols.items():
            self.members[member_id].support(supported)
        self.resume(now)
        self._rebalance(now)

    # Synchronizing

    def sync(
        self, now: Now, caller: Caller, request: SyncGroupRequest, given: Mapping[str, bytes]
    ) -> None:
        """Give a member its assignment, at once or when the leader has given all.

        Args:
            given: the request's assignments by member id.
        """
        code = self._check_current(
            request.member_id, request.group_instance_id, request.generation_id
        )
        if code is ErrorCode.NONE:
            names = (
                (request.protocol_type, self.protocol_type),
                (
                    request.protocol_name,
                    self.protocol,
                ),
            )
            if any(given not in (None, known) for given, known in names):
                code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            elif self.phase is Phase.PREPARING:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        if code is not ErrorCode.NONE:
            self._respond_sync(caller, code, b"")
            return
        member = self.members[request.member_id]
        is_leader = self.phase is not Phase.STABLE and member.id == self.leader
        if is_leader and not self._take_assignments(now, given):
            self._respond_sync(caller, ErrorCode.UNKNOWN_SERVER_ERROR, b"")
            return
        self._unsynced.discard(member.id)
        if self.phase is Phase.STABLE and not is_leader:
            self._give_time(member, now, member.session_s)
            self._respond_sync(caller, ErrorCode.NONE, member.assignment)
            return
        self._refuse_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)  # of an earlier request of it
        member.syncing = caller
        if is_leader:
            for group_member in self.members.values():
                if group_member.syncing is not None:
                    self._give_time(group_member, now, group_member.session_s)
                    self._respond_sync(
                        group_member.syncing, ErrorCode.NONE, group_member.assignment
                    )
                    group_member.syncing = None

    def _take_assignments(self, now: Now, given: Mapping[str, bytes]) -> bool:
        """Write the generation; whether a record has room for it. If not, nothing changes."""
        before = [each.assignment for each in self.members.values()]
        for each in self.members.values():
            each.assignment = bytes(given.get(each.id, b""))
        try:
            self._write(now)
        except RecordTooLarge as error:
            for each, assignment in zip(self.members.values(), before, strict=True):
                each.assignment = assignment
            self._effects.warnings.append(f"group={self.id!r} {error.message}")
            return False
        self._enter(Phase.STABLE, now)
        return True

    # Staying and leaving

    def heartbeat(self, now: Now, caller: Caller, request: HeartbeatRequest) -> None:
        """Note that a member lives, and tell it whether it must join again."""
        code = self._check_current(
            request.member_id, request.group_instance_id, request.generation_id
        )
        if code is ErrorCode.NONE:
            member = self.members[request.member_id]
            self._give_time(member, now, member.session_s)
            if self.phase is Phase.PREPARING:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        self._effects.respond(caller, HeartbeatResponse(throttle_time_ms=0, error_code=code))

    def leave(self, now: Now, identities: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members, each by its id or, if it has one, by its instance id."""
        codes, is_smaller = [], False
        for member_id, instance_id in identities:
            if instance_id is None and member_id in self._expected:
                del self._expected[member_id]
                codes.append(ErrorCode.NONE)
                continue
            if instance_id is not None and member_id == NOBODY:
                member_id = self._static.get(instance_id, NOBODY)
            code = self._check_member(member_id, instance_id)
            if code is ErrorCode.NONE:
                self._forget(self.members[member_id])
                is_smaller = True
            codes.append(code)
        self._go_on_without(now, is_smaller)
        return codes

    def check_commit(
        self,
        now: Now,
        member_id: str,
        instance_id: str | None,
        generation: int,
        in_transaction: bool = False,
    ) -> ErrorCode:
        """Whether a member may commit offsets; it counts as a heartbeat, unless its producer does
        it in a transaction.

        A client that names no generation may commit while the group has no members.
        """
        if generation < 0 and self.phase is Phase.EMPTY:
            return ErrorCode.NONE
        code = self._check_current(member_id, instance_id, generation)
        if code is ErrorCode.NONE and not in_transaction:
            member = self.members[member_id]
            self._give_time(member, now, member.session_s)
            if self.phase is Phase.COMPLETING:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        return code

    def look(self, now: Now, member_id: str) -> None:
        """End what has lasted too long: a session, or with "" the wait for the missing ones."""
        if member_id == NOBODY:
            self._look_at_rebalance(now)
        elif member_id in self._expected:
            if self._expected[member_id] <= now.s:
                del self._expected[member_id]
                self._go_on_without(now, is_smaller=False)
            else:
                self._timers.set((self.id, member_id), self._expected[member_id])
        elif (member := self.members.get(member_id)) is not None:
            if member.is_over(now):
                self._forget(member)
                self._go_on_without(now, is_smaller=True)
            elif member.deadline > now.s:
                self._timers.set((self.id, member_id), member.deadline)
            else:  # it waits for the group
                self._timers.set((self.id, member_id), now.s + member.session_s / 2)

    def _look_at_rebalance(self, now: Now) -> None:
        if now.s < self._due:
            if self._due < float("inf"):
                self._timers.set((self.id, NOBODY), self._due)
            return
        self._due = float("inf")
        if self.phase is Phase.PREPARING:
            self._end_joining(now)
        elif self._unsynced:
            for member_id in sorted(self._unsynced):
                self._forget(self.members[member_id])
            self._go_on_without(now, is_smaller=True)

    def _go_on_without(self, now: Now, is_smaller: bool) -> None:
        if self.phase is Phase.PREPARING:
            self._go_on_if_complete(now)
        elif is_smaller and self.phase in (Phase.STABLE, Phase.COMPLETING):
            self._rebalance(now)

    def _forget(self, member: ClassicMember) -> None:
        self._refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member.id]
        member.leave()
        self._unsynced.discard(member.id)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    # Checks and responses

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _check_current(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        code = self._check_member(member_id, instance_id)
        if code is ErrorCode.NONE and generation != self.generation:
            code = ErrorCode.ILLEGAL_GENERATION
        return code

    def _describe_generation(self, caller: Caller, member: ClassicMember) -> JoinGroupResponse:
        is_leader = member.id == self.leader
        protocol = self.protocol or ""
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader or NOBODY,
            member_id=member.id,
            members=[
                JoinGroupResponseMember(
                    member_id=group_member.id,
                    group_instance_id=group_member.instance_id,
                    metadata=group_member.protocols[protocol],
                )
                for group_member in self.members.values()
            ]
            if is_leader
            else [],
        )

    def _refuse_waiting(self, member: ClassicMember, code: ErrorCode) -> None:
        if member.joining is not None:
            self._refuse_join(member.joining, code, member.id)
            member.joining = None
        self._refuse_sync(member, code)

    def _refuse_join(self, caller: Caller, code: ErrorCode, member_id: str) -> None:
        self._effects.respond(caller, refuse_join(caller.version, code, member_id))

    def _refuse_sync(self, member: ClassicMember, code: ErrorCode) -> None:
        if member.syncing is not None:
            self._respond_sync(member.syncing, code, b"")
            member.syncing = None

    def _respond_sync(self, caller: Caller, code: ErrorCode, assignment: bytes) -> None:
        is_given = code is ErrorCode.NONE
        response = SyncGroupResponse(
            error_code=code,
            protocol_type=self.protocol_type if is_given else None,
            protocol_name=self.protocol if is_given else None,
            assignment=assignment,
        )
        self._effects.respond(caller, response)

    def describe(self) -> DescribedGroup:
        """The group and its members. What they subscribe to is known while it is stable."""
        is_stable = self.phase is Phase.STABLE
        return DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=self.id,
            group_state=self.phase,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol or "") if is_stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.host,
                    member_metadata=member.protocols[self.protocol or ""] if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in self.members.values()
            ],
        )

    # Time and records

    def _enter(self, phase: Phase, now: Now) -> None:
        self.phase, self.since_ms = phase, now.ms

    def _give_time(self, member: ClassicMember, now: Now, seconds: float) -> None:
        member.deadline = now.s + seconds
        self._timers.set((self.id, member.id), member.deadline)

    def _set_due(self, due: float) -> None:
        self._due = due
        self._timers.set((self.id, NOBODY), due)

    def _write(self, now: Now) -> None:
        """Append the generation with its assignment."""
        protocol = self.protocol or ""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=now.ms,
            members=[each.write(protocol) for each in self.members.values()],
        )
        self._append(value)

    def _write_new_id(self, instance_id: str | None, member_id: str) -> None:
        """Append the last generation with the new id of a static member, if it had another one,
        before the member is told it: the next coordinator, which does not know of a rebalance,
        would fence it otherwise. Kafka's does."""
        logged = self._logged
        if logged is None:
            return
        old = next(
            (each.member_id for each in logged.members if each.group_instance_id == instance_id),
            None,
        )
        if old is None:
            return
        members = [
            replace(member, member_id=member_id if member.member_id == old else member.member_id)
            for member in logged.members
        ]
        leader = member_id if logged.leader == old else logged.leader
        try:
            self._append(replace(logged, leader=leader, members=members))
        except RecordTooLarge as error:
            self._effects.warnings.append(f"group={self.id!r} {error.message}")

    def _append(self, value: GroupMetadataValue) -> None:
        self._effects.append_group_record(GroupMetadataKey(group=self.id), value)
        self._logged = value

    def replay(self, value: GroupMetadataValue) -> None:
        """Become what a record says: the group as its coordinator left it."""
        self._logged = value
        self.phase = Phase.STABLE if value.members else Phase.EMPTY
        self.since_ms = value.current_state_timestamp
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol, self.leader = value.protocol, value.leader
        self.members, self._static, self._tally = {}, {}, Tally()
        for metadata in value.members:
            member = ClassicMember.read(metadata, value.protocol or "")
            self.members[member.id] = member
            member.enter(self._tally)
            if member.instance_id is not None:
                self._static[member.instance_id] = member.id

    def resume(self, now: Now) -> None:
        """After a load, give every member a whole session. A group that was a consumer group until
        then must rebalance first."""
        for member in self.members.values():
            self._give_time(member, now, member.session_s)
        if self.members and self.leader is None:
            self._rebalance(now)

    def subscribed_topics(self) -> set[str] | None:
        """The topics that its members, consumers, subscribe to; None if the metadata of one cannot
        be read.

        Only the part of version 0 is read, as by Kafka: what follows it may have any form.
        """
        topics: set[str] = set()
        for member in self.members.values():
            first = next(iter(member.protocols.values()), b"")
            metadata = member.protocols.get(self.protocol or "", first)
            try:
                topics.update(decode_embedded(ConsumerProtocolSubscription, metadata, 0)[0].topics)
            except CorruptData:
                return None
        return topics

    @property
    def expected(self) -> Collection[str]:
        """The ids that were given to clients which have not joined with them yet."""
        return self._expected.keys()

    @property
    def is_unused(self) -> bool:
        """Whether nothing has come of it: no generation, no member, nobody who was given an id."""
        return self.generation == 0 and not self.members and not self._expected


def choose_protocol(known: Sequence[Sequence[str]]) -> str:
    """The protocol that most members prefer among those that all know.

    Args:
        known: by each member, the preferred one first.
    """
    common = set(known[0]).intersection(*known)
    votes = Counter(next(name for name in names if name in common) for names in known)
    return votes.most_common(1)[0][0]


def refuse_join(version: int, code: ErrorCode, member_id: str) -> JoinGroupResponse:
    """A response without a generation."""
    return JoinGroupResponse(
        error_code=code,
        generation_id=NO_EPOCH,
        protocol_type=None,
        protocol_name=None if version >= _NULL_NAMES_SINCE else "",
        leader=NOBODY,
        member_id=member_id,
        members=[],
    )
