"""How the adapter's files are compiled: no more at once than fit, a compiler that was killed again, none left, whatever
ends the process that builds."""

import io
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from processes import gone

from dymem import _adapter_build
from dymem.errors import InstallError

TORCH = SimpleNamespace(__version__="2.11.0")
COUNTS = """
import os, sys, time
from pathlib import Path
running = Path("running")
mine = running / sys.argv[1]
mine.touch()
Path(f"beside-{sys.argv[1]}").write_text(str(len(list(running.iterdir()))))
time.sleep(0.3)
mine.unlink()
"""
DIES_ONCE = """
import os, sys
from pathlib import Path
if not Path("tried-" + sys.argv[1]).exists():
    Path("tried-" + sys.argv[1]).touch()
    {death}
"""
HANGS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids.part-" + sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
os.rename("pids.part-" + sys.argv[1], "pids-" + sys.argv[1])
time.sleep(600)
"""


@pytest.fixture
def compile_all(tmp_path, monkeypatch):
    """Runs a program as the compiler of so many files, on a machine of so many cores and kB; returns the log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "running").mkdir()

    def compile_all(code, count, cores=2, memory="MemAvailable: 64000000 kB"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        (tmp_path / "meminfo").write_text(f"MemTotal: 99999999 kB\n{memory}\n")
        monkeypatch.setattr(_adapter_build, "_MEMORY", tmp_path / "meminfo")
        (tmp_path / "compiler.py").write_text(code)
        commands = [[sys.executable, "compiler.py", str(number)] for number in range(count)]
        log = tmp_path / "build.log"
        with open(log, "w") as out:
            _adapter_build._run_all(TORCH, commands, out, log)
        return log.read_text()

    return compile_all


@pytest.mark.parametrize("cores, memory, most", [
    (2, "MemAvailable: 64000000 kB", 2), (8, "MemAvailable: 4500000 kB", 3), (8, "MemAvailable: 200000 kB", 1),
    (3, "", 3)])
def test_no_more_at_once_than_there_are_cores_and_memory_for(compile_all, tmp_path, cores, memory, most):
    compile_all(COUNTS, 7, cores, memory)
    beside = [int(path.read_text()) for path in tmp_path.glob("beside-*")]
    assert len(beside) == 7 and max(beside) <= most


@pytest.mark.parametrize("death", [
    "os.kill(os.getpid(), 9)", "sys.exit('g++: fatal error: Killed signal terminated program cc1plus')",
    "sys.exit('clang++: error: unable to execute command: Killed')"])
def test_a_compiler_that_was_killed_is_tried_once_more(compile_all, tmp_path, death):
    log = compile_all(DIES_ONCE.format(death=death), 3)
    assert len(list(tmp_path.glob("tried-*"))) == 3 and log.count("compiler.py") == 3
    with pytest.raises(InstallError, match=r"could not be built: .*; all that"):
        compile_all(DIES_ONCE.format(death=death).replace("if not", "if True or"), 1)


def test_an_error_in_the_sources_is_tried_once_and_told(compile_all, tmp_path):
    code = ("import sys; open('tries', 'a').write('x')\n"
            "print('a.cpp:1: note: hm'); print('a.cpp:2: error: no ' + sys.argv[1]); sys.exit(1)")
    with pytest.raises(InstallError, match="could not be built: a.cpp:2: error: no 0; all that"):
        compile_all(code, 3)
    assert (tmp_path / "tries").read_text() == "x" * 3
    log = (tmp_path / "build.log").read_text()
    assert [line for line in log.splitlines() if "error" in line] == [f"a.cpp:2: error: no {n}" for n in range(3)]


def test_an_interrupted_build_leaves_no_compiler_behind(root, tmp_path):
    """As by a notebook's stop button: the signal reaches Python alone."""
    (tmp_path / "compiler.py").write_text(HANGS)
    code = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from dymem import _adapter_build
os.sched_getaffinity = lambda pid: {0, 1}
signal.signal(signal.SIGINT, signal.default_int_handler)
commands = [[sys.executable, "compiler.py", str(number)] for number in range(2)]
try:
    _adapter_build._run_all(SimpleNamespace(__version__="2.11.0"), commands, sys.stdout, Path.cwd() / "build.log")
except KeyboardInterrupt:
    print("stopped")
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(root / "python")})
    until = time.monotonic() + 120
    while len(files := list(tmp_path.glob("pids-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    pids = [int(pid) for path in files for pid in path.read_text().split()]
    assert len(pids) == 4, "the compilers did not start"
    process.send_signal(signal.SIGINT)
    try:
        assert process.communicate(timeout=120)[0] == "stopped\n"
        assert all([gone(pid) for pid in pids])
    finally:
        for pid in pids:
            if not gone(pid, 0):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("cores, memory, words", [
    (1, "", "about 60 s on 1 core"), (2, "", "about 30 s on 2 cores"), (64, "", "about 30 s on 64 cores"),
    (8, "MemAvailable: 2000000 kB", "about 60 s on 1 core")])
def test_how_long_it_takes_goes_by_the_machine(monkeypatch, tmp_path, cores, memory, words):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    (tmp_path / "meminfo").write_text(memory)
    monkeypatch.setattr(_adapter_build, "_MEMORY", tmp_path / "meminfo")
    assert _adapter_build.how_long() == words


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_told_how_many_are_done_on_one_line(compile_all, monkeypatch, terminal):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    compile_all("", 3)
    lines = [f"dymem: {done} of 3 parts" for done in range(4)] + [""]
    assert stderr.getvalue() == ("".join(f"\r\033[K{line}" for line in lines) if terminal else "")


# --- a whole build, of a torch that is none, by compilers that hang; each says who it and its child are

NEVER_DONE = HANGS.replace('"pids.part-" + sys.argv[1]', '"part-%d" % os.getpid()').replace(
    '"pids-" + sys.argv[1]', '"pids-%d" % os.getpid()')
BUILD = """
import os, signal, sys, threading
from types import SimpleNamespace
from dymem import _adapter_build
os.sched_getaffinity = lambda pid: {{0, 1}}
_adapter_build._cuda_includes = lambda package: []
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
torch = SimpleNamespace(__version__="2.11.0", __file__=__file__, _C=SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True),
                        version=SimpleNamespace(cuda="13.0", git_version="none"))
def build():
    _adapter_build.load(torch)
{how}
"""
CATCHES = """
try:
    build()
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
HANDLES = """
def handler(number, frame):
    print("handled")
    sys.exit(7)
signal.signal(signal.SIGTERM, handler)
try:
    build()
finally:
    print(signal.getsignal(signal.SIGTERM) is handler)
"""
ON_A_THREAD = "thread = threading.Thread(target=build)\nthread.start()\nthread.join()"


@pytest.mark.parametrize("how, number, code, told", [
    (CATCHES, signal.SIGTERM, -signal.SIGTERM, ""), (CATCHES, signal.SIGHUP, -signal.SIGHUP, ""),
    (CATCHES, signal.SIGINT, 0, "interrupted True\n"), (HANDLES, signal.SIGTERM, 7, "handled\nTrue\n"),
    (CATCHES, signal.SIGKILL, -signal.SIGKILL, ""), (ON_A_THREAD, signal.SIGTERM, -signal.SIGTERM, "")],
    ids=["SIGTERM", "SIGHUP", "SIGINT", "handler", "SIGKILL", "thread"])
def test_whatever_ends_a_build_leaves_nothing_of_it(root, tmp_path, how, number, code, told):
    (tmp_path / "compiler").write_text(f"#!{sys.executable}\n{NEVER_DONE}")
    (tmp_path / "compiler").chmod(0o755)
    (tmp_path / "build.py").write_text(BUILD.format(how=how))
    process = subprocess.Popen([sys.executable, "build.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, "PYTHONPATH": str(root / "python"),
                                               "CXX": str(tmp_path / "compiler"), "DYMEM_CACHE": str(tmp_path / "cache")})
    pids = []
    try:
        until = time.monotonic() + 120
        while len(files := list(tmp_path.glob("pids-*"))) < 2 and time.monotonic() < until and process.poll() is None:
            time.sleep(0.01)
        pids = [int(pid) for path in files for pid in path.read_text().split()]
        assert len(pids) == 4, "the compilers did not start"
        assert list(tmp_path.glob("cache/adapter/*/building-*"))
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (code, told) and "Traceback" not in err, err
        assert all([gone(pid) for pid in pids])
        caught = number != signal.SIGKILL and how is not ON_A_THREAD  # else the next build takes the folder away
        assert bool(list(tmp_path.glob("cache/adapter/*/building-*"))) is not caught
    finally:
        process.kill()
        for pid in pids:
            if not gone(pid, 0):
                os.kill(pid, signal.SIGKILL)
