"""The throughput of this machine: bytes over the loopback interface into files, unexamined.

usage: python -m lab.benchmarks.loopback sender PORT BYTES | receiver PORT DIRECTORY

The control for `send_table`: a bare loop writes as many bytes as its batches have into a socket,
and a receiving process writes them to a file, which is replaced before it grows large. The sender
prints a JSON line when the receiver has all bytes.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lab.processes import free_ports

CHUNK_BYTES = 1024 * 1024
SEGMENT_BYTES = 256 * 1024 * 1024


def carry(size: int) -> dict[str, float]:
    """`seconds` and the sender's `cpu_seconds` to carry `size` bytes."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "lab.benchmarks.loopback"]
    with (
        tempfile.TemporaryDirectory(prefix="trimtab-bench-") as directory,
        subprocess.Popen(
            [*command, "receiver", str(port), directory], stdout=subprocess.PIPE, text=True
        ) as receiver,
    ):
        assert receiver.stdout is not None
        receiver.stdout.readline()  # the receiver listens
        done = subprocess.run(
            [*command, "sender", str(port), str(size)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        answer: dict[str, float] = json.loads(done.stdout)
    return answer


def receive(port: int, directory: Path) -> None:
    with socket.create_server(("127.0.0.1", port)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with open(directory / "segment", "wb", buffering=0) as file:
        while count := connection.recv_into(buffer):
            file.write(buffer[:count])
            if file.tell() >= SEGMENT_BYTES:
                file.truncate(0)
                file.seek(0)
    connection.close()  # tells the sender that all bytes have arrived


def send(port: int, size: int) -> None:
    chunk = memoryview(bytearray(b"x" * CHUNK_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        cpu, wall = time.process_time(), time.perf_counter()
        rest = size
        while rest > 0:
            connection.sendall(chunk[: min(rest, CHUNK_BYTES)])
            rest -= CHUNK_BYTES
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"seconds": wall, "cpu_seconds": cpu}))


if __name__ == "__main__":
    if sys.argv[1] == "sender":
        send(int(sys.argv[2]), int(sys.argv[3]))
    else:
        receive(int(sys.argv[2]), Path(sys.argv[3]))
