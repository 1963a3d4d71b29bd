"""`trimtab controller` and `trimtab broker`, each started separately, as by a service manager."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from lab.processes import answers_metadata, free_ports
from trimtab import Admin, BrokerError, ErrorCode, Producer
from trimtab.cluster.server.secret_file import read_or_make_secret, read_secret

EXIT_SECONDS = 30
LINE_SECONDS = 60


class Node:
    """A node's process.

    Attributes:
        log: the file with its standard error.
    """

    def __init__(self, log: Path, words: tuple[str, ...]) -> None:
        self.log = log
        with open(log, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trimtab", *words],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout
        # Kept open, so that each call continues where the last one stopped.
        self._reader = open(log, encoding="utf-8")  # noqa: SIM115

    def await_line(self, text: str) -> str:
        """Wait for the next line of the node's log that contains `text`."""
        deadline = time.monotonic() + LINE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            line = self._reader.readline()
            if text in line:
                return line
            if not line:
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.01)
        raise AssertionError(f"{text!r} is not in its log:\n{self.log.read_text()}")

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(EXIT_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        self._reader.close()


@contextmanager
def started(directory: Path, name: str, *words: str) -> Iterator[Node]:
    """A node that is given the secret of the directory's cluster."""
    words = (*words, "--cluster-secret-file", str(directory / "cluster.secret"))
    node = Node(directory / f"{name}.log", words)
    try:
        yield node
    finally:
        node.close()


def controller_file(directory: Path, port: int) -> str:
    path = directory / "controller.properties"
    path.write_text(
        f"process.roles=controller\nnode.id=100\nlisteners=CONTROLLER://127.0.0.1:{port}\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={directory}/controller\n"
    )
    return str(path)


def broker_file(directory: Path, number: int, port: int, controller: int) -> str:
    path = directory / f"broker-{number}.properties"
    path.write_text(
        f"process.roles=broker\nnode.id={number}\nbroker.rack=r{number}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={directory}/broker-{number}\n"
        f"controller.quorum.voters=100@127.0.0.1:{controller}\n"
        "controller.listener.names=CONTROLLER\nmin.insync.replicas=1\na.plugin=1\n"
    )
    return str(path)


def test_nodes_find_each_other_and_a_broker_hands_over_what_it_leads(tmp_path: Path) -> None:
    ports = free_ports(3)
    files = [broker_file(tmp_path, number, ports[number], ports[2]) for number in (0, 1)]
    servers = f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
    with (
        started(tmp_path, "broker-0", "broker", files[0]) as early,
        started(tmp_path, "broker-1", "broker", files[1]) as other,
    ):
        early.await_line("ignoring unknown option")
        early.await_line("waiting for the cluster's secret")
        with started(tmp_path, "one", "controller", controller_file(tmp_path, ports[2])) as one:
            assert one.stdout.readline() == f"ready 127.0.0.1:{ports[2]}\n"
            for broker, node in enumerate((early, other)):
                assert node.stdout.readline() == f"ready 127.0.0.1:{ports[broker]}\n"
            with (
                Admin(bootstrap_servers=servers) as admin,
                Producer(bootstrap_servers=servers, acks="all") as producer,
            ):
                admin.create_topic("t", partitions=2, replication_factor=2)
                for partition in (0, 1):
                    producer.send("t", b"before", partition=partition).result()
                assert early.end(signal.SIGTERM) == 0
                topic = admin.describe_topics(["t"])["t"]
                assert [each.leader for each in topic.partitions] == [1, 1]
                for partition in (0, 1):
                    assert producer.send("t", b"after", partition=partition).result().offset == 1
            assert other.end(signal.SIGTERM) == 0
            assert one.end(signal.SIGTERM) == 0
        assert answers_metadata(ports[1]) is False


def test_a_restarted_node_rejoins_its_cluster(tmp_path: Path) -> None:
    """At the second start the broker starts before its controller."""
    ports = free_ports(2)
    file = broker_file(tmp_path, 0, ports[0], ports[1])
    for round_number in range(2):
        with (
            started(tmp_path, "b", "broker", file) as broker,
            started(tmp_path, "c", "controller", controller_file(tmp_path, ports[1])) as one,
        ):
            assert broker.stdout.readline() == f"ready 127.0.0.1:{ports[0]}\n"
            with (
                Admin(bootstrap_servers=f"127.0.0.1:{ports[0]}") as admin,
                Producer(bootstrap_servers=f"127.0.0.1:{ports[0]}") as producer,
            ):
                if round_number == 0:
                    admin.create_topic("t", partitions=1)
                sent = producer.send("t", b"%d" % round_number, partition=0).result()
                assert sent.offset == round_number
            assert broker.end(signal.SIGINT) == 0
            assert one.end(signal.SIGINT) == 0


def test_the_second_signal_ends_a_broker_at_once(tmp_path: Path) -> None:
    """After the first signal the broker waits for the controller, which does not answer."""
    with started(
        tmp_path, "c", "controller", "--port", "0", "--data", str(tmp_path / "c")
    ) as controller:
        address = controller.stdout.readline().split()[1]
        with started(
            *(tmp_path, "b", "broker", "--id", "0", "--controller", address, "--port", "0")
        ) as broker:
            assert broker.stdout.readline().startswith("ready ")
            controller.process.send_signal(signal.SIGSTOP)
            broker.process.send_signal(signal.SIGTERM)
            broker.await_line("shutting down signal=SIGTERM")
            assert broker.end(signal.SIGTERM) == 130
        assert "ending at once" in broker.log.read_text()


def test_a_broker_with_stop_at_eof_ends_with_its_standard_input(tmp_path: Path) -> None:
    read_or_make_secret(str(tmp_path / "cluster.secret"))
    command = [sys.executable, "-m", "trimtab", "broker", "--id", "0", "--stop-at-eof"]
    command += ["--cluster-secret-file", str(tmp_path / "cluster.secret")]
    done = subprocess.run(
        [*command, "--controller", f"127.0.0.1:{free_ports(1)[0]}", "--port", "0"],
        input="",
        capture_output=True,
        text=True,
        timeout=EXIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "standard input has ended" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("broker", "--id", "0"), "trimtab broker: a broker needs a controller's address"),
        (("controller", "none.properties"), "trimtab controller: cannot read the options file"),
    ],
)
def test_missing_options_are_reported_in_one_line(words: tuple[str, ...], reason: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(reason)
    assert done.stderr.count("\n") == 1


def test_a_broker_without_its_clusters_secret_does_not_join(tmp_path: Path) -> None:
    """The controller's is in its own directory: it makes one for itself."""
    data = tmp_path / "c"
    controller = Node(tmp_path / "c.log", ("controller", "--port", "0", "--data", str(data)))
    try:
        address = controller.stdout.readline().split()[1]
        words = ("broker", "--id", "0", "--controller", address, "--port", "0")
        read_or_make_secret(str(tmp_path / "wrong"))
        for given, reason in (
            ((), "cannot read the cluster's secret"),
            (("--cluster-secret-file", str(tmp_path / "wrong")), "is not controller of this"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "trimtab", *words, *given],
                capture_output=True,
                text=True,
                timeout=EXIT_SECONDS,
                check=False,
            )
            assert (done.returncode, done.stdout) == (1, "")
            assert reason in done.stderr
            assert "--cluster-secret-file" in done.stderr
        assert f"{address} is not controller of this cluster" in done.stderr
        secret = str(data / "cluster.secret")
        broker = Node(tmp_path / "b.log", (*words, "--cluster-secret-file", secret))
        try:
            assert broker.stdout.readline().startswith("ready ")
            assert broker.end(signal.SIGTERM) == 0
        finally:
            broker.close()
        assert controller.end(signal.SIGTERM) == 0
        for log in ("c.log", "b.log"):
            assert read_secret(secret) not in (tmp_path / log).read_text()
    finally:
        controller.close()


def test_a_broker_is_refused_by_another_clusters_controller(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with started(
            tmp_path, name, "controller", "--port", "0", "--data", str(tmp_path / name)
        ) as controller:
            address = controller.stdout.readline().split()[1]
            with started(
                tmp_path,
                f"b-{name}",
                *("broker", "--id", "0", "--controller", address, "--port", "0"),
                *("--data", str(tmp_path / "b")),
            ) as broker:
                if name == "first":
                    assert broker.stdout.readline().startswith("ready ")
                    assert broker.end(signal.SIGTERM) == 0
                else:
                    assert broker.process.wait(EXIT_SECONDS) == 1
                    assert "the controller to another" in broker.log.read_text()


@pytest.mark.kip(578)
def test_limits_come_from_the_file_are_changed_outlive_the_controller_and_are_measured(
    tmp_path: Path,
) -> None:
    broker_port, controller_port = free_ports(2)
    servers = f"127.0.0.1:{broker_port}"
    file = Path(controller_file(tmp_path, controller_port))
    file.write_text(f"{file.read_text()}max.broker.partitions=3\n")
    controller = ("controller", str(file), "--metrics-port", "0")

    def refusal(admin: Admin, partitions: int) -> str:
        with pytest.raises(BrokerError) as refused:
            admin.create_topic(f"of-{partitions}", partitions)
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        return str(refused.value)

    def measure(node: Node) -> list[str]:
        address = node.await_line("serving metrics").split("address=")[1].strip()
        with urlopen(address, timeout=EXIT_SECONDS) as response:
            return str(response.read().decode()).splitlines()

    with (
        started(
            *(tmp_path, "broker", "broker"), broker_file(tmp_path, 0, broker_port, controller_port)
        ) as broker,
        Admin(servers) as admin,
    ):
        with started(tmp_path, "first", *controller) as first:
            broker.stdout.readline()
            assert "at most 3 can be placed (max.broker.partitions=3," in refusal(admin, 4)
            admin.alter_configs("broker", "", {"max.broker.partitions": 5, "max.partitions": 4})
            admin.create_topic("t", 4)
            metrics = measure(first)
            assert 'trimtab_broker_replicas{broker="0"} 4.0' in metrics
            assert 'trimtab_broker_replicas_limit{broker="0"} 5.0' in metrics
            assert "trimtab_cluster_replicas_limit 4.0" in metrics
            assert 'trimtab_limit_rejections_total{limit="max.broker.partitions"} 1.0' in metrics
            assert first.end(signal.SIGTERM) == 0
        with started(tmp_path, "second", *controller) as second:
            second.stdout.readline()
            assert "at most 0 can be placed (max.broker.partitions=5, max.partitions=4;" in refusal(
                admin, 1
            )
            admin.alter_configs("broker", "", {"max.partitions": None})
            assert "at most 1 can be placed (max.broker.partitions=5," in refusal(admin, 2)
            admin.create_topic("u", 1)
