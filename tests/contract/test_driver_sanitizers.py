"""The drivers under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: driver_program.cpp in both modes.

Skips where the compiler or the machine cannot run a sanitized program.
"""

import subprocess
from pathlib import Path

import pytest

from core_programs import SANITIZERS


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def program(request, core_programs):
    return core_programs.build(Path(__file__).with_name("driver_program.cpp"), request.param, layers=("base", "driver"))


@pytest.mark.parametrize("mode", ["bytes", "accounting"])
def test_nothing_to_report(program, mode):
    answer = subprocess.run([str(program), "400", mode], timeout=300, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    calls, failed = (int(word) for word in answer.stdout.replace(",", "").split() if word.isdigit())
    assert calls > 3 * 400 and failed > 0, answer.stdout
