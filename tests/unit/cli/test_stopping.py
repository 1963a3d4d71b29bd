from __future__ import annotations

import signal

import pytest

from trimtab.cli.stopping import Stop


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_the_second_interrupts(number: int, code: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with Stop() as stop:
        assert stop.code == 0
        signal.raise_signal(number)
        assert stop.code == code
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
