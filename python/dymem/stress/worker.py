"""One process that runs programs under one allocator, as often and under as many limits as it is told.

    python -m dymem.stress.worker ALLOCATOR [MODULE:FUNCTION]

Says `{"ready": …}`, then answers each line of JSON on stdin with one on stdout. A question:
    {"pattern": "comb", "scale": bytes, "seed": n, "limit": bytes or null, "runs": n, "touch": true}
The answer has the outcome of each run (the first from an empty allocator, the next with what it then keeps; none after
one that ran out of memory), the bytes held at the peak, and `afresh`: false where the allocator could not be emptied
before. Whatever else the libraries print goes to stderr. The function, for tests, makes the machine: see Machine.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import sys
from typing import Protocol

from dymem.stress.execute import Device, Outcome, run
from dymem.stress.patterns import PATTERNS
from dymem.stress.program import Program, program_of


class Machine(Protocol):
    device: Device

    def start_over(self, limit_bytes: int | None) -> bool: ...
    def reserved_peak(self) -> int | None: ...
    def facts(self) -> dict: ...  # what it runs on


class CardMachine:
    """The first GPU under one of dymem.rivals."""

    def __init__(self, allocator: str) -> None:
        from dymem.rivals import ALLOCATORS

        self._allocator = ALLOCATORS[allocator]
        import torch

        self._allocator.install(None)
        torch.cuda.init()
        self._allocator.limit(None)
        from dymem.stress.on_card import Card

        self.device = Card()

    def start_over(self, limit_bytes: int | None) -> bool:
        return self._allocator.start_over(limit_bytes)

    def reserved_peak(self) -> int | None:
        return self._allocator.usage()["reserved_peak_bytes"]

    def facts(self) -> dict:
        import torch

        return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
                "memory_bytes": torch.cuda.get_device_properties(0).total_memory}


class Worker:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._program: Program | None = None
        self._asked: tuple | None = None

    def answer(self, question: dict) -> dict:
        asked = (question["pattern"], question["scale"], question["seed"])
        if asked != self._asked:
            name, scale, seed = self._asked = asked
            self._program = program_of(PATTERNS[name].script(scale, seed).recording(name))
        if not self._machine.start_over(question["limit"]):
            return {"afresh": False}
        outcomes: list[Outcome] = []
        gc.collect()
        gc.disable()  # else one of its passes may fall into what is timed
        try:
            while len(outcomes) < question["runs"] and not (outcomes and outcomes[-1].oom):
                outcomes.append(run(self._program, self._machine.device, touch=question["touch"]))
        finally:
            gc.enable()
        return {"afresh": True, "runs": [dataclasses.asdict(outcome) for outcome in outcomes],
                "reserved_peak_bytes": self._machine.reserved_peak()}


def main(arguments: list[str]) -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if len(arguments) > 1:
        module, _, function = arguments[1].partition(":")
        machine = getattr(importlib.import_module(module), function)(arguments[0])
    else:
        machine = CardMachine(arguments[0])
    worker = Worker(machine)
    print(json.dumps({"ready": True, **machine.facts()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)
    answers.flush()
    os._exit(0)  # destructors of a dozen libraries at exit are not what is tested here


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
