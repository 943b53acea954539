"""Pictures of what an allocator did: address over time, bytes over time, sizes and lifetimes, who holds the peak.

Needs matplotlib and numpy (the extra `plot`); importing this package needs neither. `layout` turns a recording into a
Layout (who lay where, from when to when); every picture is drawn from Layouts and nothing else.
"""
