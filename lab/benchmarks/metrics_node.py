"""A cluster in its own process whose broker counts requests only while it is told to.

usage: python -m lab.benchmarks.metrics_node

It prints `ADDRESS METRICS_PORT`, then answers each line of standard input, `on` or `off`, with the
process's CPU seconds so far. Connections that are opened afterwards are counted, or not.
"""

from __future__ import annotations

import sys
import time

from trimtab import Cluster
from trimtab.cluster.processes.metrics_server import BrokerMetrics, MetricsServer


def main() -> None:
    with Cluster() as cluster:
        broker = cluster._brokers[0].broker
        server = MetricsServer(BrokerMetrics(broker))
        cluster._run(server.listen, "127.0.0.1", 0)
        print(cluster.bootstrap_servers, server.port, flush=True)
        requests = broker.listener.requests
        for line in sys.stdin:
            broker.listener.requests = requests if line.strip() == "on" else None
            print(time.process_time(), flush=True)


if __name__ == "__main__":
    main()
