"""A cluster's id and its brokers, with the output of kafka-cluster."""

from __future__ import annotations

import argparse
import json

from trimtab.cli.options import read_client_options
from trimtab.cli.selection import connect_admin


def print_id(arguments: argparse.Namespace) -> int:
    with connect_admin(read_client_options(arguments)) as admin:
        cluster_id = admin.cluster().cluster_id
    if arguments.json:
        print(json.dumps({"clusterId": cluster_id}))
    elif cluster_id is None:
        print("No cluster ID found. The Kafka version is probably too old.")
    else:
        print(f"Cluster ID: {cluster_id}")
    return 0


def list_endpoints(arguments: argparse.Namespace) -> int:
    with connect_admin(read_client_options(arguments)) as admin:
        found = admin.cluster(include_fenced=arguments.include_fenced_brokers)
    brokers = [(node, "fenced" if node.id in found.fenced else "unfenced") for node in found.nodes]
    if arguments.json:
        for node, state in brokers:
            print(json.dumps({**node._asdict(), "state": state, "endpoint_type": "broker"}))
        return 0
    hosts = max((len(node.host) for node in found.nodes), default=100)
    racks = max((len(node.rack) for node in found.nodes if node.rack), default=10)
    rows = [
        (str(node.id), node.host, str(node.port), node.rack or "null", state, "broker")
        for node, state in brokers
    ]
    for row in [("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"), *rows]:
        widths = (10, hosts, 10, racks, 10, 15)
        print(" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    return 0


def unregister(arguments: argparse.Namespace) -> int:
    with connect_admin(read_client_options(arguments)) as admin:
        admin.unregister_broker(arguments.id)
    if arguments.json:
        print(json.dumps({"broker": arguments.id, "result": "unregistered"}))
    else:
        print(f"Broker {arguments.id} is no longer registered.")
    return 0
