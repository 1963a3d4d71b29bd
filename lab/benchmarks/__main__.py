"""`python -m lab.benchmarks [STAGE …] [--runs N] [--records N]`."""

from __future__ import annotations

import argparse
import importlib
import sys

STAGES = {
    "batch": "record batches, compiled and interpreted",
    "startup": "time from start to the first Metadata answer, and memory; with Apache Kafka",
    "plugin": "100 tests on the pytest plugin; with Apache Kafka per session and per test",
    "broker": "a broker under Java's ProducerPerformance; with Apache Kafka, fresh and warmed up",
    "replication": "three brokers, RF 3, acks=all, under Java's tool; with Apache Kafka",
    "partitions": "10 to 10,000 partitions per broker, 30,000 in a topic; with Apache Kafka",
    "fetch": "KIP-74: size of fetch responses, fairness between partitions; with Apache Kafka",
    "placement": "KIP-578: placement; with brute force and the proposal's rule",
    "reassignment": "reassignment plans, executed under load; with brute force and Kafka's tool",
    "skew": "`trimtab skew` on a file of keys; with pandas counting the same keys",
    "hot_keys": "bytes by partition with treated keys; with hashing, PKG and D-Choices",
    "level": "plans that level a cluster; with one greedy goal after another",
    "day": "a day of 30 brokers under `balance --watch`, in virtual time; with greedy goals",
    "relief": "a broker that becomes slow, or leads everything, under load; also on Apache Kafka",
    "what_if": "forecasts of `what-if`, and what comes when the changes are made; a large day",
    "dashboard": "CPU, memory and times of the page, with 9,000 topics and 40,000 partitions",
    "move_kills": "the executor of moves and brokers, killed while partitions move; also on Kafka",
    "kills": "kill -9 of a node every 5 s for 10 minutes, under Java's producer and trimtab's",
    "groups": "large groups and many of them: settling, commits/s, memory; with Apache Kafka",
    "group_scenes": "groups of each client: members come and go, the coordinator is killed",
    "transactions": "transactions/s, commit p50 and p99, read_committed; with Apache Kafka",
    "transaction_scenes": "chains of transactional copiers of each client, killed, as are brokers",
    "metrics": "a broker's metrics, scraped every second; with the same broker without them",
    "patience": "a healthy client while hostile ones attack the broker; the broker's limits",
    "largest": "the largest request of each API: other clients' waiting time, and memory",
    "producer": "Producer.send in a loop; with confluent-kafka and aiokafka",
    "table": "send_table; with confluent-kafka and the machine's limit",
    "java": "Producer.send with up to 10,000 partitions; with Java's ProducerPerformance",
    "consumer": "iteration, lists, columns; with confluent-kafka, aiokafka, kafkarrow, Java's tool",
    "frames": "trimtab.read to Polars, DuckDB, pandas; with loops of confluent-kafka and aiokafka",
    "reading": "a broker under Java's ConsumerPerformance; with Apache Kafka",
    "consumer_memory": "peak memory of consumers; with confluent-kafka, aiokafka, kafka-python",
    "sending": "CPU of the sender per batch, from 10 to 10,000 partitions",
    "partitioning": "a study in virtual time: partitioners with slow, failing or throttled brokers",
    "turns": "CPU to choose a partition, from 10 to 10,000 partitions",
    "kip480": "KIP-480's setting on trimtab and Apache Kafka; with Java's producer",
    "kip794": "KIP-794's test series on trimtab and Apache Kafka; with Java's producer",
    "segments": "batch headers from log segments on disk, as load tables read them",
    "micro_batch": "small micro-batches, four tasks; with Spark's own Kafka connector",
    "spark": "reading a topic into Spark; with Spark's own Kafka connector",
    "stream_bytes": "a stream limited in bytes; with Spark's own Kafka connector",
    "exactly_once": "a stream into Apache Kafka, its processes killed: records lost, duplicated",
    "spark_write": "writing a DataFrame; with Spark's own Kafka connector",
}


def main() -> int:
    listing = "\n".join(f"  {name:<20}{what}" for name, what in STAGES.items())
    parser = argparse.ArgumentParser(
        prog="python -m lab.benchmarks",
        description=__doc__,
        epilog=f"stages:\n{listing}\n\nRivals are fetched on first use; those in Java need Java 17 "
        "and Maven. If a rival cannot be fetched, the report says so.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="stages to run (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each side (default: 5)")
    parser.add_argument(
        "--records", type=int, default=3_000_000, help="records per run (default: 3 million)"
    )
    arguments = parser.parse_args()
    for stage in arguments.stages:
        if stage not in STAGES:
            parser.error(f"no stage {stage!r}: stages are {', '.join(STAGES)}")
    for stage in arguments.stages or STAGES:
        importlib.import_module(f"lab.benchmarks.{stage}").run(arguments.runs, arguments.records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
