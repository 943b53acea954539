"""Traces: what a program asked of an allocator, as the C++ core reads it (allocator/trace/event.hpp)."""

from dymem.trace.load import Recording, load, name_of

__all__ = ["Recording", "load", "name_of"]
