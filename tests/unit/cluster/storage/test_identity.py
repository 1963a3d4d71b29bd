from __future__ import annotations

from random import Random

import pytest

from trimtab.cluster.storage.identity import find_cluster_id, identify_cluster, make_cluster_id
from trimtab.kafka.errors import UsageError
from trimtab.sim.disk import VirtualDisk


def test_a_new_directory_gets_an_id_and_keeps_it() -> None:
    disk = VirtualDisk()
    assert find_cluster_id(disk) is None
    made = identify_cluster(disk, Random(1))
    assert find_cluster_id(disk) == made
    assert identify_cluster(disk, Random(2)) == made


def test_an_id_is_a_uuid_as_kafka_writes_it_and_no_option_of_a_command_line() -> None:
    random = Random(1)
    made = {make_cluster_id(random) for _ in range(500)}
    assert len(made) == 500
    assert {len(each) for each in made} == {22}
    assert not [each for each in made if each.startswith("-")]


def test_the_id_in_a_brokers_directory_is_found_as_kafka_wrote_it() -> None:
    disk = VirtualDisk()
    disk.write_file("meta.properties", b"#\nnode.id=1\nversion=1\ncluster.id=abc\n")
    assert find_cluster_id(disk) == "abc"


def test_a_directory_in_use_gets_no_id() -> None:
    disk = VirtualDisk()
    disk.lock()
    with pytest.raises(UsageError):
        identify_cluster(disk, Random(1))
    assert find_cluster_id(disk) is None
