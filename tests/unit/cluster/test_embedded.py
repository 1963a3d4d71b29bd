"""A cluster on real sockets and real files, from both faces."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from trimtab import Admin, BrokerError, Producer, TopicPartition
from trimtab.cluster.disk.descriptors import files_per_storage
from trimtab.cluster.disk.files import DirectoryStorage
from trimtab.cluster.embedded import Cluster
from trimtab.cluster.storage.storage import StorageError
from trimtab.kafka.errors import UsageError
from trimtab.kafka.wire.framing import decode_response, encode_request
from trimtab.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from trimtab.sim.world import World


def metadata(address: tuple[str, int], *create: str) -> Any:
    """Ask a broker for all topics, or have it create some, over a plain socket."""
    topics = [MetadataRequestTopic(name=name) for name in create] if create else None
    frame = b"".join(bytes(p) for p in encode_request(MetadataRequest(topics=topics), 9, 1, "t"))
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(frame)
        stream = connection.makefile("rb")
        size = int.from_bytes(stream.read(4), "big")
        return decode_response(MetadataResponse, 9, stream.read(size))


def test_brokers_answer_with_their_racks_and_addresses() -> None:
    with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
        addresses = cluster.addresses
        assert cluster.bootstrap_servers == ",".join(f"{host}:{port}" for host, port in addresses)
        for address in addresses:
            response = metadata(address)
            assert [(each.host, each.port) for each in response.brokers] == addresses
            assert [each.rack for each in response.brokers] == ["a", "b", "c"]
    assert cluster.addresses == []
    with pytest.raises(ConnectionRefusedError):
        metadata(addresses[0])


def test_a_broker_says_where_it_is_and_where_its_data_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Cluster(brokers=2, data="a,b") as cluster:
        servers = cluster.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            for broker, server in enumerate(servers.split(",")):
                options = {each.name: each for each in admin.describe_configs("broker", broker)}
                assert options["advertised.listeners"].value == f"PLAINTEXT://{server}"
                assert options["listeners"].value == f"PLAINTEXT://{server}"
                assert options["log.dirs"].value == f"{tmp_path}/a,b/broker-{broker}"
                assert {
                    options[name].source.name
                    for name in ("advertised.listeners", "listeners", "log.dirs", "node.id")
                } == {"STATIC_BROKER_CONFIG"}


def test_topics_and_identity_survive_a_restart(tmp_path: Path) -> None:
    cluster = Cluster(brokers=2, data=tmp_path, config={"num_partitions": 2})
    seen = []
    for _ in range(2):
        with cluster:
            metadata(cluster.addresses[0], "t")
            response = metadata(cluster.addresses[1])
            leaders = [part.leader_id for part in response.topics[0].partitions]
            seen.append((response.cluster_id, [t.name for t in response.topics], leaders))
    assert seen[0] == seen[1]
    assert {path.name for path in tmp_path.iterdir()} == {"controller", "broker-0", "broker-1"}
    for broker in (0, 1):
        assert (tmp_path / f"broker-{broker}" / ".kafka_cleanshutdown").exists()
    with pytest.raises(UsageError, match="brokers=1: the data are those of 2 brokers"):
        Cluster(brokers=1, data=tmp_path).start()


def test_data_in_use_are_refused(tmp_path: Path) -> None:
    with (
        Cluster(data=tmp_path) as cluster,
        pytest.raises(UsageError, match="in use"),
        Cluster(data=tmp_path),
    ):
        pass
    with cluster:  # and they are free again
        metadata(cluster.addresses[0])


def test_temporary_data_go_with_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Cluster() as cluster:
        metadata(cluster.addresses[0], "t")
        assert list(tmp_path.glob("trimtab-*/broker-0/meta.properties"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "end", ["", "raise KeyboardInterrupt", "import gc; del cluster; gc.collect()"]
)
def test_a_cluster_that_nobody_stops_leaves_nothing_at_exit(tmp_path: Path, end: str) -> None:
    script = f"""
from trimtab import Cluster, Producer
cluster = Cluster(brokers=2).start()
producer = Producer(cluster.bootstrap_servers)
producer.send("t", b"sent before the exit").add_done_callback(lambda each: print(each))
{end}
"""
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "<Delivery to t-0, stored at offset 0>\n"
    warnings = [line for line in done.stderr.splitlines() if line.startswith(("unclosed", "ERROR"))]
    assert warnings == []
    assert not list(tmp_path.iterdir())


def test_a_cluster_shows_what_it_is() -> None:
    cluster = Cluster(brokers=2)
    assert repr(cluster) == "<Cluster of 2 brokers, not up>"
    with cluster:
        assert repr(cluster) == f"<Cluster at {cluster.bootstrap_servers}>"
        cluster.kill_broker(0)
        assert repr(cluster) == f"<Cluster at {cluster.bootstrap_servers}, down: [0]>"


def test_the_nodes_share_the_open_files_of_the_program(tmp_path: Path) -> None:
    storage = Cluster(brokers=3, data=tmp_path)._directory("broker-0")
    assert isinstance(storage, DirectoryStorage)
    assert storage._max_open_files == files_per_storage(4)


def test_ports_can_be_chosen() -> None:
    with Cluster(brokers=2) as free:
        ports = [port for _, port in free.addresses]
    with Cluster(brokers=2, ports=ports) as cluster:
        assert [port for _, port in cluster.addresses] == ports
        taken = Cluster(ports=ports[0])
        with pytest.raises(OSError, match="in use"):
            taken.start()
        assert taken.addresses == []


def test_a_start_that_fails_does_not_vouch_for_the_logs(tmp_path: Path) -> None:
    with Cluster(data=tmp_path):
        pass
    mark = tmp_path / "broker-0" / ".kafka_cleanshutdown"
    assert mark.exists()
    with Cluster() as other:
        port = other.addresses[0][1]
        with pytest.raises(OSError, match="in use"):
            Cluster(data=tmp_path, ports=port).start()
    assert not mark.exists()
    with Cluster(data=tmp_path) as cluster:
        metadata(cluster.addresses[0])
    assert mark.exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"brokers": 0}, "brokers=0: must be from 1"),
        ({"brokers": 2, "racks": ["a"]}, "1 racks for 2 brokers"),
        ({"brokers": 2, "ports": [1]}, "1 ports for 2 brokers"),
        ({"brokers": 2, "ports": 65535}, "port=65536: must be from 0 to 65535"),
        ({"brokers": "3"}, "brokers='3': is of type str; give an int"),
        ({"brokers": True}, "brokers=True: is of type bool"),
        ({"racks": "a"}, "racks='a': give a list"),
        ({"racks": [5]}, "rack=5: is of type int; give a str"),
        ({"data": 5}, "data=5: give a directory"),
        ({"data": b"d"}, "give a directory as a str"),
        ({"ports": "9092"}, "ports='9092': give the first port, or a list"),
        ({"ports": ["9092"]}, "port='9092': is of type str"),
        ({"ports": 1.5}, "give the first port, or a list"),
        ({"host": 5}, "host=5: is of type int"),
        ({"config": ["a"]}, "config=.*give a dictionary"),
        ({"config": {5: 5}}, "the name of an option is a str"),
        ({"host": "0.0.0.0"}, "reached from other machines.*insecure=True"),
        ({"config": {"num.partition": 1}}, "did you mean num.partitions"),
        ({"config": {"broker.rack": "a"}}, "broker.rack differs from broker to broker"),
        ({"config": {"group.consumer.session.timeout.ms": 70_000}}, "max.session.timeout.ms=60000"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Cluster(**arguments)


def test_other_machines_may_reach_it_on_demand() -> None:
    with Cluster(host="0.0.0.0", insecure=True) as cluster:
        ((host, port),) = cluster.addresses
        assert host == "0.0.0.0"
        with Admin(bootstrap_servers=f"127.0.0.1:{port}") as admin:
            admin.create_topic("t")


def test_a_fault_needs_a_broker_that_is_up() -> None:
    cluster = Cluster()
    with pytest.raises(UsageError, match="broker=0: brokers that are up: none"):
        cluster.slow()
    with cluster:
        cluster.slow(produce_ms=5)
        with pytest.raises(UsageError, match="broker=1"):
            cluster.slow(broker=1)
        with pytest.raises(UsageError, match="up already"):
            cluster.start()
    cluster.stop()  # once more does nothing


def leaders(address: tuple[str, int]) -> dict[int, int]:
    """The leader of each partition of topic t, according to its broker."""
    return {each.partition_index: each.leader_id for each in metadata(address).topics[0].partitions}


@pytest.mark.parametrize("end", ["stop_broker", "kill_broker"])
def test_a_broker_that_ends_is_replaced_and_comes_back_on_its_port(end: str) -> None:
    with (
        Cluster(brokers=3) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        admin.create_topic("t", partitions=3, replication_factor=3)
        addresses = cluster.addresses
        first = producer.send("t", b"before", partition=0).result()
        leader = leaders(addresses[0])[0]
        others = [address for broker, address in enumerate(addresses) if broker != leader]
        getattr(cluster, end)(leader)
        assert cluster.addresses == others
        with pytest.raises(ConnectionRefusedError):
            metadata(addresses[leader])
        second = producer.send("t", b"while it is away", partition=0).result()
        assert (first.offset, second.offset) == (0, 1)
        assert leader not in leaders(others[0]).values()
        cluster.start_broker(leader)
        assert cluster.addresses == addresses
        assert metadata(addresses[leader]).cluster_id == metadata(others[0]).cluster_id


def test_a_broker_whose_directory_is_deleted_is_down_until_it_is_started_again(
    tmp_path: Path,
) -> None:
    with (
        Cluster(brokers=3, data=tmp_path) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        admin.create_topic("t", partitions=1, replication_factor=3)
        addresses = cluster.addresses
        producer.send("t", b"before").result()
        leader = leaders(addresses[0])[0]
        rmtree(tmp_path / f"broker-{leader}")
        assert producer.send("t", b"after").result().offset == 1
        others = [address for broker, address in enumerate(addresses) if broker != leader]
        assert cluster.addresses == others
        with pytest.raises(UsageError, match=f"broker={leader}: brokers that are up"):
            cluster.stop_broker(leader)
        assert not (tmp_path / f"broker-{leader}").exists()
        cluster.start_broker(leader)
        assert cluster.addresses == addresses


def test_a_slow_broker_is_slow_again_when_it_comes_back() -> None:
    with Cluster() as cluster:
        cluster.slow(produce_ms=20)
        cluster.stop_broker(0)
        cluster.start_broker(0)
        assert cluster._find(0).broker.listener.faults.produce_delay_s == 0.02


def test_only_brokers_that_are_up_end_and_only_others_start() -> None:
    with Cluster() as cluster:
        with pytest.raises(UsageError, match="broker=0: it is up already"):
            cluster.start_broker(0)
        with pytest.raises(UsageError, match="broker=1: brokers are 0 to 0"):
            cluster.start_broker(1)
        cluster.kill_broker(0)
        for end in (cluster.stop_broker, cluster.kill_broker):
            with pytest.raises(UsageError, match="broker=0: brokers that are up: none"):
                end(0)

    async def scenario() -> None:
        async with Cluster() as cluster:
            with pytest.raises(UsageError, match="enter it with `with`"):
                cluster.stop_broker(0)

    asyncio.run(scenario())


QUICK = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "broker.heartbeat.interval.ms": 100,
    "broker.session.timeout.ms": 500,
    "replica.lag.time.max.ms": 500,
}


@pytest.fixture
def three() -> Iterator[tuple[Cluster, Admin, Producer]]:
    """Three brokers that elect leaders soon, topic t with a record in each of its three partitions,
    and a producer that waits for two replicas."""
    with (
        Cluster(brokers=3, config=QUICK) as cluster,
        Admin(cluster.bootstrap_servers, request_timeout_ms=1000) as admin,
        Producer(
            cluster.bootstrap_servers, acks="all", linger_ms=0, request_timeout_ms=1000
        ) as producer,
    ):
        admin.create_topic("t", partitions=3)
        for partition in range(3):
            producer.send("t", b"before", partition=partition).result()
        yield cluster, admin, producer


def in_sync(admin: Admin, count: int) -> None:
    """Return once every partition of topic t has as many replicas in sync."""
    while any(
        len(each.in_sync_replicas) != count for each in admin.describe_topics(["t"])["t"].partitions
    ):
        pass


def refuses_or_is_silent(address: tuple[str, int]) -> type[OSError]:
    with socket.create_connection(address) as connection:
        connection.settimeout(0.1)
        request = encode_request(MetadataRequest(topics=None), 9, 1, "t")
        connection.sendall(b"".join(map(bytes, request)))
        with pytest.raises(OSError, match=r"timed out|refused|reset") as error:
            connection.recv(1)
        return error.type


def test_a_broker_that_is_cut_off_is_replaced_and_catches_up(
    three: tuple[Cluster, Admin, Producer],
) -> None:
    cluster, admin, producer = three
    addresses = cluster.addresses
    cluster.isolate(0)
    for partition in range(3):
        assert producer.send("t", b"while", partition=partition).result().offset == 1
    for each in admin.describe_topics(["t"])["t"].partitions:
        assert each.leader != 0
        assert set(each.in_sync_replicas) == {1, 2}
    assert refuses_or_is_silent(addresses[0]) is TimeoutError
    assert cluster.addresses == addresses
    cluster.heal()
    assert len(metadata(addresses[1]).brokers) == 3  # it takes part
    assert 0 not in leaders(addresses[0]).values()  # and knows what was decided
    in_sync(admin, 3)
    cluster.heal()  # once more does nothing


def test_two_brokers_that_are_cut_from_each_other_do_not_follow_each_other(
    three: tuple[Cluster, Admin, Producer],
) -> None:
    cluster, admin, producer = three
    cluster.isolate(1, 2)
    for partition in range(3):
        producer.send("t", b"while", partition=partition).result()
    found = admin.describe_topics(["t"])["t"].partitions
    for each in found:
        if each.leader in (1, 2):
            assert set(each.in_sync_replicas) == {0, each.leader}
    assert {each.leader for each in found} == {0, 1, 2}
    metadata(cluster.addresses[1])  # clients reach all
    cluster.heal()
    in_sync(admin, 3)


def test_a_loss_of_power_loses_what_was_not_flushed(
    three: tuple[Cluster, Admin, Producer],
) -> None:
    cluster, admin, producer = three
    addresses = cluster.addresses
    log = Path(cluster._path("broker-2")) / "t-0" / "00000000000000000000.log"
    in_sync(admin, 3)
    for _ in range(20):
        producer.send("t", bytes(10_000), partition=0).result()
    in_sync(admin, 3)
    written = log.read_bytes()
    with socket.create_connection(addresses[2]) as connection:
        metadata(addresses[2])
        cluster.power_off(2)
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):  # nobody has closed it
            connection.recv(1)
        assert cluster.down == [2]
        assert log.read_bytes() != written
        with pytest.raises(ConnectionRefusedError):
            metadata(addresses[2])
        assert producer.send("t", b"while", partition=0).result().offset == 21
        cluster.start_broker(2)
        connection.settimeout(10)
        with suppress(ConnectionResetError):  # by the host that has booted again
            assert connection.recv(1) == b""
    assert cluster.addresses == addresses
    in_sync(admin, 3)
    assert log.read_bytes()[: len(written)] == written  # fetched from the leader


def test_a_broker_without_power_stays_away_when_others_are_healed(
    three: tuple[Cluster, Admin, Producer],
) -> None:
    cluster, admin, _ = three
    cluster.isolate(1)
    with socket.create_connection(cluster.addresses[2]) as connection:
        cluster.power_off(2)
        cluster.heal()
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        cluster.start_broker(2)
    in_sync(admin, 3)


def test_a_broker_that_is_cut_off_stays_so_when_it_starts(
    three: tuple[Cluster, Admin, Producer],
) -> None:
    cluster, _, _ = three
    cluster.isolate(1, 2)
    cluster.power_off(2)
    cluster.start_broker(2)
    assert cluster._faults[2]._cut == {cluster.addresses[1]}
    cluster.isolate(2)
    cluster.kill_broker(2)
    with pytest.raises(UsageError, match="broker=2: it is cut off and would wait for ever: heal"):
        cluster.start_broker(2)
    cluster.heal()
    cluster.start_broker(2)


def test_a_broker_whose_disk_is_full_ends_and_is_up_once_it_is_free(
    three: tuple[Cluster, Admin, Producer],
) -> None:
    cluster, admin, producer = three
    cluster.fill_disk(1)
    for partition in range(3):
        assert producer.send("t", b"while", partition=partition).result().offset == 1
    in_sync(admin, 2)
    assert cluster.down == [1]
    cluster.free_disk(1)
    assert cluster.down == []
    in_sync(admin, 3)
    cluster.free_disk(1)  # once more does nothing
    cluster.fill_disk(1)
    cluster.kill_broker(1)
    with pytest.raises(StorageError, match="No space left"):
        cluster.start_broker(1)
    cluster.free_disk(1)
    assert cluster.down == [1]  # as it was killed
    cluster.start_broker(1)


def test_faults_end_with_the_cluster(tmp_path: Path) -> None:
    cluster = Cluster(brokers=2, data=tmp_path)
    with cluster:
        addresses = cluster.addresses
        with socket.create_connection(addresses[0]) as connection:
            cluster.isolate(0)
            cluster.fill_disk(1)
            cluster.stop()
            connection.settimeout(10)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    with cluster:
        for address in cluster.addresses:
            metadata(address, "t")
        assert cluster.down == []


def test_the_asynchronous_face_runs_on_the_running_loop() -> None:
    async def scenario() -> None:
        async with Cluster() as cluster:
            response = await asyncio.to_thread(metadata, cluster.addresses[0])
            assert len(response.brokers) == 1

    asyncio.run(scenario())


def test_a_cluster_runs_in_a_virtual_world() -> None:
    async def scenario(world: World) -> list[str]:
        async with Cluster(
            brokers=3, storage=world.disk, now_ms=world.now_ms, random=world.random("cluster")
        ) as cluster:
            return [host for host, _ in cluster.addresses]

    with World(seed=1) as world:
        assert world.run(scenario(world)) == ["127.0.0.1"] * 3
        assert world.disk("broker-2").exists("meta.properties")


def test_a_given_storage_does_not_fail_on_request(tmp_path: Path) -> None:
    with Cluster(storage=lambda name: DirectoryStorage(tmp_path / name)) as cluster:
        for call in (cluster.power_off, cluster.fill_disk):
            with pytest.raises(UsageError, match="broker=0: its disk cannot fail, as the cluster"):
                call(0)
        cluster.free_disk(0)
        metadata(cluster.addresses[0])


def test_wrong_arguments_of_a_clusters_methods_break_nothing() -> None:
    wrong: list[Any] = ["0", None, True, 1.5, [0], "x"]
    with Cluster() as cluster:
        for broker in wrong:
            for call in (
                cluster.slow,
                cluster.start_broker,
                cluster.stop_broker,
                cluster.kill_broker,
                cluster.power_off,
                cluster.fill_disk,
                cluster.free_disk,
                cluster.isolate,
            ):
                with pytest.raises(UsageError, match="broker="):
                    call(broker)
            if broker is not None:
                with pytest.raises(UsageError, match="other="):
                    cluster.isolate(0, broker)
        with pytest.raises(UsageError, match="other=0: is the broker itself"):
            cluster.isolate(0, 0)
        with pytest.raises(UsageError, match="broker=1: brokers are 0 to 0"):
            cluster.isolate(1)
        for produce_ms in ("20", None, True, [1], -1, float("nan")):
            with pytest.raises(UsageError, match="produce_ms="):
                cluster.slow(0, produce_ms)  # type: ignore[arg-type]
        metadata(cluster.addresses[0])


def test_an_older_directory_gets_a_secret_when_it_starts(tmp_path: Path) -> None:
    secret = tmp_path / "controller" / "cluster.secret"
    cluster = Cluster(brokers=2, data=tmp_path)
    with cluster:
        metadata(cluster.addresses[0], "t")
    secret.unlink()
    with cluster:
        assert [topic.name for topic in metadata(cluster.addresses[1]).topics] == ["t"]
        made = cluster.node_options["sasl.password"]
    assert made in secret.read_text()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_only_who_has_the_clusters_secret_writes_markers() -> None:
    with Cluster() as cluster, Producer(cluster.bootstrap_servers, transactional_id="x") as mine:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", 1)
        mine.init_transactions()
        mine.begin_transaction()
        mine.send("t", b"v", partition=0).result(30)
        where = TopicPartition("t", 0)
        with Admin(cluster.bootstrap_servers) as stranger:
            (found,) = stranger.describe_producers([where])[where]
            marker = found.producer_id, found.epoch, 0
            with pytest.raises(BrokerError, match=r"CLUSTER_AUTHORIZATION_FAILED .* log in"):
                stranger.abort_transaction(where, *marker)
            (found,) = stranger.describe_producers([where])[where]
            assert found.open_since_offset == 0
        with Admin(cluster.bootstrap_servers, **cluster.node_options) as operator:
            operator.abort_transaction(where, *marker)
            (found,) = operator.describe_producers([where])[where]
            assert found.open_since_offset == -1
        mine.abort_transaction()
    with pytest.raises(UsageError, match="not up"):
        _ = cluster.node_options
