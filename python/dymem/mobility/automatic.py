"""Mobility without the user doing anything (`mobility:auto`): waits until the program's iterations are recognised, profiles
exactly one of them, and follows it. Afterwards nothing is left in Python.

Iterations are recognised in C++ as the period of what the pools are asked (allocator/pool/period.hpp). A *mark* is a point of
the program that comes once or several times in each: where the user calls `dymem.iteration()`, failing that where an optimizer
of torch.optim has stepped, failing that where that search asks for control itself: where the fewest blocks are held. The
profile begins at a mark and ends as many marks later as there are in a period.

    X1  The program is never disturbed: nothing here raises into it, and what it computes is the same. What keeps an
        iteration from being followed is said in one line on stderr.
    X2  It ends: one iteration is followed, ATTEMPTS profiles came to nothing, or STEPS_MAX steps have no period.
    X3  Only the process that installed dymem does anything here; a forked child leaves what it inherited alone.
    X4  The hook is not removed while PyTorch may go through its hooks, but at the next allocation after that.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import deque

from dymem.mobility.live import follow
from dymem.mobility.profile import Profile

STEPS_MAX = 1 << 22    # allocations and frees of the busiest stream; more without a period: given up
FIRST_LOOK = 1 << 12   # steps; without marks, each look comes after twice as many
ATTEMPTS = 3           # profiles
REPEATS = 2            # of the period where marks tell that an iteration is over
REPEATS_UNMARKED = 16  # where nothing but the period does
MARKS_KEPT = 4096
PATIENCE = 60.0        # seconds, for another thread's profile or look to end
PRELUDE = 4            # iterations: what comes before the first mark is forgotten if it is longer

SEARCH, OPTIMIZER, USER = range(3)  # who marks: a higher one is believed instead of a lower
LOOKING, BEGINNING, PROFILING, ENDED = "looking", "beginning", "profiling", "ended"


class Search:
    """One search for iterations, from start() until it has ended."""

    def __init__(self, adapter) -> None:
        self.process = os.getpid()
        self.searching = adapter.searching
        self.busy = threading.Lock()  # marks do not wait for it: what comes while it is held is none
        self.owner: int | None = None  # the thread that holds it
        self.state = LOOKING
        self.rank = SEARCH
        self.marks: deque[int] = deque(maxlen=MARKS_KEPT)  # steps done when each came
        self.marked = 0                # how many there were
        self.next_look = 3             # marks
        self.attempts = 0
        self.period = self.before = 0  # steps, as last found
        self.profile: Profile | None = None
        self.began = self.left = 0     # of the profile: its first step, marks to come
        self.lengths = (0, 0)          # steps: what an iteration may have
        self.hook = None

    def start(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.searching.start(self.woken)
        self.searching.wake_at(FIRST_LOOK)
        self.hook = register_optimizer_step_post_hook(self.stepped)

    # --- where Python gets control

    def stepped(self, *_: object) -> None:
        """An optimizer has made its step."""
        self.guarded(self.mark, OPTIMIZER)

    def woken(self) -> None:
        """A stream has done as many steps as was asked for. In the main thread, between any two instructions of it."""
        if not self.guarded(self.wake):
            self.searching.wake_at(self.searching.steps() + 1)

    def guarded(self, what, *arguments: object) -> bool:
        """Whether it could be done: not while something here is being done already."""
        if os.getpid() != self.process:
            return True
        if not self.busy.acquire(blocking=False):
            return False
        self.owner = threading.get_ident()
        try:
            what(*arguments)
        except Exception as error:
            self.end(f"it came to nothing ({type(error).__name__}: {error}).")
        finally:
            self.owner = None
            self.busy.release()
        return True

    def stand_aside(self) -> None:
        """Ends, once what another thread is at here is done: it may be about to follow something itself. Within what the
        search itself does nothing happens."""
        if self.owner == threading.get_ident() or not self.busy.acquire(timeout=PATIENCE):
            return
        self.owner = threading.get_ident()
        try:
            self.end()
        finally:
            self.owner = None
            self.busy.release()

    # --- under `busy`

    def mark(self, rank: int) -> None:
        if self.state == ENDED:
            self.searching.wake_at(0)  # the hook is still there: X4
            return
        if rank < self.rank:
            return
        if rank > self.rank:
            self.drop()
            self.rank, self.marked, self.next_look = rank, 0, 3
            self.marks.clear()
        now = self.searching.steps()
        if self.marked == 1 and self.marks[0] > PRELUDE * (now - self.marks[0]):
            self.forget()  # the program has begun with something else, which would count as history of its iterations
            now = 0
        self.marks.append(now)
        self.marked += 1
        if self.state == PROFILING:
            self.left -= 1
            if self.left == 0:
                self.conclude(now)
        elif self.marked >= self.next_look:
            self.look(now)

    def forget(self) -> None:
        self.marks.clear()
        self.searching.stop()
        self.searching.start(self.woken)
        self.searching.wake_at(FIRST_LOOK)

    def look(self, now: int) -> None:
        self.next_look = self.marked + max(1, self.marked // 4)
        found = self.searching.find()
        if found is None or found["repeats"] < REPEATS:
            return
        self.period, repeats = found["steps"], found["repeats"]
        inside = sum(mark > now - self.period * repeats for mark in self.marks)
        each = max(1, round(inside / repeats))
        marks = list(self.marks)[-1 - inside:]
        lengths = [late - early for early, late in zip(marks, marks[each:])] or [self.period]
        vary = max(lengths) - min(lengths)
        if inside < repeats - 1:  # several periods between marks: an iteration of equal parts, once it was seen thrice
            if inside < 3 or 8 * vary > self.period:
                return
        elif abs(inside - each * repeats) > 1:
            return  # marks have another period
        slack = max(2, self.period // 64, vary)
        self.lengths = min(lengths) - slack, max(lengths) + slack
        self.begin(now, each)
        self.searching.wake_at(now + 2 * self.lengths[1])

    def wake(self) -> None:
        if self.state == ENDED:
            self.hook.remove()
            self.searching.stop()
            return
        now = self.searching.steps()
        if self.state == BEGINNING:
            self.lengths = self.period, self.period + max(2, self.period // 64)  # as far as the operator at hand goes
            self.begin(now, 0)
            self.searching.wake_at(now + self.period)
        elif self.state == PROFILING and self.rank == SEARCH:
            self.conclude(now)
        elif self.state == PROFILING:
            self.failed("the iteration did not end where it should have")
        else:
            self.look_unmarked(now)

    def look_unmarked(self, now: int) -> None:
        if now >= STEPS_MAX:
            return self.end(f"no iterations were recognised within {now} allocations and frees.")
        self.searching.wake_at(2 * now)
        if self.rank != SEARCH:
            return
        found = self.searching.find()
        before, self.before = self.before, found["steps"] if found else 0
        alike = found and found["repeats"] >= REPEATS_UNMARKED and 8 * abs(found["steps"] - before) <= before
        if alike and not _has_optimizer():  # of one that has made no step yet, this is no training: a validation before it
            self.period = found["steps"]
            self.state = BEGINNING
            self.searching.wake_at(now + self.period - found["since"] % self.period)

    def begin(self, now: int, marks: int) -> None:
        self.profile = Profile()
        self.profile.__enter__()
        self.state, self.began, self.left = PROFILING, now, marks

    def drop(self) -> None:
        """What is being profiled is not wanted."""
        if self.profile is not None:
            self.profile.__exit__(None, None, None)
        self.profile = None
        if self.state != ENDED:
            self.state = LOOKING

    def conclude(self, now: int) -> None:
        profile, steps = self.profile, now - self.began
        self.drop()
        if profile.ran_out:
            return self.failed("memory ran out in the profiled iteration")
        if not self.lengths[0] <= steps <= self.lengths[1]:
            return self.failed(f"the profiled iteration was not like those before it ({steps} allocations and frees, "
                               f"not {self.period})")
        facts = profile.facts
        if not facts.complete or not facts.allocations:
            return self.failed(facts.notes[0].rstrip(".") if facts.notes else "nothing was allocated in it")
        follow(facts)
        self.end()

    def failed(self, why: str) -> None:
        self.drop()
        self.attempts += 1
        if self.attempts >= ATTEMPTS:
            return self.end(f"{why}; that was the last of {ATTEMPTS} attempts.")
        _say(f"{why}; another attempt follows.")
        self.next_look = self.marked + 3
        self.before = 0
        self.searching.wake_at(self.searching.steps() + FIRST_LOOK)

    def end(self, why: str | None = None) -> None:
        if why is not None:
            _say(f"{why.rstrip('.')}; all stays untagged.")
        try:
            self.drop()
        finally:
            self.state = ENDED  # who looks at it without `busy` finds no profile going on
            self.searching.wake_at(0)


_search: Search | None = None
_iteration = -1


def start(adapter) -> None:
    """Begins to look for iterations; what dymem.install() calls for mobility:auto."""
    global _search
    _search = Search(adapter)
    _search.start()


def stand_aside() -> None:
    """The user profiles or follows by hand: nothing goes on by itself from here on."""
    search = _search
    if search is None or search.process != os.getpid() or search.state == ENDED:
        return
    search.stand_aside()


def mark_iteration() -> None:
    """See dymem.iteration()."""
    global _iteration
    _iteration += 1
    installed = getattr(sys.modules.get("dymem.install"), "_installed", None)
    if installed is not None and installed.trace:
        _mark_traces(_iteration)
    if _search is not None and _search.state != ENDED:
        _search.guarded(_search.mark, USER)


def _mark_traces(iteration: int) -> None:
    from dymem import _core
    from dymem.trace.marks import mark

    for device in range(_core.abi.DEVICES_MAX):
        mark(device, iteration, "F")


def _has_optimizer() -> bool:
    from torch.optim import Optimizer

    return any(issubclass(type(thing), Optimizer) for thing in gc.get_objects())


def _say(sentence: str) -> None:
    try:
        print(f"dymem: mobility: {sentence}", file=sys.stderr, flush=True)
    except Exception:  # no stderr
        pass
