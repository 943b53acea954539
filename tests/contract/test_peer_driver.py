"""Access for peers, when it is refused once. PyTorch notes that two devices see each other before it asks the allocator, and
asks once: so a peer is a peer from then on, and what it was refused is asked for again with the next granule."""

import subprocess
from pathlib import Path


def test_what_a_peer_was_refused_is_asked_for_again(core_programs):
    program = core_programs.build(Path(__file__).with_name("peer_program.cpp"), layers=("base", "driver"))
    run = subprocess.run([program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "two granules 1", "enabled 0", "granted 1",
        "a third granule 1", "granted 3",  # the new one, and the one that was refused
        "a fourth 0",  # cannot be used: told at once
        "enabled again 1", "another peer 1", "granted 6",  # the second peer sees all three that are there
    ]
