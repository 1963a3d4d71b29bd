"""`python -m benchmarks [STAGE …] [--runs N] [--records N]`."""

from __future__ import annotations

import argparse
import importlib
import sys

STAGES = {
    "batch": "record batches: compiled beside interpreted",
    "startup": "start to the first Metadata answer, and memory: beside Apache Kafka",
    "broker": "driven by Java's ProducerPerformance: beside Apache Kafka, fresh and warm",
    "replication": "three brokers, RF 3, acks=all, Java's tool: beside Apache Kafka",
    "partitions": "10 to 10,000 on each broker, 30,000 in a topic: beside Apache Kafka",
    "fetch": "KIP-74: responses bounded in bytes, partitions served fairly: beside Apache Kafka",
    "placement": "KIP-578: beside brute force and the proposal's own rule; what fetches notice",
    "reassignment": "plans of moves: beside brute force and Kafka's own; carried out under load",
    "kills": "kill -9 of a node every 5 s for 10 minutes, under Java's producer and ours",
    "patience": "a healthy client beside half-open, slow, garbling, replaying ones; limits",
    "largest": "the largest request of each API: how long others wait, and the memory it takes",
    "producer": "Producer.send in a plain loop: beside confluent-kafka and aiokafka",
    "table": "send_table: beside confluent-kafka, and what the machine carries",
    "java": "Producer.send: beside Java's ProducerPerformance, also with up to 10,000 partitions",
    "sending": "the sender's own cost for each batch, from 10 to 10,000 partitions",
    "partitioning": "partitioners over slow, dying, throttled brokers: a study in virtual time",
    "turns": "what it costs to choose a partition, from 10 to 10,000 of them",
    "kip794": "the proposal's test series, on our cluster and Apache Kafka: beside Java's producer",
    "segments": "batch headers from log segments on disk, as load tables read them",
    "micro_batch": "small micro-batches, four tasks: beside Spark's own Kafka connector",
    "spark": "reading a topic into Spark: beside Spark's own Kafka connector",
    "stream_bytes": "a stream bounded in bytes: beside Spark's own Kafka connector",
    "exactly_once": "a stream into Apache Kafka, its processes killed at every step: lost, doubled",
    "spark_write": "writing a DataFrame, and streams: beside Spark's own Kafka connector",
}


def main() -> int:
    listing = "\n".join(f"  {name:<13}{what}" for name, what in STAGES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
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
        importlib.import_module(f"benchmarks.{stage}").run(arguments.runs, arguments.records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
