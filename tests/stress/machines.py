"""Machines without a card for `dymem.stress.worker`, each with one habit; the name of the allocator chooses it.

    fits      needs exactly what is occupied          wasteful  needs 1.3 times that
    greedy    has enough only without a limit                        crasher   dies by a signal when a block of a certain size is asked
    exits     the same, by an exit code, saying why   hangs     never answers
    sticky    keeps its memory: one limit a process   damages   hands blocks out that forget their bytes
    noisy     prints to stdout while it works
    rounds    takes its limit rounded up to 32 MiB, as the driver's pools do
"""

import os
import signal
import sys
import time

MIB = 1 << 20
ROUND = 32 * MIB
FATAL = 96 * MIB  # a size that comb asks for and checkerboard does not


class FakeDevice:
    def __init__(self, habit):
        self.habit, self.limit, self.peak = habit, 0, 0
        self.held, self.readings = {}, []
        self.share = {"wasteful": 1.3, "greedy": 100.0}.get(habit, 1.0)

    class Block:
        def __init__(self, device, size):
            self.device, self.size, self.value = device, -(-size // 512) * 512, None
            device.held[id(self)] = self.size
            device.peak = max(device.peak, sum(device.held.values()))

        def __del__(self):
            self.device.held.pop(id(self), None)

    def begin(self):
        self.readings = []

    def make(self, size, stream):
        if size == FATAL and self.habit == "crasher":
            os.kill(os.getpid(), signal.SIGSEGV)
        if size == FATAL and self.habit == "exits":
            sys.exit("the allocator lost its mind")
        if self.habit == "hangs":
            time.sleep(3600)
        if self.habit == "noisy" and not self.held:
            print("cuda says hello")
        if self.share * (sum(self.held.values()) + size) > self.limit:
            raise MemoryError(f"no room for {size}")
        return self.Block(self, size)

    def fill(self, token, value):
        token.value = 0 if self.habit == "damages" else value

    def read(self, token, share):
        assert 0 <= share < 1
        self.readings.append(token.value or 0)
        return len(self.readings) - 1

    def use(self, token, stream, ms, share):
        return self.read(token, share)

    def done(self, reading):
        assert reading < len(self.readings)

    def wait(self):
        pass

    def results(self, count):
        return self.readings[:count]

    def exhausted(self, error):
        return isinstance(error, MemoryError)


class FakeMachine:
    def __init__(self, habit):
        self.device = FakeDevice(habit)
        self.started = False

    def start_over(self, limit_bytes):
        assert not self.device.held, "blocks outlived a run"
        afresh = not (self.started and self.device.habit == "sticky")
        self.started = True
        if self.device.habit == "rounds" and limit_bytes is not None:
            limit_bytes = -(-limit_bytes // ROUND) * ROUND
        self.device.limit, self.device.peak = float("inf") if limit_bytes is None else limit_bytes, 0
        return afresh

    def reserved_peak(self):
        return -(-self.device.peak // ROUND) * ROUND if self.device.habit == "rounds" else None

    def facts(self):
        return {"gpu": "a card of cardboard"}


def make(habit):
    return FakeMachine(habit)
