"""Traces: what a program asked of an allocator, as the C++ core reads it (allocator/trace/event.hpp)."""

from dymem.trace.load import Recording, check_there, load, name_of

__all__ = ["Recording", "check_there", "load", "name_of"]
