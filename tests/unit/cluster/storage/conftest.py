"""A log on a disk in memory."""

import pytest

from tests.unit.cluster.storage.logs import (
    DIRECTORY,
    SMALL,
    Clock,
    fill,
)
from trimtab.cluster.storage.log import Log
from trimtab.cluster.storage.log_config import LogConfig
from trimtab.sim.disk import VirtualDisk


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(disk: VirtualDisk, clock: Clock) -> Log:
    return Log(disk, DIRECTORY, LogConfig(), clock)


@pytest.fixture
def rolled(disk: VirtualDisk, clock: Clock) -> Log:
    """Ten batches: segments 0, 4 and 8."""
    log = Log(disk, DIRECTORY, SMALL, clock)
    fill(log, 10)
    return log
