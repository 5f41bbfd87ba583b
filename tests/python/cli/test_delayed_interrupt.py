"""Ctrl-C is raised at the next check, a second one at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from hero_moe.delayed_interrupt import DelayedInterrupt


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_first_waits_for_the_check() -> None:
    passed = False
    with pytest.raises(KeyboardInterrupt), DelayedInterrupt() as interrupt:
        interrupt.check()
        signal.raise_signal(signal.SIGINT)
        passed = True
        interrupt.check()
    assert passed and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_is_raised_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), DelayedInterrupt():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one was delayed")


def test_other_handlers_stay() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with DelayedInterrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        interrupt.check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
