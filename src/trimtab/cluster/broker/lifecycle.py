"""A broker's registration and heartbeats (KIP-631).

register ─▶ replay the log up to the registration ─▶ heartbeats ─▶ unfenced
                                                         └─ close: controlled shutdown
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

from trimtab.cluster.broker.link import Link
from trimtab.cluster.server.peer import PeerLost, PeerRefused
from trimtab.kafka.errors import ErrorCode, UsageError
from trimtab.kafka.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from trimtab.kafka.wire.messages.broker_registration import BrokerRegistrationRequest, Listener
from trimtab.kafka.wire.sentinels import NO_EPOCH

_PLAINTEXT = 0
_ANSWER_TIMEOUT_S = 5.0
_REPORT_TIMEOUT_S = 1.0
_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0

_log = logging.getLogger(__name__)


class Lifecycle:
    """Registers a broker and keeps it registered.

    Args:
        broker_id: this broker's id.
        cluster_id: the id of its cluster.
        link: to the controller, for these requests only: when the connection breaks, the controller
            checks whether the broker has died.
        metadata_offset: returns the offset of the last metadata record that was replayed.
        log_dirs: ids of the broker's log directories.
        heartbeat_s: time between two heartbeats.
        random: draws the incarnation id.

    Attributes:
        incarnation_id: 16 bytes, new for each process; it may be changed before `register`.
        epoch: the broker epoch that the controller assigned; `NO_EPOCH` before.
        unfenced: set while the controller says that this broker may serve clients.
    """

    def __init__(
        self,
        broker_id: int,
        cluster_id: str,
        link: Link,
        metadata_offset: Callable[[], int],
        log_dirs: Sequence[bytes],
        heartbeat_s: float,
        random: Random,
    ) -> None:
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._random = random
        self.incarnation_id = random.randbytes(16)
        self._link = link
        self._metadata_offset = metadata_offset
        self._log_dirs = list(log_dirs)
        self._heartbeat_s = heartbeat_s
        self._listener = ("", 0)
        self._rack: str | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self.epoch = NO_EPOCH
        self.unfenced = asyncio.Event()

    async def register(self, host: str, port: int, rack: str | None, previous_epoch: int) -> None:
        """Register; waits until the controller can be reached.

        Args:
            previous_epoch: this broker's epoch before it was closed cleanly, otherwise -1.

        Raises:
            UsageError: the controller belongs to another cluster, or has another secret.
        """
        self._listener = (host, port)
        self._rack = rack
        backoff_s = _BACKOFF_S
        while True:
            request = BrokerRegistrationRequest(
                broker_id=self._broker_id,
                cluster_id=self._cluster_id,
                incarnation_id=self.incarnation_id,
                listeners=[
                    Listener(name="PLAINTEXT", host=host, port=port, security_protocol=_PLAINTEXT)
                ],
                rack=rack,
                log_dirs=self._log_dirs,
                previous_broker_epoch=previous_epoch,
            )
            try:
                response = await self._link.ask(request, _ANSWER_TIMEOUT_S)
            except PeerLost as error:
                if isinstance(error, PeerRefused) and self.epoch == NO_EPOCH:
                    raise UsageError(
                        f"broker {self._broker_id} is not let into the cluster: {error}. A broker "
                        "needs the controller's address, and its cluster.secret as it is now: see "
                        "--cluster-secret-file"
                    ) from error
                _log.info("waits for the controller broker=%d error=%s", self._broker_id, error)
            else:
                if not response.error_code:
                    self.epoch = response.broker_epoch
                    return
                code = ErrorCode(response.error_code)
                if code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                    raise UsageError(
                        f"broker {self._broker_id} belongs to cluster {self._cluster_id}, the "
                        "controller to another; name the controller of its own cluster, or an "
                        "empty data directory"
                    )
                _log.warning(
                    "the controller refuses the registration broker=%d error=%s; trying again",
                    self._broker_id,
                    code.name,
                )
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def register_with_loss(self) -> None:
        """Register again, before `start`, as a broker that has lost records: the controller
        removes it from all ISRs and ELRs.

        Raises:
            UsageError: the controller belongs to another cluster.
        """
        self.incarnation_id = self._random.randbytes(16)
        await self.register(*self._listener, self._rack, NO_EPOCH)

    def start(self) -> None:
        """Begin to send heartbeats. The metadata up to the registration must have been replayed."""
        self._heartbeats = asyncio.ensure_future(self._send_heartbeats())

    async def shut_down(self, timeout_s: float) -> None:
        """Controlled shutdown: wait until the controller has moved the leaders away, `timeout_s`
        are over, or the controller is lost."""
        await self.stop()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while loop.time() < deadline_s:
            try:
                response = await self._link.ask(
                    self._heartbeat(shut_down=True), max(0.001, deadline_s - loop.time())
                )
            except PeerLost:
                return
            if response.error_code or response.should_shut_down:
                return
            await asyncio.sleep(_BACKOFF_S)

    async def report_failure(self, is_lost: bool) -> None:
        """Report to the controller, once, that this broker has stopped serving.

        Args:
            is_lost: whether the log directory may have lost records, and is reported offline
                (KIP-858); otherwise the broker is only fenced, and may still be elected (ELR).
        """
        await self.stop()
        if self.epoch == NO_EPOCH:
            return
        request = self._heartbeat()
        request.want_fence = True
        request.offline_log_dirs = self._log_dirs if is_lost else []
        try:
            await self._link.ask(request, _REPORT_TIMEOUT_S)
        except PeerLost as lost:  # it notices when this broker's address refuses connections
            _log.warning(
                "cannot report the failure to the controller broker=%d error=%s",
                self._broker_id,
                lost,
            )

    async def stop(self) -> None:
        """Send no more heartbeats."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None

    def abort(self) -> None:
        """Stop the heartbeats without waiting."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()

    async def _send_heartbeats(self) -> None:
        is_refused = False
        while True:
            wait_s = min(self._heartbeat_s, _BACKOFF_S * 4)
            try:
                wait_s = await self._beat()
                is_refused = False
            except PeerLost as error:
                is_new = isinstance(error, PeerRefused) and not is_refused
                is_refused = isinstance(error, PeerRefused)
                level = logging.WARNING if is_new else logging.DEBUG  # a warning, not one a second
                _log.log(level, "no heartbeat broker=%d error=%s", self._broker_id, error)
            except Exception:  # without heartbeats the broker would be fenced for good
                _log.exception("no heartbeat broker=%d", self._broker_id)
            await asyncio.sleep(wait_s)

    async def _beat(self) -> float:
        """Send a heartbeat; returns the seconds until the next."""
        response = await self._link.ask(self._heartbeat(), self._heartbeat_s * 2)
        if response.error_code in (
            ErrorCode.STALE_BROKER_EPOCH,
            ErrorCode.BROKER_ID_NOT_REGISTERED,
        ):
            # An operator unregistered this broker, or another one registered its id.
            self.unfenced.clear()
            await self.register(*self._listener, self._rack, NO_EPOCH)
            return 0
        if response.error_code:
            return min(self._heartbeat_s, _BACKOFF_S * 4)
        if response.is_fenced:
            self.unfenced.clear()
            return min(self._heartbeat_s, _BACKOFF_S)
        self.unfenced.set()
        return self._heartbeat_s

    def _heartbeat(self, shut_down: bool = False) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=False,
            want_shut_down=shut_down,
        )
