"""The core under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: pool_stress.cpp in every mode.

Skips, with the compiler's own words, where the compiler or the machine cannot run a sanitized program.
"""

import os
import subprocess
from pathlib import Path

import pytest

from core_programs import SANITIZERS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def stress(request, core_programs):
    return core_programs.build(Path(__file__).with_name("pool_stress.cpp"), request.param)


@pytest.mark.parametrize("mode", ["vmm", "remap", "contiguous", "limit"])
def test_many_threads(stress, mode):
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}
    answer = subprocess.run([str(stress), "6", "4000", "7", mode], env=environment, timeout=300, capture_output=True,
                            text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr[-6000:]
    assert answer.stdout.startswith(f"{mode}: ")
