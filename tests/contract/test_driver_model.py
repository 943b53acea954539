"""Random sequences of calls against an independent model of D1 to D5 (and D8), kept in pages instead of ranges.

The model says for every call whether it must be allowed, and what every page reads as; the driver must agree on each
call, on how much is mapped and on how much of the device is held. Written for clarity: every question is answered by
looking at all pages.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dymem._core import driver as drivers

Code = drivers.Code
PAGES_MAX = 8  # of one reservation
TAG = 8        # bytes written at the start of a page


@dataclass
class Granule:
    handle: int
    pages: int
    destroyed: bool = False
    tags: dict = field(default_factory=dict)  # page of the granule -> what was written last


@dataclass
class Mapping:
    first: int  # page number of its address
    granule: Granule
    accessible: bool = False


class Model:
    def __init__(self):
        self.reservations = {}  # first page -> pages
        self.granules = []
        self.at_page = {}       # page number -> Mapping

    def reserved(self, page, pages):
        return any(first <= page and page + pages <= first + n for first, n in self.reservations.items())

    def mappings(self):
        return {id(m): m for m in self.at_page.values()}.values()

    def held_pages(self):
        mapped = {id(m.granule) for m in self.at_page.values()}
        return sum(g.pages for g in self.granules if not g.destroyed or id(g) in mapped)

    def may_map(self, page, pages, granule):
        return (not granule.destroyed and pages == granule.pages and self.reserved(page, pages)
                and not any(p in self.at_page for p in range(page, page + pages)))

    def may_touch(self, page, pages):
        """Whole mappings, at least one, adjacent, and in one reservation."""
        span = range(page, page + pages)
        return pages > 0 and self.reserved(page, pages) and all(
            p in self.at_page and self.at_page[p].first in span
            and self.at_page[p].first + self.at_page[p].granule.pages - 1 in span for p in span)

    def may_release(self, page, pages):
        return self.reservations.get(page) == pages and not any(p in self.at_page for p in range(page, page + pages))


small = st.integers(0, 11)
CALLS = ["reserve", "release", "create", "create", "destroy", "map", "map", "remap", "remap", "remap", "access",
         "access", "unmap", "unmap", "write", "write"]
steps = st.lists(st.tuples(st.sampled_from(CALLS), small, small, small), min_size=25, max_size=120)


def pick(items, index):
    return items[index % len(items)] if items else None


class Run:
    """One sequence on one rig; a page is one unit of granularity."""

    def __init__(self, rig):
        self.rig, self.model, self.unit = rig, Model(), rig.unit
        self.stamp = 0
        self.refused = self.allowed = 0
        self.had_aliases = False

    def expect(self, may, code):
        if may:
            self.allowed += 1
            assert code == Code.ok, (drivers.last_failure(), self.rig.kind.startswith("checked") and
                                     self.rig.driver.violations())
        else:
            self.refused += 1
            self.rig.refuses(code)
        return may

    def page_somewhere(self, a, b):
        """A page in or just beyond a reservation, mostly."""
        first = pick(sorted(self.model.reservations), a)
        return 1 if first is None else first + b % (PAGES_MAX + 1)

    def reserve(self, a, b, c):
        if len(self.model.reservations) < 4:
            pages = 1 + a % PAGES_MAX
            code, base = self.rig.driver.reserve(pages * self.unit)
            assert code == Code.ok and base % self.unit == 0
            page = base // self.unit
            for first, n in self.model.reservations.items():
                assert page + pages <= first or first + n <= page
            self.model.reservations[page] = pages

    def release(self, a, b, c):
        page = pick(sorted(self.model.reservations), a)
        if page is not None:
            pages = self.model.reservations[page] if c % 3 else 1 + b % PAGES_MAX
            code = self.rig.driver.release_addresses(page * self.unit, pages * self.unit)
            if self.expect(self.model.may_release(page, pages), code):
                del self.model.reservations[page]

    def create(self, a, b, c):
        pages = 1 + a % 3
        code, handle = self.rig.driver.create(pages * self.unit)
        assert code == Code.ok and handle not in [g.handle for g in self.model.granules if not g.destroyed]
        self.model.granules.append(Granule(handle, pages))

    def destroy(self, a, b, c):
        granule = pick(self.model.granules, a)
        if granule and self.expect(not granule.destroyed, self.rig.driver.destroy(granule.handle)):
            granule.destroyed = True

    def map(self, a, b, c):
        granule = pick(self.model.granules, c)
        if granule:
            pages = granule.pages if (a + b) % 4 else 1 + b % 4
            self.try_map(self.page_somewhere(a, b), pages, granule)

    def remap(self, a, b, c):
        """Maps where it fits: a second view of something, often."""
        granule = pick([g for g in self.model.granules if not g.destroyed], a)
        if granule:
            for first, n in sorted(self.model.reservations.items()):
                for page in range(first, first + n):
                    if self.model.may_map(page, granule.pages, granule):
                        return self.try_map(page, granule.pages, granule)

    def try_map(self, page, pages, granule):
        if self.expect(self.model.may_map(page, pages, granule),
                       self.rig.driver.map(page * self.unit, pages * self.unit, granule.handle)):
            mapping = Mapping(page, granule)
            self.had_aliases |= any(m.granule is granule for m in self.model.mappings())
            for p in range(page, page + pages):
                self.model.at_page[p] = mapping

    def run_of_views(self, a, b, c):
        """Often a legal run, else anything."""
        mapping = pick(sorted(self.model.mappings(), key=lambda m: m.first), a)
        if mapping is None or c % 4 == 0:
            return self.page_somewhere(a, b), c % 5
        pages = mapping.granule.pages
        following = self.model.at_page.get(mapping.first + pages)
        if b % 2 and following:
            pages += following.granule.pages
        return mapping.first, pages

    def access(self, a, b, c):
        page, pages = self.run_of_views(a, b, c)
        code = self.rig.driver.set_access(page * self.unit, pages * self.unit)
        if self.expect(self.model.may_touch(page, pages), code):
            for p in range(page, page + pages):
                self.model.at_page[p].accessible = True

    def unmap(self, a, b, c):
        page, pages = self.run_of_views(a, b, c)
        code = self.rig.driver.unmap(page * self.unit, pages * self.unit)
        if self.expect(self.model.may_touch(page, pages), code):
            for p in range(page, page + pages):
                del self.model.at_page[p]

    def write(self, a, b, c):
        page = pick(sorted(self.model.at_page), a * 12 + b)
        if page is None or not self.rig.has_bytes:
            return
        mapping = self.model.at_page[page]
        self.stamp += 1
        data = self.stamp.to_bytes(TAG, "little")
        if self.expect(mapping.accessible, self.rig.driver.write(page * self.unit, data)):
            mapping.granule.tags[page - mapping.first] = data

    def compare(self):
        if self.rig.emulated:
            assert self.rig.emulated.physical_in_use() == self.model.held_pages() * self.unit
            assert self.rig.emulated.mapped_addresses() == len(self.model.at_page) * self.unit
            assert self.rig.emulated.mappings() == len(self.model.mappings())
        if self.rig.has_bytes:
            for page, mapping in self.model.at_page.items():
                tag = mapping.granule.tags.get(page - mapping.first)
                if mapping.accessible and tag is not None:
                    assert self.rig.driver.read(page * self.unit, TAG) == (Code.ok, tag)

    def clean_up(self):
        for mapping in list(self.model.mappings()):
            assert self.rig.driver.unmap(mapping.first * self.unit, mapping.granule.pages * self.unit) == Code.ok
        for granule in self.model.granules:
            if not granule.destroyed:
                assert self.rig.driver.destroy(granule.handle) == Code.ok
        for page, pages in self.model.reservations.items():
            assert self.rig.driver.release_addresses(page * self.unit, pages * self.unit) == Code.ok


def run(rig, sequence):
    state = Run(rig)
    for call, a, b, c in sequence:
        getattr(state, call)(a, b, c)
        state.compare()
    event(f"aliases: {state.had_aliases}")
    event(f"refusals: {state.refused > 0}")
    state.clean_up()
    rig.close()


common = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@pytest.mark.parametrize("kind", ["bytes", "accounting", "checked", "faulty"])
@settings(max_examples=120, **common)
@given(sequence=steps)
def test_agrees_with_the_model(open_rig, kind, sequence):
    run(open_rig(kind, capacity=1 << 30), sequence)


@pytest.mark.gpu
@settings(max_examples=60, **common)
@given(sequence=steps)
def test_the_card_agrees_with_the_model(open_rig, sequence):
    run(open_rig("checked-cuda"), sequence)


def test_the_model_itself_can_say_no():
    """A model that allowed everything, or nothing, would make the comparison above worthless."""
    model = Model()
    granule = Granule(1, 2)
    model.reservations[10] = 4
    assert model.may_map(10, 2, granule) and not model.may_map(13, 2, granule) and not model.may_map(10, 1, granule)
    mapping = Mapping(10, granule)
    model.at_page = {10: mapping, 11: mapping}
    assert model.may_touch(10, 2) and not model.may_touch(10, 1) and not model.may_touch(11, 1)
    assert not model.may_touch(10, 3) and not model.may_map(11, 2, granule) and not model.may_release(10, 4)
    model.granules = [granule]
    granule.destroyed = True
    assert model.held_pages() == 2  # still mapped
    model.at_page = {}
    assert model.held_pages() == 0 and model.may_release(10, 4) and not model.may_map(10, 2, granule)
