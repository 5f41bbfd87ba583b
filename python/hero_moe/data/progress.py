"""Progress of a long command on stderr: one line updated in place on a terminal, else a line every 10 s."""

from __future__ import annotations

import sys
import time


class Progress:
    """`total` and `consumed` count input bytes on disk; throughput counts from the start of this process."""

    def __init__(self, what: str, total: int, consumed: int = 0) -> None:
        self._what, self._total, self._first = what, total, consumed
        self._terminal = sys.stderr.isatty()
        self._start = self._last = time.monotonic()
        self._drawn = False

    def update(self, consumed: int, documents: int, text_bytes: int, tokens: int, new_bytes: int) -> None:
        """`new_bytes`: the part of `text_bytes` that this process has tokenized."""
        now = time.monotonic()
        if now - self._last < (0.2 if self._terminal else 10):
            return
        self._last = now
        seconds, done = now - self._start, consumed - self._first
        left = int(seconds * (self._total - consumed) / done) if done > 0 else 0
        line = (
            f"{self._what} {100 * consumed / max(1, self._total):.1f}%  {documents:,} documents  "
            f"{text_bytes / 1e6:.1f} MB of text  {tokens:,} tokens  {new_bytes / 1e6 / seconds:.1f} MB/s  "
            f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
        )
        sys.stderr.write(f"\r{line}\033[K" if self._terminal else line + "\n")
        sys.stderr.flush()
        self._drawn = self._terminal

    def close(self) -> None:
        """Clears the line."""
        if self._drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
