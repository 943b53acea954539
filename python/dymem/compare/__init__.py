"""What `dymem compare` does on a GPU: the same work under several allocators, each in a process of its own.

figures   step times to ratios with bounds (pure)
turns     one child process whose steps are let go one at a time
together  several such children taking turns, as many at once as the card holds; a failed one does not stop the rest
training  the bundled workloads under every allocator, repeated; and the same under hard caps
script    a user's own script under every allocator, through the start hook of `dymem run`
observe   the end of that hook: runs in the user's process, times optimizer steps, reads the peaks at exit
ending    nothing of a script is left: its processes in whatever session, and signals that ask this process to end
pictures  the curve over caps, address over time
page      one self-contained HTML page
"""
