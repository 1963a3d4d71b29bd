"""Which transactional batches a partition's leader takes: those of which the transaction's
coordinator knows (KIP-890).

    batch of a transaction that is not open here
      └─ begin ─▶ the coordinator is asked ─▶ append
                       └─ the transaction's marker meanwhile: the batch is refused

So a batch that arrives after its transaction has ended does not begin another one, which nobody
would end. In version 2 the marker of the transaction before has the epoch of this one: it says
nothing about this one.

Source: Kafka's `VerificationStateEntry` and `VerificationGuard`.
"""

from __future__ import annotations


class Verification:
    """That the coordinator was asked about a producer's transaction.

    Attributes:
        epoch: the producer's.
        sequence: the lowest of the batches that it was asked for. A later batch cannot be first.
        bumps_epochs: whether the producer has another epoch in each transaction, so that its first
            sequence here is 0.
    """

    __slots__ = ("bumps_epochs", "epoch", "sequence")

    def __init__(self, epoch: int, sequence: int, bumps_epochs: bool) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.bumps_epochs = bumps_epochs


class Verifications:
    """Those of one partition's producers that have no record in their transaction yet."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, bumps_epochs: bool
    ) -> Verification:
        """The coordinator will be asked about a batch. Batches of one epoch share one."""
        known = self._by_producer.get(producer_id)
        if known is not None and known.epoch == epoch:
            known.sequence = min(known.sequence, sequence)
            return known
        begun = Verification(epoch, sequence, bumps_epochs)
        if known is None or known.epoch < epoch:
            self._by_producer[producer_id] = begun
        return begun

    def holds(self, producer_id: int, verification: Verification | None) -> bool:
        """Whether the producer's transaction has not ended since this began."""
        return verification is not None and self._by_producer.get(producer_id) is verification

    def refuse(self, producer_id: int, verification: Verification) -> None:
        """The coordinator does not know the transaction."""
        if self.holds(producer_id, verification):
            self.forget(producer_id)

    def forget(self, producer_id: int) -> None:
        """A record of the producer is stored."""
        self._by_producer.pop(producer_id, None)

    def end_marked(self, producer_id: int, epoch: int) -> None:
        """A marker with this epoch is stored."""
        known = self._by_producer.get(producer_id)
        if known is not None and (known.epoch < epoch or not known.bumps_epochs):
            self.forget(producer_id)

    def clear(self) -> None:
        """This broker does not lead any more."""
        self._by_producer.clear()
