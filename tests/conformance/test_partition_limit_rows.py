"""KIP-578's cases, one by one over the wire, with three other projects' clients.

The rows are those of `tests/unit/cluster/controller/test_partition_limits.py`, which tests the
decisions; here brokers are numbered from 0. A case begins with the given number of replicas of the
topic "old" on each broker, in the order of brokers; each replica is a partition of its own.

Long because it is a table of cases, one by one.
"""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path

import pytest

from lab.benchmarks.jars import find_kafka_jars
from tests.conformance.partition_limit_judges import (
    ConfluentJudge,
    Described,
    JavaJudge,
    JavaProcess,
    Judge,
    KafkaPythonJudge,
    Outcome,
    Topic,
)
from trimtab import Admin, Cluster, ErrorCode, Producer
from trimtab.balance.replica_counts import INTERNAL_TOPICS
from trimtab.cluster.config.node import CONTROLLER_ID
from trimtab.kafka.wire.framing import decode_response, encode_request
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

# kafka-python uses a deprecated API to read its schemas.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.kip(578),
]

PER_BROKER, PER_CLUSTER = "max.broker.partitions", "max.partitions"
NO_LIMIT = 2**63 - 1
DONE = Outcome(ErrorCode.NONE, "")
MOVED_WITHIN_S = 30

Connect = Callable[[str], Judge]


def refuse(what: str) -> Outcome:
    return Outcome(ErrorCode.POLICY_VIOLATION, what)


def unplaced(partitions: int, topic: str, factor: int) -> str:
    return (
        f"Unable to place {partitions} partition(s) of topic '{topic}' with replication factor "
        f"{factor}"
    )


def state(replicas: Sequence[int], per_broker: int = NO_LIMIT, per_cluster: int = NO_LIMIT) -> str:
    """The end of an error message: both limits, and the number of replicas on each broker."""
    brokers = ", ".join(f"{broker}={count}" for broker, count in enumerate(replicas) if count)
    return (
        f"(max.broker.partitions={per_broker}, max.partitions={per_cluster}; partition replicas: "
        f"cluster={sum(replicas)}, by broker={{{brokers}}})."
    )


def await_equal(look: Callable[[], object], wanted: object) -> None:
    """Wait until both are equal: reassignments are answered before brokers know of them."""
    deadline = time.monotonic() + MOVED_WITHIN_S
    while (seen := look()) != wanted:
        assert time.monotonic() < deadline, f"{seen}, not {wanted}"


class Scene:
    """A cluster in the state with which a row begins, and the client that sends requests."""

    def __init__(self, cluster: Cluster, connect: Connect, stack: ExitStack) -> None:
        self.cluster = cluster
        self.admin = stack.enter_context(Admin(cluster.bootstrap_servers))
        self._connect = connect
        self._stack = stack

    @cached_property
    def judge(self) -> Judge:
        """The client; it connects at its first use, to brokers that are up then."""
        judge = self._connect(self.cluster.bootstrap_servers)
        self._stack.callback(judge.close)
        return judge

    def create(self, name: str, partitions: int, factor: int) -> Outcome:
        (outcome,) = self.judge.create_topics([Topic(name, partitions, factor)])
        return outcome

    def assign(self, name: str, *assignment: list[int]) -> Outcome:
        (outcome,) = self.judge.create_topics([Topic(name, assignment=assignment)])
        return outcome

    def move(self, partition: int, replicas: list[int], topic: str = "old") -> Outcome:
        (outcome,) = self.judge.reassign(topic, {partition: replicas})
        return outcome

    def limit(self, per_broker: int | None = None, per_cluster: int | None = None) -> None:
        """Set limits for all brokers; None for no limit."""
        limits = {PER_BROKER: per_broker, PER_CLUSTER: per_cluster}
        self.admin.alter_configs("broker", "", limits)

    def replicas(self, topic: str = "old") -> list[tuple[int, ...]]:
        """The replicas of each partition; during a reassignment those being removed are last."""
        view = self.admin.describe_topics([topic])[topic]
        return [partition.replicas for partition in view.partitions]

    def await_move(self, partition: int, replicas: list[int], topic: str = "old") -> None:
        """Wait until a partition has exactly these replicas."""
        await_equal(lambda: self.replicas(topic)[partition], tuple(replicas))

    def await_counts(self, *wanted: int) -> None:
        await_equal(lambda: self.counts(len(wanted)), list(wanted))

    def counts(self, brokers: int) -> list[int]:
        """The number of replicas on each broker, dead or alive, without internal topics."""
        counted: Counter[int] = Counter()
        for name, view in self.admin.describe_topics().items():
            if name not in INTERNAL_TOPICS:
                counted.update(broker for each in view.partitions for broker in each.replicas)
        return [counted[broker] for broker in range(brokers)]


class Scenes:
    def __init__(self, connect: Connect, stack: ExitStack) -> None:
        self._connect = connect
        self._stack = stack

    def begin(
        self,
        replicas: Sequence[int],
        per_broker: int | None = None,
        per_cluster: int | None = None,
    ) -> Scene:
        cluster = self._stack.enter_context(Cluster(brokers=len(replicas)))
        scene = Scene(cluster, self._connect, self._stack)
        holders = [broker for broker, count in enumerate(replicas) for _ in range(count)]
        if holders:
            assignment = {index: [holder] for index, holder in enumerate(holders)}
            scene.admin.create_topic("old", assignment=assignment)
        scene.limit(per_broker, per_cluster)
        return scene


@pytest.fixture(scope="module")
def java() -> Iterator[JavaProcess]:
    with JavaProcess() as process:
        yield process


@pytest.fixture(
    params=[
        pytest.param(
            "java",
            marks=pytest.mark.skipif(
                shutil.which("javac") is None or find_kafka_jars() is None,
                reason="needs javac and Apache Kafka's jars: python -m lab.benchmarks.jars",
            ),
        ),
        "confluent",
        "kafka-python",
    ]
)
def connect(request: pytest.FixtureRequest) -> Connect:
    if request.param == "java":
        return partial(JavaJudge, request.getfixturevalue("java"))
    return ConfluentJudge if request.param == "confluent" else KafkaPythonJudge


@pytest.fixture
def scenes(connect: Connect) -> Iterator[Scenes]:
    with ExitStack() as stack:
        yield Scenes(connect, stack)


# Topics


def test_rows_1_to_3_until_all_brokers_are_full(scenes: Scenes) -> None:
    scene = scenes.begin((8, 6, 9), per_broker=10)
    assert scene.create("t", 1, 3) == DONE
    assert scene.counts(3) == [9, 7, 10]
    assert scene.create("u", 1, 3) == refuse(
        f"{unplaced(1, 'u', 3)}: at most 0 can be placed {state((9, 7, 10), 10)}"
    )
    assert scene.create("u", 1, 2) == DONE
    assert scene.counts(3) == [10, 8, 10]


def test_row_4_nothing_is_created_in_part(scenes: Scenes) -> None:
    scene = scenes.begin((8, 6, 9), per_broker=10)
    assert scene.create("t", 2, 3) == refuse(
        f"{unplaced(2, 't', 3)}: at most 1 can be placed {state((8, 6, 9), 10)}"
    )
    assert scene.admin.topics() == ["old"]
    assert scene.counts(3) == [8, 6, 9]


def test_rows_5_to_7_all_free_replicas_can_be_used(scenes: Scenes) -> None:
    scene = scenes.begin((10, 20, 30), per_broker=40)
    for partitions, factor, most in ((31, 2, 30), (20, 3, 10)):
        assert scene.create("t", partitions, factor) == refuse(
            f"{unplaced(partitions, 't', factor)}: at most {most} can be placed "
            f"{state((10, 20, 30), 40)}"
        )
    assert scene.admin.topics() == ["old"]
    assert scene.create("t", 30, 2) == DONE
    assert scene.counts(3) == [40, 40, 40]


def test_row_8_the_clusters_limit_with_no_broker_full(scenes: Scenes) -> None:
    scene = scenes.begin((0, 0, 0), per_cluster=9)
    assert scene.create("t", 5, 2) == refuse(
        f"{unplaced(5, 't', 2)}: it requires 10 more partition replicas on top of 0, exceeding "
        "max.partitions=9: the brokers already host 0, so at most 4 can be placed "
        f"{state((0, 0, 0), per_cluster=9)}"
    )
    assert scene.admin.topics() == []
    assert scene.create("t", 4, 2) == DONE
    assert sum(scene.counts(3)) == 8


def test_row_8_the_clusters_limit_counts_replicas_also_of_a_manual_assignment(
    scenes: Scenes,
) -> None:
    scene = scenes.begin((0, 0, 0), per_cluster=3)
    assert scene.assign("t", [0, 1], [1, 2]) == refuse(
        f"{unplaced(2, 't', 2)}: it requires 4 more partition replicas on top of 0, exceeding "
        "max.partitions=3: the brokers already host 0, so at most 1 can be placed "
        f"{state((0, 0, 0), per_cluster=3)}"
    )
    assert scene.admin.topics() == []
    assert scene.assign("t", [0, 1]) == DONE


@pytest.mark.parametrize(
    ("per_broker", "per_cluster", "why"),
    [
        (2, 100, "at most 2 can be placed"),
        (
            100,
            3,
            "it requires 12 more partition replicas on top of 0, exceeding max.partitions=3: the "
            "brokers already host 0, so at most 1 can be placed",
        ),
    ],
    ids=["broker", "cluster"],
)
def test_row_9_the_stricter_limit_is_named_and_both_are_shown(
    scenes: Scenes, per_broker: int, per_cluster: int, why: str
) -> None:
    scene = scenes.begin((0, 0, 0), per_broker, per_cluster)
    assert scene.create("t", 4, 3) == refuse(
        f"{unplaced(4, 't', 3)}: {why} {state((0, 0, 0), per_broker, per_cluster)}"
    )
    assert scene.admin.topics() == []


@pytest.mark.parametrize("validate_only", [False, True])
def test_rows_10_and_11_what_was_granted_counts_for_the_rest_of_the_request(
    scenes: Scenes, validate_only: bool
) -> None:
    scene = scenes.begin((0,), per_broker=10)
    wanted = [Topic("a", 6, 1), Topic("b", 6, 1)]
    assert scene.judge.create_topics(wanted, validate_only) == [
        DONE,
        refuse(f"{unplaced(6, 'b', 1)}: at most 4 can be placed {state((6,), 10)}"),
    ]
    assert scene.admin.topics() == ([] if validate_only else ["a"])
    # A request with validate_only reserves no replicas.
    assert scene.create("c", 10 if validate_only else 4, 1) == DONE
    assert scene.counts(1) == [10]


def test_row_12_other_faults_come_first(scenes: Scenes) -> None:
    scene = scenes.begin((1, 1, 1), per_broker=0, per_cluster=0)
    outcomes = scene.judge.create_topics(
        [
            Topic("t", 1, 4),
            Topic("in valid", 1, 1),
            Topic("old", 1, 1),
            Topic("bad", 1, 1, config={"retention.ms": "x"}),
            Topic("u", 1, 3),
        ]
    )
    assert [outcome.code for outcome in outcomes] == [
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.POLICY_VIOLATION,
    ]
    assert ["max.partitions" in outcome.message for outcome in outcomes] == [False] * 4 + [True]
    assert scene.admin.topics() == ["old"]


def test_row_13_a_manual_assignment_is_refused_and_never_rearranged(scenes: Scenes) -> None:
    scene = scenes.begin((9, 0), per_broker=10)
    assert scene.assign("t", [0, 1], [0, 1]) == refuse(
        f"{unplaced(2, 't', 2)}: broker 0 would host 11 partition replicas, 2 more than the 9 it "
        f"hosts, exceeding max.broker.partitions=10 {state((9, 0), 10)}"
    )
    assert scene.admin.topics() == ["old"]
    assert scene.assign("t", [1, 0]) == DONE
    assert scene.replicas("t") == [(1, 0)]


def test_row_14_only_brokers_of_the_assignment_matter(scenes: Scenes) -> None:
    scene = scenes.begin((0, 0, 15), per_broker=10)
    assert scene.assign("t", [0, 1]) == DONE
    assert scene.replicas("t") == [(0, 1)]
    assert scene.counts(3) == [1, 1, 15]


# Partitions


THREE_EACH = ([0, 1, 2], [1, 2, 0], [2, 0, 1])


def test_row_15_more_partitions_leave_the_others_as_they_are(scenes: Scenes) -> None:
    scene = scenes.begin((0, 0, 0))
    scene.admin.create_topic("t", assignment=dict(enumerate(THREE_EACH)))
    scene.limit(per_broker=4)
    before = scene.replicas("t")
    assert scene.judge.create_partitions("t", 5) == refuse(
        f"{unplaced(2, 't', 3)}: at most 1 can be placed {state((3, 3, 3), 4)}"
    )
    assert scene.replicas("t") == before
    scene.limit(per_broker=5)
    assert scene.judge.create_partitions("t", 5) == DONE
    assert scene.replicas("t")[:3] == before
    assert scene.counts(3) == [5, 5, 5]


def test_row_16_more_partitions_with_a_manual_assignment(scenes: Scenes) -> None:
    scene = scenes.begin((0, 0, 0))
    scene.admin.create_topic("t", assignment=dict(enumerate(THREE_EACH)))
    scene.limit(per_broker=4)
    assert scene.judge.create_partitions("t", 5, [[0, 1, 2], [2, 1, 0]]) == refuse(
        f"{unplaced(2, 't', 3)}: broker 0 would host 5 partition replicas, 2 more than the 3 it "
        f"hosts, exceeding max.broker.partitions=4 {state((3, 3, 3), 4)}"
    )
    assert len(scene.replicas("t")) == 3
    assert scene.judge.create_partitions("t", 4, [[2, 1, 0]]) == DONE
    assert scene.replicas("t")[3:] == [(2, 1, 0)]


# Existing replicas


def test_row_17_internal_topics_do_not_count(
    scenes: Scenes,
) -> None:
    scene = scenes.begin((5, 5, 5), per_broker=5, per_cluster=15)
    assert scene.create("__consumer_offsets", 50, 3) == DONE
    await_equal(lambda: scene.judge.ask_for("__transaction_state"), DONE)
    own = set(scene.admin.topics(include_internal=True)) - {"old"}
    assert own == {"__consumer_offsets", "__transaction_state"}
    assert len(scene.replicas("__consumer_offsets")) == 50
    assert scene.create("t", 1, 1) == refuse(
        f"{unplaced(1, 't', 1)}: it requires 1 more partition replicas on top of 15, exceeding "
        "max.partitions=15: the brokers already host 15, so at most 0 can be placed "
        f"{state((5, 5, 5), 5, 15)}"
    )


def test_row_18_a_limit_below_what_there_is_is_taken(scenes: Scenes) -> None:
    scene = scenes.begin((15,))
    assert scene.judge.set_option("", PER_BROKER, "10") == DONE
    described = scene.judge.describe_option("0", PER_BROKER)
    assert described[:2] == ("10", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert scene.counts(1) == [15]


def test_row_18_records_are_accepted_replicas_are_not_and_deletion_frees(scenes: Scenes) -> None:
    scene = scenes.begin((15,), per_broker=10)
    with Producer(scene.cluster.bootstrap_servers) as producer:
        assert producer.send("old", b"v", partition=14).result().offset == 0
    assert scene.create("t", 1, 1) == refuse(
        f"{unplaced(1, 't', 1)}: at most 0 can be placed {state((15,), 10)}"
    )
    assert scene.judge.delete_topic("old") == DONE
    assert scene.create("t", 10, 1) == DONE
    assert scene.counts(1) == [10]


def test_row_19_a_cluster_over_its_limit_gets_nothing_and_can_be_relieved(scenes: Scenes) -> None:
    scene = scenes.begin((30, 20, 0), per_cluster=40)
    assert scene.create("t", 1, 1) == refuse(
        f"{unplaced(1, 't', 1)}: it requires 1 more partition replicas on top of 50, exceeding "
        "max.partitions=40: the brokers already host 50, so at most 0 can be placed "
        f"{state((30, 20, 0), per_cluster=40)}"
    )
    assert scene.judge.delete_topic("old") == DONE
    assert scene.counts(3) == [0, 0, 0]
    assert scene.create("t", 40, 1) == DONE


def test_row_19_a_cluster_over_its_limit_moves_what_it_has(scenes: Scenes) -> None:
    scene = scenes.begin((30, 20, 0), per_cluster=40)
    assert scene.move(0, [2]) == DONE
    scene.await_move(0, [2])
    assert scene.counts(3) == [29, 20, 1]


# Reassignments


def test_row_20_only_the_move_to_a_full_broker_is_rejected(scenes: Scenes) -> None:
    scene = scenes.begin((2, 5, 12), per_broker=5)
    to_full = refuse(
        "Unable to reassign partition old-0 to [1]: broker 1 would host 6 partition replicas, 1 "
        f"more than the 5 it hosts, exceeding max.broker.partitions=5 {state((2, 5, 12), 5)}"
    )
    assert scene.judge.reassign("old", {0: [1], 7: [0]}) == [to_full, DONE]
    scene.await_move(7, [0])
    assert scene.replicas()[0] == (0,)
    assert scene.counts(3) == [3, 5, 11]


def test_row_21_moves_away_from_a_broker_over_its_limit(scenes: Scenes) -> None:
    scene = scenes.begin((2, 5, 12), per_broker=5)
    assert scene.move(8, [0]) == DONE
    scene.await_move(8, [0])
    assert scene.counts(3) == [3, 5, 11]


def test_row_22_a_move_that_adds_no_replica_is_allowed(scenes: Scenes) -> None:
    scene = scenes.begin((3, 3, 3))
    scene.admin.create_topic("t", assignment={0: [0, 1, 2]})
    scene.limit(per_broker=1, per_cluster=1)
    for target in ([2, 1, 0], [2, 1], [2]):
        assert scene.move(0, target, "t") == DONE
        scene.await_move(0, target, "t")
    assert scene.move(0, [0]) == DONE
    assert scene.counts(3) == [3, 3, 4]


def test_row_23_more_replicas_need_room_in_the_cluster(scenes: Scenes) -> None:
    scene = scenes.begin((3, 3, 3), per_cluster=10)
    assert scene.move(0, [0, 1, 2]) == refuse(
        "Unable to reassign partition old-0 to [0, 1, 2]: it requires 2 more partition replicas on "
        "top of 9, exceeding max.partitions=10: the brokers already host 9 "
        f"{state((3, 3, 3), per_cluster=10)}"
    )
    assert scene.admin.list_reassignments() == {}
    assert scene.move(0, [0, 1]) == DONE
    scene.await_move(0, [0, 1])
    assert scene.counts(3) == [3, 4, 3]


def test_row_24_a_move_can_always_be_cancelled(scenes: Scenes) -> None:
    scene = scenes.begin((3, 3, 3))
    scene.cluster.stop_broker(1)  # so that what moves there does not arrive
    scene.admin.alter_reassignments({("old", 0): [1]})
    scene.await_counts(3, 4, 3)
    scene.limit(per_broker=0, per_cluster=0)
    assert scene.judge.reassign("old", {0: None, 1: None}) == [
        DONE,
        Outcome(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
    ]
    scene.await_move(0, [0])
    assert scene.counts(3) == [3, 3, 3]


def test_row_25_a_broker_that_is_being_added_does_not_count_twice(scenes: Scenes) -> None:
    scene = scenes.begin((3, 4, 0), per_broker=5)
    scene.cluster.stop_broker(1)  # so that what moves there does not arrive
    assert scene.move(0, [1]) == DONE
    scene.await_counts(3, 5, 0)
    assert scene.move(0, [1, 2]) == DONE
    scene.await_counts(3, 5, 1)
    assert sorted(scene.replicas()[0]) == [0, 1, 2]
    assert scene.move(1, [1]) == refuse(
        "Unable to reassign partition old-1 to [1]: broker 1 would host 6 partition replicas, 1 "
        f"more than the 5 it hosts, exceeding max.broker.partitions=5 {state((3, 5, 1), 5)}"
    )


def test_row_26_a_swap_needs_room_for_both(scenes: Scenes) -> None:
    scene = scenes.begin((1, 1), per_broker=1)
    swap = {0: [1], 1: [0]}
    assert scene.judge.reassign("old", swap) == [
        refuse(
            f"Unable to reassign partition old-{partition} to [{to}]: broker {to} would host 2 "
            "partition replicas, 1 more than the 1 it hosts, exceeding max.broker.partitions=1 "
            f"{state((1, 1), 1)}"
        )
        for partition, to in ((0, 1), (1, 0))
    ]
    assert scene.admin.list_reassignments() == {}
    assert scene.replicas() == [(0,), (1,)]
    scene.limit(per_broker=2)
    assert scene.judge.reassign("old", swap) == [DONE, DONE]
    await_equal(scene.replicas, [(1,), (0,)])


# Topics created by a metadata request


def ask_for_metadata(address: tuple[str, int], topic: str) -> int:
    """A topic's error code in the answer to a metadata request that may create it."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"".join(map(bytes, encode_request(request, 9, 1, "raw"))))
        stream = connection.makefile("rb")
        answer = stream.read(int.from_bytes(stream.read(4), "big"))
    return decode_response(MetadataResponse, 9, answer).topics[0].error_code


def test_row_27_asking_for_a_topic_does_not_create_it_until_there_is_room(scenes: Scenes) -> None:
    scene = scenes.begin((5,), per_broker=5)
    (address,) = scene.cluster.addresses
    assert ask_for_metadata(address, "t") == ErrorCode.POLICY_VIOLATION
    assert scene.judge.ask_for("t").code is ErrorCode.POLICY_VIOLATION
    assert scene.admin.topics() == ["old"]
    scene.limit(per_broker=6)
    await_equal(lambda: scene.judge.ask_for("t"), DONE)  # the first answer is that it is unknown
    assert scene.admin.topics() == ["old", "t"]
    assert scene.counts(1) == [6]


# Brokers that start and stop


NodeStarter = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def node(tmp_path: Path) -> NodeStarter:
    """Runs a node's process; gives its address when it serves."""
    secret = ("--cluster-secret-file", str(tmp_path / "cluster.secret"))

    @contextmanager
    def start(*words: str) -> Iterator[str]:
        with subprocess.Popen(
            [sys.executable, "-m", "trimtab", *words, *secret, "--port", "0", "--no-fsync"],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                ready = process.stdout.readline()
                assert ready.startswith("ready "), f"trimtab {' '.join(words)}: see standard error"
                yield ready.split()[1]
            finally:
                process.kill()

    return start


def test_row_28_a_broker_that_is_added_has_room_at_once(
    connect: Connect, node: NodeStarter
) -> None:
    with ExitStack() as stack:
        limits = ("--config", "max.broker.partitions=5")
        controller = stack.enter_context(node("controller", *limits))

        def add_broker(number: int) -> str:
            words = ("broker", "--id", str(number), "--controller", controller)
            return stack.enter_context(node(*words))

        servers = add_broker(0)
        admin = stack.enter_context(Admin(servers))
        admin.create_topic("old", partitions=5)
        judge = connect(servers)
        stack.callback(judge.close)
        assert judge.create_topics([Topic("t", 1, 1)]) == [
            refuse(f"{unplaced(1, 't', 1)}: at most 0 can be placed {state((5,), 5)}")
        ]
        add_broker(1)
        assert judge.create_topics([Topic("t", 1, 1), Topic("u", 5, 1)]) == [
            DONE,
            refuse(f"{unplaced(5, 'u', 1)}: at most 4 can be placed {state((5, 1), 5)}"),
        ]
        assert [each.replicas for each in admin.describe_topics(["t"])["t"].partitions] == [(1,)]


def test_row_29_a_dead_broker_gets_nothing_and_keeps_what_it_has(scenes: Scenes) -> None:
    scene = scenes.begin((2, 2, 2), per_broker=4)
    scene.cluster.stop_broker(2)
    assert scene.create("t", 5, 1) == refuse(
        f"{unplaced(5, 't', 1)}: at most 4 can be placed {state((2, 2, 2), 4)}"
    )
    assert scene.create("t", 4, 1) == DONE
    assert scene.counts(3) == [4, 4, 2]
    scene.limit(per_cluster=10)
    assert scene.create("u", 1, 1) == refuse(
        f"{unplaced(1, 'u', 1)}: it requires 1 more partition replicas on top of 10, exceeding "
        "max.partitions=10: the brokers already host 10, so at most 0 can be placed "
        f"{state((4, 4, 2), per_cluster=10)}"
    )
    scene.cluster.start_broker(2)
    scene.limit(per_broker=4)
    assert scene.create("u", 2, 1) == DONE
    assert scene.counts(3) == [4, 4, 4]


# Which limit applies


def test_row_30_what_is_set_for_another_broker_is_ignored_with_a_warning(
    scenes: Scenes, caplog: pytest.LogCaptureFixture
) -> None:
    scene = scenes.begin((5, 5, 5), per_broker=10)
    with caplog.at_level(logging.WARNING):
        assert scene.judge.set_option("1", PER_BROKER, "5") == DONE
    assert "max.broker.partitions of broker=1 is kept but has no effect" in caplog.text
    described = scene.judge.describe_option("1", PER_BROKER)
    assert described[:2] == ("5", "DYNAMIC_BROKER_CONFIG")
    assert scene.create("t", 1, 3) == DONE
    assert scene.counts(3) == [6, 6, 6]


def test_row_31_what_the_controller_was_given_holds_for_all_brokers(
    connect: Connect, node: NodeStarter
) -> None:
    with ExitStack() as stack:
        controller = stack.enter_context(node("controller", "--config", "max.broker.partitions=5"))
        own = ("--controller", controller, "--config", "max.broker.partitions=10")
        servers = stack.enter_context(node("broker", "--id", "0", *own))
        stack.enter_context(node("broker", "--id", "1", *own))
        judge = connect(servers)
        stack.callback(judge.close)
        assert judge.create_topics([Topic("t", 6, 2)]) == [
            refuse(f"{unplaced(6, 't', 2)}: at most 5 can be placed {state((), 5)}")
        ]
        assert judge.create_topics([Topic("t", 5, 2)]) == [DONE]


def test_row_31_what_is_set_for_the_controller_holds_for_all_brokers(
    connect: Connect, node: NodeStarter
) -> None:
    with ExitStack() as stack:
        controller = stack.enter_context(node("controller"))
        servers = stack.enter_context(node("broker", "--id", "0", "--controller", controller))
        judge = connect(servers)
        stack.callback(judge.close)
        assert judge.set_controller_option(controller, CONTROLLER_ID, PER_BROKER, "5") == DONE
        assert judge.create_topics([Topic("t", 6, 1)]) == [
            refuse(f"{unplaced(6, 't', 1)}: at most 5 can be placed {state((), 5)}")
        ]


@pytest.mark.parametrize(("value", "why"), [("-5", "must be at least 0"), ("abc", "abc")])
@pytest.mark.parametrize("name", [PER_BROKER, PER_CLUSTER])
def test_row_32_an_invalid_limit_is_rejected(
    scenes: Scenes, name: str, value: str, why: str
) -> None:
    scene = scenes.begin((0,))
    outcome = scene.judge.set_option("0", name, value)
    assert outcome.code is ErrorCode.INVALID_CONFIG
    assert name in outcome.message
    assert why in outcome.message
    assert scene.judge.describe_option("0", name)[:2] == (str(NO_LIMIT), "DEFAULT_CONFIG")


@pytest.mark.parametrize("name", [PER_BROKER, PER_CLUSTER])
@pytest.mark.parametrize(
    ("broker", "source"), [("", "DYNAMIC_DEFAULT_BROKER_CONFIG"), ("0", "DYNAMIC_BROKER_CONFIG")]
)
def test_row_32_a_limit_is_described_and_deleted(
    scenes: Scenes, broker: str, source: str, name: str
) -> None:
    scene = scenes.begin((0,))
    kind = "LONG" if scene.judge.sees_types else ""
    assert scene.judge.set_option(broker, name, "7") == DONE
    assert scene.judge.describe_option("0", name) == Described("7", source, kind, False)
    assert scene.judge.set_option(broker, name, None) == DONE
    default = Described(str(NO_LIMIT), "DEFAULT_CONFIG", kind, False)
    assert scene.judge.describe_option("0", name) == default
