"""Ctrl-C at defined places."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class DelayedInterrupt:
    """While entered in the main thread, Ctrl-C raises `KeyboardInterrupt` at the next `check`: within a process pool
    it could leave a locked lock or an unregistered worker, for which the end of this process would wait forever. A
    second Ctrl-C raises at once. Other handlers of SIGINT stay as they are."""

    def __init__(self) -> None:
        self._pending = False
        self._installed = False

    def __enter__(self) -> DelayedInterrupt:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *error: Any) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        """Raises `KeyboardInterrupt` if there was a Ctrl-C."""
        if self._pending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.check()
        self._pending = True
