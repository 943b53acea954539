"""Signals that ask the process to end, met where they do no harm."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Iterator


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Ctrl-C, and SIGTERM and SIGHUP where Python meets them, wait for the end of the block. Only the main thread meets
    signals, so in another one nothing is held. Masks would not do: children inherit them, and other threads have their own."""
    met: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if callable(handler) and in_main_thread()}
    try:
        for number in before:
            signal.signal(number, lambda number, _: met.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in met[:1]:
            before[number](number, None)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
