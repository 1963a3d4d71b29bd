"""The transactional ids that a broker coordinates: those whose partition of `__transaction_state`
it leads."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.cluster.broker.cluster_view import ClusterView
from trimtab.cluster.broker.coordinator import Coordinator
from trimtab.cluster.broker.coordinator_partition import CoordinatorPartition
from trimtab.cluster.broker.coordinator_topic import TRANSACTIONS_TOPIC
from trimtab.cluster.broker.marker_sender import MarkerSender
from trimtab.cluster.coordinator.effects import Ending
from trimtab.cluster.coordinator.transaction_shard import TransactionRules, TransactionShard
from trimtab.cluster.metadata.features import TRANSACTION_VERSION
from trimtab.cluster.storage.storage import StorageError


class TransactionCoordinator(Coordinator[TransactionShard]):
    """Which transactional ids this broker coordinates.

    Args:
        view: the topics of the cluster, and the options.
        now_ms: wall time.
        take_id: a producer id that no producer has had; None if there is none right now.
        disk_failed: told when a log cannot be written or read.
    """

    _limit_names = (
        "coordinator.transactional.ids.max",
        "coordinator.members.max",  # there are none
        "coordinator.memory.max.bytes",
    )
    _expiry_interval = "transaction.remove.expired.transaction.cleanup.interval.ms"

    def __init__(
        self,
        view: ClusterView,
        now_ms: Callable[[], int],
        take_id: Callable[[], int | None],
        disk_failed: Callable[[StorageError], None],
    ) -> None:
        super().__init__(TRANSACTIONS_TOPIC, view, now_ms, disk_failed)
        self._take_id = take_id
        self._markers = MarkerSender(view)

    def close(self) -> None:
        self._markers.close()
        super().close()

    def _make_shard(self, max_batch: Callable[[], int]) -> TransactionShard:
        config = self.view.config
        return TransactionShard(
            TransactionRules(
                config.integer("transaction.max.timeout.ms"),
                config.flag("transaction.two.phase.commit.enable"),
                config.integer("transactional.id.expiration.ms"),
            ),
            lambda: self.view.image.features.get(TRANSACTION_VERSION, 0),
            self._take_id,
            max_batch,
            self.room.admit,
        )

    def _end(self, led: CoordinatorPartition[TransactionShard], ending: Ending) -> None:
        self._markers.send(led, ending)
