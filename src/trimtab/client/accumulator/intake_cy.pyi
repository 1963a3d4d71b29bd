# The types of intake_cy.py for users' type checkers, which cannot see through its decorators.

from collections.abc import Callable
from typing import Any

from trimtab.client.accumulator.queues_cy import Delivery
from trimtab.kafka.records import Headers

class Intake:
    def __init__(self, placement: Any, serializers: Any = None) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

class AsyncIntake:
    def __init__(self, placement: Any, serializers: Any = None) -> None: ...
    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
