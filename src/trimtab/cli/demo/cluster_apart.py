"""The demo's cluster in a separate process, so that brokers and producers each have a core."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trimtab.errors import Unavailable


@contextmanager
def cluster_apart(racks: Sequence[str], slow_broker: int, slow_ms: int) -> Iterator[str]:
    """Run a cluster until the end of the block, or of this process.

    Args:
        racks: each broker's rack.
        slow_broker: the broker that answers produce requests late.
        slow_ms: by how many milliseconds.

    Yields:
        The cluster's bootstrap servers.

    Raises:
        Unavailable: the cluster did not start; its process has printed the reason.
    """
    command = [sys.executable, "-m", __name__, json.dumps([list(racks), slow_broker, slow_ms])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            servers = process.stdout.readline().strip()
            if not servers:
                raise Unavailable("the demo's cluster did not start: its error is above")
            yield servers
        finally:
            process.stdin.close()
            process.wait()


def _serve(racks: Sequence[str], slow_broker: int, slow_ms: int) -> None:
    # Ctrl-C in a terminal reaches every process; this one ends when the demo closes its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from trimtab.cluster import Cluster

    with Cluster(brokers=len(racks), racks=racks) as cluster:
        cluster.slow(slow_broker, slow_ms)
        print(cluster.bootstrap_servers, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))
