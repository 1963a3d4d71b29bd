"""Checks an installed trimtab: it is compiled, and a record goes through an embedded cluster."""

from trimtab import Cluster, Consumer, Producer
from trimtab._pure import is_compiled

assert is_compiled(), "trimtab runs interpreted"
with Cluster(brokers=1) as cluster:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("tour", b"a record").result()
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("tour", 0)])
        (record,) = consumer.poll(timeout_ms=10_000)
assert record.value == b"a record"
print("compiled; a record was sent and read")
