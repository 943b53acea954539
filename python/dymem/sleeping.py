"""dymem.sleep() and dymem.wake(): give the GPU's memory back to other processes, and restore it where it was.

    with dymem.tagged("weights"):
        model = build()
    with dymem.tagged("kv_cache"):
        cache = allocate_cache()
    print(dymem.sleep(keep=("weights",)))     # weights to the host, the cache dropped, all memory given back
    print(dymem.wake())                       # at the same addresses: captured graphs replay unchanged

What a pool promises, refuses and counts meanwhile is said in allocator/pool/sleep.hpp; how engines use it in
docs/serving.md. Nothing here imports torch; the core is loaded at the first call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from typing import Iterable, Iterator

from dymem.config import shown
from dymem.errors import DymemError, InvalidArgument, SleepError
from dymem.interrupts import held

_known: dict[str, int] = {}  # tags by name: their numbers in the core


@dataclasses.dataclass(frozen=True)
class SleepReport:
    """What one sleep() or wake() did; sums over devices, times of the slowest. str() is a line for a log."""

    action: str  # "sleep" or "wake"
    devices: tuple[int, ...]
    memory_bytes: int  # physical memory given back to the driver (sleep) or taken from it (wake)
    copied_bytes: int  # contents copied to the host, or back
    dropped_bytes: int  # held blocks whose contents were given up (sleep)
    stayed_bytes: int  # of the tags asked for, but sharing a granule with other memory, and so still awake (sleep)
    seconds: float
    copy_seconds: float  # of it: copying
    host_seconds: float  # of it: pinning host memory, which the first sleep does and later ones reuse

    @property
    def gb_per_s(self) -> float:
        """Bandwidth of the copies, in 1e9 bytes a second; 0 if nothing was copied."""
        return self.copied_bytes / self.copy_seconds / 1e9 if self.copied_bytes and self.copy_seconds else 0.0

    def __str__(self) -> str:
        where = ", ".join(f"GPU {device}" for device in self.devices) or "no GPU"
        did = "given back by" if self.action == "sleep" else "taken by"
        said = [f"{self.action}: {_size(self.memory_bytes)} {did} {where} in {self.seconds:.3f} s"]
        if self.copied_bytes:
            said.append(f"{_size(self.copied_bytes)} copied at {self.gb_per_s:.1f} GB/s")
        if self.dropped_bytes:
            said.append(f"{_size(self.dropped_bytes)} dropped")
        if self.stayed_bytes:
            said.append(f"{_size(self.stayed_bytes)} stayed")
        if self.host_seconds >= 0.01:
            said.append(f"{self.host_seconds:.3f} s to pin host memory")
        return ", ".join(said)


@contextlib.contextmanager
def tagged(name: str) -> Iterator[None]:
    """Blocks allocated by this thread in the `with` block carry the tag `name` until they are freed.

    Tags say what sleep() keeps or drops and what sleeps and wakes apart. Nested tags: the inner one counts.
    """
    from dymem import _core

    before = _core.pool.set_current_tag(_number(name))
    try:
        yield
    finally:
        _core.pool.set_current_tag(before)


def sleep(keep: str | Iterable[str] = "host", tags: str | Iterable[str] | None = None, device=None) -> SleepReport:
    """Gives the pool's physical memory back to the driver and keeps every virtual address.

    keep    "host": all contents are copied to pinned host memory. "drop": none are. Names of tags: contents of these
            tags and of untagged memory are copied, those of other tags dropped (undefined after waking).
    tags    only memory with one of these tags sleeps, and the pool goes on serving everything else. None: everything
            sleeps, and allocating raises SleepError until wake().
    device  a device's number; None: every device that this process has used.

    Waits for all work first. Sleeping memory must not be used until it is awake; freeing it is fine. What sleeps
    already is left alone. Raises SleepError (a capture is under way, too little host memory, a backing that cannot),
    and then nothing has changed; only where several devices sleep and the driver or host memory fails one of them
    half-way may contents that were to be dropped be gone.
    """
    options = {"drop_untagged": keep == "drop"}
    if isinstance(keep, str):
        if keep not in ("host", "drop"):
            raise InvalidArgument(f"keep is 'host', 'drop' or a tuple of tags such as ('weights',), not {shown(keep)}")
        options["keep"] = None if keep == "host" else []
    else:
        options["keep"] = _names(keep)
    options["tags"] = None if tags is None else _names(tags)
    return _on_each("sleep", device, lambda pool: pool.sleep(**options), undo=lambda pool: pool.wake(undo=True),
                    first=lambda pool: pool.refuse_sleep(**options))


def wake(tags: str | Iterable[str] | None = None, device=None) -> SleepReport:
    """Maps physical memory at the same addresses again and restores the contents that were kept.

    tags    only memory with one of these tags wakes, together with what is untagged. None: everything.
    device  as in sleep().

    What is awake is left alone. Raises OutOfMemory if the device or the limit has too little left, and DriverError if
    the driver fails; that device then stays asleep and whole, others are awake, and wake() can be called again.
    """
    names = None if tags is None else _names(tags)
    return _on_each("wake", device, lambda pool: pool.wake(tags=names))


def free_host_slabs(device=None) -> int:
    """Gives the system the pinned host memory that holds nothing now, and says how many bytes.

    The next sleep has to pin anew, at a cost of the order of 0.1 s a GiB.
    """
    return sum(pool.free_host_slabs() for _, pool in _pools(device))


def _refuse_capture() -> None:
    """The core sees captures on streams that it knows; the stream that this thread captures may be new to it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise SleepError("dymem: a stream is being captured; call sleep and wake before or after the capture")


def _on_each(action: str, device, call, undo=None, first=None) -> SleepReport:
    """All devices at once, since each has a link of its own. `first` may refuse before any of them changes; where one fails
    later, what the others did is undone. An interrupt waits until all is done, and is such a failure then."""
    _refuse_capture()
    began = time.perf_counter()
    pools = _pools(device)
    reports: list = []
    failure: BaseException | None = None
    if first is not None and len(pools) > 1:
        for _, pool in pools:
            first(pool)
    try:
        with held():
            reports, failure = _together(call, [pool for _, pool in pools])
    except BaseException as interrupt:
        failure = interrupt
    if failure is not None:
        for (_, pool), report in zip(pools, reports):
            if undo is not None and report is not None and report["changed"]:
                with contextlib.suppress(DymemError):  # the first failure is what the caller is told
                    undo(pool)
        raise failure
    fields = {field.name for field in dataclasses.fields(SleepReport)}
    total = {name: sum(r[name] for r in reports) for name in fields if name.endswith("_bytes")}
    slowest = {name: max((r[name] for r in reports), default=0.0) for name in ("copy_seconds", "host_seconds")}
    return SleepReport(action, tuple(number for number, _ in pools), **total, **slowest,
                       seconds=time.perf_counter() - began)


def _together(call, pools: list) -> tuple[list, BaseException | None]:
    """What the call answered for each pool, None where it failed, and the first failure."""
    answers: list = [None] * len(pools)
    failures: list[BaseException | None] = [None] * len(pools)

    def run(number: int) -> None:
        try:
            answers[number] = call(pools[number])
        except BaseException as error:
            failures[number] = error

    if len(pools) == 1:
        run(0)
        return answers, failures[0]
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(pools))]
    started = []
    for number, thread in enumerate(threads):
        try:
            thread.start()
            started.append(thread)
        except RuntimeError:  # the interpreter ends, and starts none
            run(number)
    for thread in started:
        thread.join()
    return answers, next(filter(None, failures), None)


def _pools(device) -> list[tuple[int, object]]:
    from dymem import _core

    if device is None:
        numbers = range(_core.abi.DEVICES_MAX)
    else:
        numbers = [getattr(device, "index", device)]  # a torch.device has one
        if type(numbers[0]) is not int or numbers[0] < 0:
            raise InvalidArgument(f"device is a number from 0 or a torch.device with one, not {shown(device)}")
        count = _core.abi.DEVICES_MAX
        if any(map(_core.abi.made, range(count))):  # before that, asking the driver would settle the configuration
            count = _core.abi.device_count()
        if numbers[0] >= count:
            raise InvalidArgument(f"there is no device {shown(numbers[0])}: devices are numbered from 0 to {count - 1}")
    return [(number, _core.abi.pool(number)) for number in numbers if _core.abi.made(number)]


def _number(name: str) -> int:
    if not isinstance(name, str):
        raise InvalidArgument(f"a tag is a name such as 'weights', not {shown(name)}")
    if name not in _known:
        from dymem import _core

        _known[name] = _core.pool.tag_number(name)
    return _known[name]


def _names(tags: str | Iterable[str]) -> list[str]:
    """Only tags that were used: a misspelt one would drop what it was to keep."""
    try:
        names = [tags] if isinstance(tags, str) else list(tags)
    except TypeError:
        raise InvalidArgument(f"tags are names such as ('weights',), not {shown(tags)}") from None
    used = {name for name, number in list(_known.items()) if any(pool.gave_tag(number) for _, pool in _pools(None))}
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgument(f"a tag is a name such as 'weights', not {shown(name)}")
        if name not in used:
            known = ", ".join(sorted(used)) or "none yet"
            raise InvalidArgument(f"nothing was allocated under dymem.tagged({name!r}); the tags used are: {known}")
    return names


def _size(n: int) -> str:
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"
