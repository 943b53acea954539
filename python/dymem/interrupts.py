"""Signals that ask the process to end, met where they do no harm."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Iterator


class Stopped(KeyboardInterrupt):
    """A signal that asks this process to end, met as Ctrl-C is."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Stopped in the block, unless somebody else meets them or has them ignored."""
    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP) if in_main_thread() else ():
            if signal.getsignal(number) is signal.SIG_DFL:
                stack.callback(signal.signal, number, signal.signal(number, stop))
        yield


@contextlib.contextmanager
def undone_first() -> Iterator[None]:
    """Like stoppable, and then the process ends by that signal, as it would have without the block: a program that catches
    KeyboardInterrupt does not take it for one."""
    try:
        with stoppable():
            yield
    except Stopped as stop:
        if signal.getsignal(stop.number) is signal.SIG_DFL:  # else it is of a block around this one
            signal.raise_signal(stop.number)
        raise


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
