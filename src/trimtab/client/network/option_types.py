"""The types of clients' keyword options, for type checkers: names in snake case.

`python -m tests.unit.client.network.test_option_types` writes the classes from the tables of
`trimtab.client.options`, and a test fails until it has. A text for a number, such as `"10"`, is
taken too, but only a dictionary of options may have it without a type checker's complaint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict

from trimtab.client.network.authentication import TokenSource
from trimtab.kafka.records import Deserializer


class HasPartition(Protocol):
    """A partitioner that is an object; `make_partitioner` has what else it may have."""

    @property
    def partition(self) -> Callable[..., Any]: ...


class ConnectionOptions(TypedDict, total=False):
    """Of every client."""

    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] | None
    client_id: str | None
    client_rack: str | None
    connections_max_idle_ms: int | None
    metadata_max_age_ms: int | None
    metadata_recovery_rebootstrap_trigger_ms: int | None
    metadata_recovery_strategy: Literal["rebootstrap", "none"] | None
    receive_buffer_bytes: int | None
    reconnect_backoff_max_ms: int | None
    reconnect_backoff_ms: int | None
    request_timeout_ms: int | None
    retry_backoff_max_ms: int | None
    retry_backoff_ms: int | None
    sasl_jaas_config: str | None
    sasl_login_callback_handler_class: str | None
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    sasl_login_retry_backoff_max_ms: int | None
    sasl_login_retry_backoff_ms: int | None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_header_urlencode: bool | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_token: TokenSource | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_password: str | None
    sasl_username: str | None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None
    send_buffer_bytes: int | None
    socket_connection_setup_timeout_max_ms: int | None
    socket_connection_setup_timeout_ms: int | None
    ssl_cipher_suites: str | Sequence[str] | None
    ssl_enabled_protocols: str | Sequence[str] | None
    ssl_endpoint_identification_algorithm: Literal["https", ""] | None
    ssl_key_password: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | None
    ssl_keystore_location: str | None
    ssl_keystore_type: Literal["PEM"] | None
    ssl_truststore_certificates: str | None
    ssl_truststore_location: str | None
    ssl_truststore_type: Literal["PEM"] | None


class ProducerOptions(ConnectionOptions, total=False):
    acks: Literal["0", "1", "-1", "all", 0, 1, -1] | None
    batch_size: int | None
    buffer_memory: int | None
    compression_gzip_level: int | None
    compression_lz4_level: int | None
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_zstd_level: int | None
    delivery_timeout_ms: int | None
    enable_idempotence: bool | None
    linger_ms: int | None
    max_block_ms: int | None
    max_in_flight_requests_per_connection: int | None
    max_request_size: int | None
    metadata_max_idle_ms: int | None
    metrics_num_samples: int | None
    metrics_sample_window_ms: int | None
    partitioner_adaptive_partitioning_enable: bool | None
    partitioner_availability_timeout_ms: int | None
    partitioner_balance: str | float | None
    partitioner_class: str | Callable[..., object] | HasPartition | None
    partitioner_compat: Literal["kip", "java"] | None
    partitioner_hot_keys: str | None
    partitioner_ignore_keys: bool | None
    partitioner_keys_shown: bool | None
    partitioner_rack_aware: bool | None
    partitioner_rack_aware_strict: bool | None
    retries: int | None
    transaction_timeout_ms: int | None
    transaction_two_phase_commit_enable: bool | None
    transactional_id: str | None


class ConsumerOptions(ConnectionOptions, total=False):
    auto_commit_interval_ms: int | None
    auto_offset_reset: Literal["earliest", "latest", "none"] | None
    check_crcs: bool | None
    default_api_timeout_ms: int | None
    enable_auto_commit: bool | None
    exclude_internal_topics: bool | None
    fetch_max_bytes: int | None
    fetch_max_wait_ms: int | None
    fetch_min_bytes: int | None
    group_id: str | None
    group_instance_id: str | None
    group_protocol: Literal["classic", "consumer"] | None
    group_remote_assignor: str | None
    heartbeat_interval_ms: int | None
    isolation_level: Literal["read_uncommitted", "read_committed"] | None
    key_deserializer: Deserializer | None
    max_partition_fetch_bytes: int | None
    max_poll_interval_ms: int | None
    max_poll_records: int | None
    metrics_num_samples: int | None
    metrics_sample_window_ms: int | None
    partition_assignment_strategy: str | Sequence[str] | None
    session_timeout_ms: int | None
    value_deserializer: Deserializer | None


class AdminOptions(ConnectionOptions, total=False):
    default_api_timeout_ms: int | None
