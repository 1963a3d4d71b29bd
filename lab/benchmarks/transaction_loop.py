"""trimtab's producer of transactions, or consumer of them, in its own process. Prints a JSON line.

usage: python -m lab.benchmarks.transaction_loop
           send ADDRESS TOPIC RECORDS BYTES TRANSACTIONS WARM_UP
           read ADDRESS TOPIC PARTITIONS RECORDS ISOLATION

`send` commits WARM_UP transactions of RECORDS records, then the TRANSACTIONS that it measures. The
line has their `seconds`, and in `commit_ms` how long each call of commit_transaction took. It waits
for the records that are not acknowledged yet. `java/TransactionLoop.java` does the same.

`read` reads RECORDS records from the beginning of the topic, in lists, without a group. The line
has the `seconds` and the `bytes` of the values. The time does not include the connection.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from lab.benchmarks.consumer_loop import AT_ONCE
from trimtab import Consumer, Producer


def send(
    address: str, topic: str, records: str, size: str, transactions: str, warm_up: str
) -> dict[str, object]:
    """Commit transactions, one after the other."""
    count, value = int(records), bytes(int(size))
    commit_ms = []
    with Producer(address, transactional_id=topic) as producer:
        producer.init_transactions()
        append = producer.send
        began = 0.0
        for number in range(-int(warm_up), int(transactions)):
            if number == 0:
                began = time.perf_counter()
            producer.begin_transaction()
            for _ in range(count):
                append(topic, value)
            before = time.perf_counter()
            producer.commit_transaction()
            if number >= 0:
                commit_ms.append((time.perf_counter() - before) * 1000)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "commit_ms": commit_ms}


def read(
    address: str, topic: str, partitions: str, records: str, isolation: str
) -> dict[str, object]:
    """Read a topic in lists."""
    wanted = int(records)
    with Consumer(
        {"bootstrap.servers": address, "isolation.level": isolation}, auto_offset_reset="earliest"
    ) as consumer:
        assigned = [(topic, number) for number in range(int(partitions))]
        consumer.end_offsets(assigned)
        consumer.assign(assigned)
        count = size = 0
        began = time.perf_counter()
        while count < wanted:
            found = consumer.poll(max_records=min(AT_ONCE, wanted - count))
            for record in found:
                size += len(record.value or b"")
            count += len(found)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "bytes": size}


LOOPS: dict[str, Callable[..., dict[str, object]]] = {"send": send, "read": read}


if __name__ == "__main__":
    print(json.dumps(LOOPS[sys.argv[1]](*sys.argv[2:])))
