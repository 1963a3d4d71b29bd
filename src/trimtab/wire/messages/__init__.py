"""Kafka's messages, one file per API, each class laid out like its definition in Kafka.

`APIS` is the table of what is spoken, `SERVED` that of what our own brokers serve.
"""

from __future__ import annotations

from typing import NamedTuple

from trimtab.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from trimtab.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from trimtab.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trimtab.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from trimtab.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from trimtab.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from trimtab.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from trimtab.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from trimtab.wire.messages.fetch import FetchRequest, FetchResponse
from trimtab.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from trimtab.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trimtab.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from trimtab.wire.messages.metadata import MetadataRequest, MetadataResponse
from trimtab.wire.messages.produce import ProduceRequest, ProduceResponse
from trimtab.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from trimtab.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from trimtab.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from trimtab.wire.schema import schema
from trimtab.wire.types import MAX_INT16


class Api(NamedTuple):
    """One API, in the versions that are spoken.

    Attributes:
        key: its number on the wire.
        name: Kafka's name of it.
        request: the class of the request.
        response: the class of the response.
        min_version: the lowest version spoken.
        max_version: the highest.
        flexible_from: the first flexible version, whose headers have tags; beyond all versions if
            there is none.
    """

    key: int
    name: str
    request: type
    response: type
    min_version: int
    max_version: int
    flexible_from: int

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


def _api(request: type, response: type, max_version: int | None = None) -> Api:
    kind = schema(request)
    assert kind.api_key is not None
    return Api(
        key=kind.api_key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=kind.versions.low,
        max_version=kind.versions.high if max_version is None else max_version,
        flexible_from=kind.flexible.low if kind.flexible else MAX_INT16 + 1,
    )


SERVED: dict[int, Api] = {
    api.key: api
    for api in (
        _api(ProduceRequest, ProduceResponse),
        _api(FetchRequest, FetchResponse),
        _api(ListOffsetsRequest, ListOffsetsResponse),
        _api(MetadataRequest, MetadataResponse),
        _api(FindCoordinatorRequest, FindCoordinatorResponse),
        _api(ApiVersionsRequest, ApiVersionsResponse),
        _api(CreateTopicsRequest, CreateTopicsResponse),
        _api(DeleteTopicsRequest, DeleteTopicsResponse),
        # Version 6 is unstable in Kafka 4.3, so it is not offered.
        _api(InitProducerIdRequest, InitProducerIdResponse, max_version=5),
        _api(DescribeConfigsRequest, DescribeConfigsResponse),
        _api(DescribeClusterRequest, DescribeClusterResponse),
    )
}
"""The APIs that our own brokers serve, by key."""

APIS: dict[int, Api] = SERVED | {
    api.key: api
    for api in (
        _api(SaslHandshakeRequest, SaslHandshakeResponse),
        _api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
        _api(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
        _api(EndTxnRequest, EndTxnResponse),
        _api(TxnOffsetCommitRequest, TxnOffsetCommitResponse),
        _api(SaslAuthenticateRequest, SaslAuthenticateResponse),
    )
}
"""The APIs that our clients speak, by key: those above, and what only Apache Kafka serves."""

__all__ = [
    "APIS",
    "SERVED",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "Api",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
]
