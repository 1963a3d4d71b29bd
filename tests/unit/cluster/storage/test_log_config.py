"""The topic options that apply to logs."""

from trimtab.cluster.config import TOPIC
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.kafka.options import read


def test_config_from_a_topics_options() -> None:
    options = read(TOPIC, {"segment.bytes": 2_000_000, "cleanup.policy": "compact"})
    assert LogConfig.read(options, producer_id_expiration_ms=5) == LogConfig(
        segment_bytes=2_000_000, deletes=False, compacts=True, producer_id_expiration_ms=5
    )
    assert LogConfig.read(read(TOPIC, {})) == LogConfig()
