"""Whose a directory is: `meta.properties` with the cluster's id and a broker's ids, as in Kafka."""

from __future__ import annotations

from random import Random

from trimtab.cluster.storage.properties import decode_uuid, encode_uuid, read_properties
from trimtab.cluster.storage.storage import Storage
from trimtab.kafka.errors import CorruptData, UsageError

_META = "meta.properties"
_CLUSTER_ID = "cluster.id"
_JOURNAL = "__cluster_metadata-0"


def find_cluster_id(storage: Storage) -> str | None:
    """The cluster id in a directory; None if it has none."""
    return _read(storage).get(_CLUSTER_ID)


def identify_cluster(storage: Storage, random: Random) -> str:
    """The cluster id of a controller's directory; an empty directory gets a new one.

    Raises:
        CorruptData: there is a journal, but the file with the id is damaged or missing.
        StorageError: the disk failed.
        UsageError: the directory is in use.
    """
    storage.lock()  # otherwise two processes started together would each create an id
    try:
        cluster_id = find_cluster_id(storage)
        if cluster_id is None:
            if storage.list(_JOURNAL):
                raise CorruptData(
                    f"{_META} names no cluster.id, but {_JOURNAL} is there; write the line "
                    f"{_CLUSTER_ID}=ID into it, with the ID that the {_META} of each broker names"
                )
            cluster_id = make_cluster_id(random)
            name_cluster(storage, cluster_id)
        return cluster_id
    finally:
        storage.close()


def name_cluster(storage: Storage, cluster_id: str) -> None:
    """Write the cluster id into a controller's directory.

    Raises:
        StorageError: the disk failed.
    """
    storage.write_file(_META, f"version=1\n{_CLUSTER_ID}={cluster_id}\n".encode("ascii"))


def make_cluster_id(random: Random) -> str:
    """A new cluster id: a random UUID in Kafka's text form."""
    while True:
        cluster_id = encode_uuid(random.randbytes(16))
        if not cluster_id.startswith("-"):  # command lines would take it for an option
            return cluster_id


def identify_broker(storage: Storage, node_id: int, cluster_id: str, random: Random) -> bytes:
    """Check that a directory is this broker's; one that names no owner is assigned to it.

    Returns:
        the directory's id.

    Raises:
        StorageError: the disk failed.
        UsageError: it is the directory of another broker or cluster.
    """
    meta = _read(storage)
    for name, ours in (("node.id", str(node_id)), (_CLUSTER_ID, cluster_id)):
        theirs = meta.get(name, ours)
        if theirs != ours:
            raise UsageError(
                f"{_META} says {name}={theirs}, but this broker has {name}={ours}; "
                "choose the data directory that belongs to it, or an empty one; if the controller "
                "has lost its directory, `trimtab recover` rebuilds it"
            )
    directory_id = decode_uuid(meta.get("directory.id", ""))
    if directory_id is not None and {"node.id", _CLUSTER_ID} <= meta.keys():
        return directory_id
    directory_id = random.randbytes(16)
    lines = (
        "#",
        f"node.id={node_id}",
        f"directory.id={encode_uuid(directory_id)}",
        "version=1",
        f"{_CLUSTER_ID}={cluster_id}",
        "",
    )
    storage.write_file(_META, "\n".join(lines).encode("utf-8"))
    return directory_id


def _read(storage: Storage) -> dict[str, str]:
    return read_properties(storage.read_file(_META) or b"", "=")
