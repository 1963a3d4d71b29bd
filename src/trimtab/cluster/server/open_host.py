"""A cluster asks no client who it is: it listens beyond its machine only on demand."""

from __future__ import annotations

import socket

from trimtab.kafka.errors import UsageError

INSECURE = (
    "listen on an address that other machines can reach, although clients are not asked who they "
    "are, and nothing is encrypted"
)


def refuse_open_host(host: str, insecure: bool) -> None:
    """
    Raises:
        UsageError: other machines can reach this host, and the user has not agreed to that; or
            there is no such host.
    """
    if insecure or host in ("127.0.0.1", "localhost", "::1"):
        return
    from ipaddress import ip_address

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}: {error}; name an address of this machine"
        ) from error
    addresses = {str(address[0]).partition("%")[0] for *_, address in found}
    if not all(ip_address(address).is_loopback for address in addresses):
        raise UsageError(
            f"{host} can be reached from other machines, and a cluster has neither TLS nor "
            "passwords for its clients: anyone who connects may read, write and delete everything. "
            "Listen on 127.0.0.1; or add --insecure (in Python: insecure=True), in a network that "
            "you trust, or in a container whose port is published to 127.0.0.1 only"
        )
