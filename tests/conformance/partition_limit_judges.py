"""Other projects' clients behind one interface, which create, move and limit partitions.

An error code of a broker is returned as an outcome; other errors are raised. If a client lacks a
call, the test that needs it is skipped, with the name of the call.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol, Self

import pytest

from lab.benchmarks.jars import find_kafka_jars, java_command
from trimtab import ErrorCode

PATIENCE_S = 30
BROKER_RESOURCE = 4
SET, DELETE = 0, 1
SOURCE = Path(__file__).parent / "java" / "PartitionLimits.java"

Replicas = Sequence[int]


class Topic(NamedTuple):
    """A topic to create; its replicas are chosen by the cluster, or given for each partition."""

    name: str
    partitions: int = -1
    factor: int = -1
    assignment: Sequence[Replicas] = ()
    config: Mapping[str, str] = {}


class Outcome(NamedTuple):
    """A broker's answer; the message is empty if the request succeeded."""

    code: ErrorCode
    message: str


class Described(NamedTuple):
    """An option as a broker describes it; the type is "" if the client does not return it."""

    value: str
    source: str
    type: str
    is_read_only: bool


class Judge(Protocol):
    """Another project's client, connected to a cluster.

    Attributes:
        sees_types: whether it returns the types of options.
    """

    sees_types: bool

    def create_topics(
        self, topics: Sequence[Topic], validate_only: bool = False
    ) -> list[Outcome]: ...

    def create_partitions(
        self, name: str, count: int, assignment: Sequence[Replicas] = ()
    ) -> Outcome: ...

    def delete_topic(self, name: str) -> Outcome: ...

    def reassign(self, topic: str, targets: Mapping[int, Replicas | None]) -> list[Outcome]:
        """Reassign partitions, or cancel their reassignments (None)."""
        ...

    def set_option(self, broker: str, name: str, value: str | None) -> Outcome:
        """Set an option of a broker, or of all brokers (""); None restores the default."""
        ...

    def set_controller_option(self, address: str, number: int, name: str, value: str) -> Outcome:
        """Set an option of the controller, which is not in brokers' metadata."""
        ...

    def describe_option(self, broker: str, name: str) -> Described: ...

    def ask_for(self, topic: str) -> Outcome:
        """Request a topic's metadata so that the topic is created."""
        ...

    def close(self) -> None: ...


class JavaProcess:
    """A JVM that runs java/PartitionLimits.java."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [
                *java_command("128m"),
                *("-cp", f"{find_kafka_jars()}/*", str(SOURCE)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Java ended at {words}: its standard error says why"
        return line.removesuffix("\n").split("\t")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._process:
            self._process.kill()


class JavaJudge:
    """Apache Kafka's Admin, and its consumer."""

    sees_types = True

    def __init__(self, java: JavaProcess, servers: str) -> None:
        self._java = java
        self._servers = servers
        java.ask("connect", servers)

    def create_topics(self, topics: Sequence[Topic], validate_only: bool = False) -> list[Outcome]:
        words: list[str] = []
        for topic in topics:
            options = [f"{name}={value}" for name, value in topic.config.items()]
            assert len(options) < 2
            words += [
                *(topic.name, str(topic.partitions), str(topic.factor)),
                *(_write_assignment(topic.assignment), *(options or [""])),
            ]
        return self._outcomes("create-topics", str(validate_only).lower(), *words)

    def create_partitions(
        self, name: str, count: int, assignment: Sequence[Replicas] = ()
    ) -> Outcome:
        return self._outcome("create-partitions", name, str(count), _write_assignment(assignment))

    def delete_topic(self, name: str) -> Outcome:
        return self._outcome("delete-topic", name)

    def reassign(self, topic: str, targets: Mapping[int, Replicas | None]) -> list[Outcome]:
        words: list[str] = []
        for partition, replicas in targets.items():
            words += [str(partition), _write_replicas(replicas or ())]
        return self._outcomes("reassign", topic, *words)

    def set_option(self, broker: str, name: str, value: str | None) -> Outcome:
        operation = "DELETE" if value is None else "SET"
        return self._outcome("set-option", broker, operation, name, value or "")

    def set_controller_option(self, address: str, number: int, name: str, value: str) -> Outcome:
        return self._outcome("set-controller-option", str(number), "SET", name, value, address)

    def describe_option(self, broker: str, name: str) -> Described:
        value, source, kind, is_read_only = self._java.ask("describe-option", broker, name)
        return Described(value, source, kind, is_read_only == "true")

    def ask_for(self, topic: str) -> Outcome:
        return self._outcome("ask-for", self._servers, topic)

    def close(self) -> None:
        self._java.ask("close")

    def _outcome(self, *words: str) -> Outcome:
        (outcome,) = self._outcomes(*words)
        return outcome

    def _outcomes(self, *words: str) -> list[Outcome]:
        answer = self._java.ask(*words)
        return [
            Outcome(ErrorCode(int(code)), message)
            for code, message in zip(answer[::2], answer[1::2], strict=True)
        ]


class ConfluentJudge:
    """confluent-kafka's AdminClient, which sends only what librdkafka has calls for."""

    sees_types = False

    def __init__(self, servers: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({"bootstrap.servers": servers})

    def create_topics(self, topics: Sequence[Topic], validate_only: bool = False) -> list[Outcome]:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # no __all__

        wanted = []
        for topic in topics:
            config = dict(topic.config)
            if topic.assignment:
                assignment = [list(replicas) for replicas in topic.assignment]
                # It also needs the number of partitions, which the assignment implies.
                new = NewTopic(
                    topic.name,
                    num_partitions=len(assignment),
                    replica_assignment=assignment,
                    config=config,
                )
            else:
                new = NewTopic(topic.name, topic.partitions, topic.factor, config=config)
            wanted.append(new)
        futures = self._admin.create_topics(wanted, validate_only=validate_only)
        return [self._await(futures[topic.name]) for topic in topics]

    def create_partitions(
        self, name: str, count: int, assignment: Sequence[Replicas] = ()
    ) -> Outcome:
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # no __all__

        if assignment:
            given = [list(replicas) for replicas in assignment]
            wanted = NewPartitions(name, count, replica_assignment=given)
        else:
            wanted = NewPartitions(name, count)
        return self._await(self._admin.create_partitions([wanted])[name])

    def delete_topic(self, name: str) -> Outcome:
        return self._await(self._admin.delete_topics([name])[name])

    def reassign(self, topic: str, targets: Mapping[int, Replicas | None]) -> NoReturn:
        for name in ("alter_partition_reassignments", "alter_reassignments"):
            assert not hasattr(self._admin, name), "it can move partitions now: have it do so"
        pytest.skip("confluent-kafka has no AlterPartitionReassignments")

    def set_option(self, broker: str, name: str, value: str | None) -> Outcome:
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
        )

        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource("broker", broker, incremental_configs=[entry])
        if not broker:
            with pytest.raises(ValueError, match="Invalid ConfigResource"):
                self._admin.incremental_alter_configs([resource])
            pytest.skip("confluent-kafka takes no ConfigResource of all brokers, only of one")
        return self._await(self._admin.incremental_alter_configs([resource])[resource])

    def set_controller_option(self, address: str, number: int, name: str, value: str) -> NoReturn:
        pytest.skip(
            "confluent-kafka has no bootstrap.controllers, and sends what is set for a broker to "
            "that broker only"
        )

    def describe_option(self, broker: str, name: str) -> Described:
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
            ConfigResource,
            ConfigSource,
        )

        resource = ConfigResource("broker", broker)
        found = self._admin.describe_configs([resource])[resource].result(PATIENCE_S)[name]
        return Described(found.value, ConfigSource(found.source).name, "", found.is_read_only)

    def ask_for(self, topic: str) -> Outcome:
        error = self._admin.list_topics(topic, PATIENCE_S).topics[topic].error
        if error is None:
            return Outcome(ErrorCode.NONE, "")
        return Outcome(ErrorCode(error.code()), error.str())

    def close(self) -> None:
        """Does nothing: the client closes when it is deleted."""
        del self._admin

    def _await(self, future: Any) -> Outcome:
        from confluent_kafka import KafkaException

        try:
            future.result(PATIENCE_S)
        except KafkaException as failure:
            error = failure.args[0]
            return Outcome(ErrorCode(error.code()), error.str())
        return Outcome(ErrorCode.NONE, "")


class KafkaPythonJudge:
    """kafka-python's KafkaAdminClient.

    If it leaves out the error message, or has no resource for all brokers, the request is built
    from the client's own class and sent by it.
    """

    sees_types = True

    def __init__(self, servers: str) -> None:
        from kafka.admin import KafkaAdminClient

        self._admin = KafkaAdminClient(bootstrap_servers=servers)

    def create_topics(self, topics: Sequence[Topic], validate_only: bool = False) -> list[Outcome]:
        wanted = {
            topic.name: {
                "num_partitions": topic.partitions,
                "replication_factor": topic.factor,
                "assignments": {
                    index: list(replicas) for index, replicas in enumerate(topic.assignment)
                },
                "configs": dict(topic.config),
            }
            for topic in topics
        }
        answer = self._admin.create_topics(wanted, validate_only=validate_only, raise_errors=False)
        results = {each["name"]: each for each in answer["topics"]}
        return [
            _outcome(results[topic.name]["error_code"], results[topic.name]["error_message"])
            for topic in topics
        ]

    def create_partitions(
        self, name: str, count: int, assignment: Sequence[Replicas] = ()
    ) -> Outcome:
        wanted: Any = count
        if assignment:
            given = [list(replicas) for replicas in assignment]
            wanted = {"count": count, "assignments": given}
        (result,) = self._admin.create_partitions({name: wanted}, raise_errors=False).results
        return _outcome(result.error_code, result.error_message)

    def delete_topic(self, name: str) -> Outcome:
        (result,) = self._admin.delete_topics([name], raise_errors=False)["topics"]
        return _outcome(result["error_code"], result["error_message"])

    def reassign(self, topic: str, targets: Mapping[int, Replicas | None]) -> list[Outcome]:
        """Sends the request itself: `alter_partition_reassignments` does not return messages."""
        from kafka.protocol.admin import (
            AlterPartitionReassignmentsRequest,
        )

        moved = AlterPartitionReassignmentsRequest.ReassignableTopic
        partitions = [
            moved.ReassignablePartition(
                partition_index=index, replicas=None if replicas is None else list(replicas)
            )
            for index, replicas in targets.items()
        ]
        answer = self._send(
            AlterPartitionReassignmentsRequest(
                timeout_ms=PATIENCE_S * 1000, topics=[moved(name=topic, partitions=partitions)]
            )
        )
        (results,) = answer.responses
        return [_outcome(each.error_code, each.error_message) for each in results.partitions]

    def set_option(self, broker: str, name: str, value: str | None) -> Outcome:
        from kafka.admin import ConfigResource

        operation = DELETE if value is None else SET
        if not broker:  # the client accepts only numbers of brokers
            return self._send_option(broker, name, operation, value)
        resource = ConfigResource("broker", broker, configs={name: (operation, value)})
        said = self._admin.alter_configs([resource])["broker"][broker]
        if said == "OK":
            return _outcome(0, "")
        error = re.fullmatch(r"\[Error (\d+)\] \w+: (.*)", said)
        assert error is not None, said
        return _outcome(int(error[1]), error[2])

    def set_controller_option(self, address: str, number: int, name: str, value: str) -> Outcome:
        """Sends the request to a broker: the client connects to nothing else."""
        return self._send_option(str(number), name, SET, value)

    def describe_option(self, broker: str, name: str) -> Described:
        from kafka.admin import ConfigResource

        resource = ConfigResource("broker", broker, configs={name: None})
        found = self._admin.describe_configs([resource], config_filter="all")
        option = found["broker"][broker][name]
        source, kind = option["config_source"], option["config_type"]
        return Described(option["value"], source, kind, option["read_only"])

    def ask_for(self, topic: str) -> Outcome:
        """Sends the request itself: `describe_topics` does not create topics."""
        from kafka.protocol.metadata import MetadataRequest

        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
        (result,) = self._send(request).topics
        return _outcome(result.error_code, "")

    def close(self) -> None:
        self._admin.close()

    def _send_option(self, node: str, name: str, operation: int, value: str | None) -> Outcome:
        from kafka.protocol.admin import IncrementalAlterConfigsRequest

        request = IncrementalAlterConfigsRequest(
            resources=[(BROKER_RESOURCE, node, [(name, operation, value)])], validate_only=False
        )
        (result,) = self._send(request).responses
        return _outcome(result.error_code, result.error_message)

    def _send(self, request: object) -> Any:
        manager = self._admin._manager
        return manager.run(manager.send, request)


def _outcome(code: int, message: str | None) -> Outcome:
    return Outcome(ErrorCode(code), message or "")


def _write_assignment(assignment: Sequence[Replicas]) -> str:
    return "|".join(_write_replicas(replicas) for replicas in assignment)


def _write_replicas(replicas: Replicas) -> str:
    return ",".join(map(str, replicas))
