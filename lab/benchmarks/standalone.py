"""Spark's own cluster manager: a master and two workers, in processes of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.processes import free_ports

_STOP_SECONDS = 60


@contextmanager
def standalone(
    home: Path, directory: Path, environment: Mapping[str, str], cores: int = 1
) -> Iterator[str]:
    """Yields the master's URL.

    Args:
        home: where Spark is installed.
        directory: for logs, and what the workers `worker-0` and `worker-1` keep.
        environment: of all these processes and of the executors.
        cores: of each worker.
    """
    master, *ports = free_ports(6)
    url = f"spark://127.0.0.1:{master}"
    commands = [["org.apache.spark.deploy.master.Master", "--port", str(master)]]
    commands += [
        [
            *("org.apache.spark.deploy.worker.Worker", url, "--cores", str(cores)),
            *("--memory", "1g", "--port", str(ports.pop())),
            *("--work-dir", str(directory / f"worker-{number}")),
        ]
        for number in (0, 1)
    ]
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context((directory / f"process-{number}.log").open("wb"))
            process = subprocess.Popen(
                [
                    *(str(home / "bin" / "spark-class"), *command),
                    *("--host", "127.0.0.1", "--webui-port", str(ports.pop())),
                ],
                env={**environment, "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait, _STOP_SECONDS)
            stack.callback(process.terminate)
        yield url
