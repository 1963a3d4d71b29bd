"""Decisions about registrations, heartbeats and shutdowns: response and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from trimtab.cluster.controller.broker_states import (
    Progress,
    decide_heartbeat,
    decide_registration,
    decide_unregistration,
    fence,
    is_current,
)
from trimtab.cluster.metadata.features import METADATA_VERSION
from trimtab.kafka.errors import ErrorCode
from trimtab.kafka.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from trimtab.kafka.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from trimtab.kafka.wire.messages.metadata_records import FeatureLevelRecord
from trimtab.kafka.wire.messages.unregister_broker import UnregisterBrokerRequest
from trimtab.kafka.wire.sentinels import NO_LEADER

NEXT_OFFSET = 500


@pytest.fixture
def scene(scene: Any) -> Any:
    """Topic `t`: 1 leads, with 1 and 2 in sync where two must be, so that 3 is not needed."""
    scene.put_topic(
        "t", scene.partition(0, 1, (1, 2)), scene.partition(1, 2, (2,)), min_insync_replicas="2"
    )
    return scene


# Registration


def register(
    scene: Any,
    number: int = 1,
    incarnation: bytes = b"n" * 16,
    previous: int = -1,
    cluster: str = "lab",
    is_connected: bool = False,
    **changed: Any,
) -> BrokerRegistrationResponse:
    request = BrokerRegistrationRequest(
        broker_id=number,
        cluster_id=cluster,
        incarnation_id=incarnation,
        listeners=[Listener(name="PLAINTEXT", host="new", port=1234, security_protocol=0)],
        rack="r",
        log_dirs=[b"d" * 16],
        previous_broker_epoch=previous,
    )
    for name, value in changed.items():
        setattr(request, name, value)
    response = scene.apply(
        decide_registration(scene.image, scene.rules, request, "lab", NEXT_OFFSET, is_connected)
    )
    assert isinstance(response, BrokerRegistrationResponse)
    return response


def test_a_new_broker_begins_fenced_with_its_records_offset_as_epoch(scene: Any) -> None:
    assert register(scene, 4).broker_epoch == NEXT_OFFSET
    broker = scene.image.brokers[4]
    assert (broker.epoch, broker.fenced, broker.host, broker.port) == (500, True, "new", 1234)
    assert (broker.rack, broker.log_dirs) == ("r", (b"d" * 16,))
    assert scene.brief("t") == {0: (1, (1, 2), ()), 1: (2, (2,), ())}


@pytest.mark.kip(966)
@pytest.mark.parametrize(
    ("previous", "elr"), [(101, (1,)), (-1, ()), (100, ())], ids=["clean", "not", "another's"]
)
def test_a_new_incarnation_leaves_the_isrs_and_stays_eligible_after_a_clean_end(
    scene: Any, previous: int, elr: tuple[int, ...]
) -> None:
    # The records that take it out of ISRs come before its own.
    assert register(scene, 1, previous=previous).broker_epoch == NEXT_OFFSET + 1
    assert scene.brief("t")[0] == (2, (2,), elr)
    assert scene.image.brokers[1].fenced


def test_the_same_incarnation_keeps_its_epoch_and_place(scene: Any) -> None:
    response = register(scene, 1, incarnation=b"\1" * 16, is_connected=True)
    assert response.broker_epoch == 101
    broker = scene.image.brokers[1]
    assert (broker.epoch, broker.fenced, broker.host) == (101, False, "new")
    assert scene.brief("t")[0] == (1, (1, 2), ())


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"cluster": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"is_connected": True}, ErrorCode.DUPLICATE_BROKER_REGISTRATION),
        ({"listeners": []}, ErrorCode.INVALID_REGISTRATION),
        ({"broker_id": -1}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [b"d" * 16] * 1001}, ErrorCode.INVALID_REGISTRATION),
    ],
)
def test_registrations_that_are_refused(
    scene: Any, changed: dict[str, Any], code: ErrorCode
) -> None:
    response = register(scene, 1, **changed)
    assert (response.error_code, response.broker_epoch) == (code, -1)
    assert scene.image.brokers[1].epoch == 101


def test_a_broker_must_support_the_features_in_force(scene: Any) -> None:
    scene.image.replay(FeatureLevelRecord(name=METADATA_VERSION, feature_level=25))
    for low, high, code in [(7, 25, 0), (1, 24, ErrorCode.UNSUPPORTED_VERSION)]:
        feature = Feature(
            name=METADATA_VERSION, min_supported_version=low, max_supported_version=high
        )
        other = Feature(name="x", min_supported_version=5, max_supported_version=6)
        assert register(scene, 4, features=[feature, other]).error_code == code


# Heartbeats


def beat(
    scene: Any,
    number: int = 1,
    epoch: int | None = None,
    offset: int = NEXT_OFFSET,
    fence: bool = False,
    end: bool = False,
    offline: Sequence[bytes] = (),
    progress: Progress = Progress(0, 0),  # noqa: B008
) -> BrokerHeartbeatResponse:
    request = BrokerHeartbeatRequest(
        broker_id=number,
        broker_epoch=100 + number if epoch is None else epoch,
        current_metadata_offset=offset,
        want_fence=fence,
        want_shut_down=end,
        offline_log_dirs=list(offline),
    )
    response = scene.apply(decide_heartbeat(scene.image, scene.rules, request, progress))
    assert isinstance(response, BrokerHeartbeatResponse)
    return response


def state(response: BrokerHeartbeatResponse) -> tuple[bool, bool, bool]:
    return response.is_caught_up, response.is_fenced, response.should_shut_down


def test_a_broker_is_unfenced_once_it_has_seen_its_registration(scene: Any) -> None:
    scene.put_broker(1, fenced=True)
    assert state(beat(scene, offset=100)) == (False, True, False)
    assert state(beat(scene, offset=101, fence=True)) == (True, True, False)
    assert state(beat(scene, offset=101)) == (True, False, False)
    assert scene.image.brokers[1].is_active
    assert state(beat(scene, offset=101)) == (True, False, False)


def test_an_unfenced_broker_leads_partitions_that_waited_for_it(scene: Any) -> None:
    scene.apply(fence(scene.image, scene.rules, scene.image.brokers[2]))
    scene.apply(fence(scene.image, scene.rules, scene.image.brokers[1]))
    assert scene.brief("t") == {0: (NO_LEADER, (), (1, 2)), 1: (NO_LEADER, (), (2,))}
    beat(scene, 2)
    assert scene.brief("t") == {0: (2, (2,), (1,)), 1: (2, (2,), ())}


@pytest.mark.parametrize(("number", "epoch"), [(1, 100), (1, 102), (1, -1), (9, 109)])
def test_a_stale_epoch_is_refused(scene: Any, number: int, epoch: int) -> None:
    assert beat(scene, number, epoch).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert not is_current(scene.image, number, epoch)
    assert is_current(scene.image, 1, 101)


def test_a_broker_may_ask_for_its_fence(scene: Any) -> None:
    assert state(beat(scene, fence=True)) == (True, True, False)
    assert scene.image.brokers[1].fenced
    assert scene.brief("t")[0] == (2, (2,), (1,))


@pytest.mark.kip(858)
def test_a_broker_whose_directory_is_offline_is_fenced_and_not_eligible(scene: Any) -> None:
    scene.put_broker(1, log_dirs=(b"d" * 16,))
    assert state(beat(scene, offline=[b"e" * 16])) == (True, False, False)
    for wanted in (True, False):
        assert state(beat(scene, fence=wanted, offline=[b"d" * 16])) == (True, True, False)
        assert scene.image.brokers[1].fenced
        assert scene.brief("t")[0] == (2, (2,), ())


def test_a_broker_that_leads_nothing_may_end_at_once(scene: Any) -> None:
    assert state(beat(scene, 3, end=True)) == (True, True, True)
    assert scene.image.brokers[3].fenced
    assert not scene.image.brokers[3].in_controlled_shutdown


@pytest.mark.parametrize("fenced", [True, False])
def test_a_broker_may_ask_for_fence_and_shutdown_at_once(scene: Any, fenced: bool) -> None:
    scene.put_broker(1, fenced=fenced)
    assert state(beat(scene, 1, fence=True, end=True)) == (True, True, True)
    assert scene.image.brokers[1].fenced


def test_a_fenced_broker_may_end_at_once(scene: Any) -> None:
    scene.put_broker(1, fenced=True)
    assert state(beat(scene, 1, end=True)) == (True, True, True)


@pytest.mark.kip(841)
def test_a_broker_may_shut_down_when_the_new_leaders_have_replayed_it(scene: Any) -> None:
    assert state(beat(scene, end=True)) == (True, False, False)
    broker = scene.image.brokers[1]
    assert (broker.fenced, broker.in_controlled_shutdown) == (False, True)
    assert scene.brief("t")[0] == (2, (2,), (1,))
    assert state(beat(scene, end=True, progress=Progress(503, 502))) == (True, False, False)
    assert state(beat(scene, end=True, progress=Progress(503, 503))) == (True, True, True)
    assert scene.image.brokers[1].fenced
    assert scene.brief("t")[0] == (2, (2,), (1,))


def test_a_broker_may_shut_down_although_no_other_can_lead(scene: Any) -> None:
    beat(scene, 2, end=True)
    assert scene.brief("t") == {0: (1, (1,), (2,)), 1: (NO_LEADER, (), (2,))}
    assert state(beat(scene, 2, end=True, progress=Progress(9, 9))) == (True, True, True)


# Unregistration


def test_a_broker_without_session_is_fenced(scene: Any) -> None:
    scene.apply(fence(scene.image, scene.rules, scene.image.brokers[1]))
    assert scene.image.brokers[1].fenced
    assert scene.brief("t")[0] == (2, (2,), (1,))


def test_an_unregistered_broker_is_in_no_isr_and_elr(scene: Any) -> None:
    scene.apply(fence(scene.image, scene.rules, scene.image.brokers[1]))
    request = UnregisterBrokerRequest(broker_id=1)
    response = scene.apply(decide_unregistration(scene.image, scene.rules, request))
    assert (response.error_code, response.error_message) == (0, None)
    assert 1 not in scene.image.brokers
    assert scene.brief("t")[0] == (2, (2,), ())
    response = scene.apply(decide_unregistration(scene.image, scene.rules, request))
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
