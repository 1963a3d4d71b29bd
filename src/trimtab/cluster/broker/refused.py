"""What a partition or a fetch session answers to a request that it does not carry out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trimtab.kafka.errors import ErrorCode


class Refused(Exception):
    """A batch, a read or a session is refused. Becomes an error code in the response.

    Attributes:
        at_fault: the indexes, within the batch, of the records that break a rule (KIP-467): the
            first `MAX_AT_FAULT` (`trimtab.cluster.broker.batch_rules`) of them.
        is_wrong_time: set when a timestamp breaks a rule: whether a given timestamp does.
            `BatchRules.find_times` finds the records with it.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        at_fault: Sequence[int] = (),
        is_wrong_time: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
        self.at_fault = at_fault
        self.is_wrong_time = is_wrong_time
