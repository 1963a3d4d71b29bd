"""How long to wait before trying again."""

from __future__ import annotations

from random import Random

from trimtab.client.network.backoff import Backoff


def test_back_off_doubles_up_to_its_maximum_and_varies_by_a_fifth() -> None:
    backoff, random = Backoff(0.1, 1.0), Random(1)
    for failures, expected in ((0, 0.1), (1, 0.2), (2, 0.4)):
        waits = [backoff.wait(failures, random) for _ in range(200)]
        assert expected * 0.8 <= min(waits) < expected * 0.85
        assert expected * 1.15 < max(waits) <= expected * 1.2
    assert {backoff.wait(failures, random) for failures in (4, 50, 10**6)} == {1.0}
