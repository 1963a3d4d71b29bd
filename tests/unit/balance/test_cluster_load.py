from trimtab.balance.cluster_load import PartitionLoad
from trimtab.kafka.records import TopicPartition


def test_a_leader_sends_to_consumers_and_to_each_follower() -> None:
    alone = PartitionLoad(TopicPartition("t", 0), (1,), 1, frozenset({1}), 100.0, 250.0, 0)
    assert alone.leader_out == 250
    assert alone._replace(replicas=(1, 2, 3)).leader_out == 250 + 2 * 100
