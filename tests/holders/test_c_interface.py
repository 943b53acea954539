"""dymem.h: the example compiles against the header and the library as they are installed, and runs on the emulated driver;
what memory_stats() says of holders adds up."""

import os
import shutil
import subprocess

import pytest

import dymem

MIB = 1 << 20
C_COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
needs_c = pytest.mark.skipif(C_COMPILER is None, reason="needs a C compiler")


@needs_c
def test_the_example_compiles_and_runs(root, tmp_path):
    library = dymem.library_path()
    subprocess.run([C_COMPILER, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", dymem.include_path(),
                    root / "examples" / "hold.c", library, f"-Wl,-rpath,{os.path.dirname(library)}", "-o", tmp_path / "hold"],
                   check=True)
    run = subprocess.run([tmp_path / "hold"], env={"DYMEM_CONF": "driver:emulated,limit:128MiB"}, capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    first, too_much, twice, given_back = run.stdout.splitlines()
    assert first == f"held {64 * MIB}, live {64 * MIB}, reserved {64 * MIB}"
    assert "32768.00 GiB" in too_much and "limit" in too_much
    assert "is not held: it was released already" in twice
    assert int(given_back.split()[-1]) == 64 * MIB


@needs_c
def test_the_header_is_c_and_cpp(tmp_path):
    for language in ("c", "c++"):
        subprocess.run([C_COMPILER, "-x", language, "-fsyntax-only", "-Wall", "-Wpedantic", "-Werror", "-I",
                        dymem.include_path(), "-"], input="#include <dymem.h>\nint x = DYMEM_OK;\n", text=True, check=True)


@needs_c
def test_every_failure_has_a_status_and_one_sentence(python):
    """Through ctypes, as any language would call it."""
    run = python("-c", """
import ctypes, dymem
lib = ctypes.CDLL(dymem.library_path())
lib.dymem_last_error.restype = ctypes.c_char_p
p, n = ctypes.c_void_p(), ctypes.c_uint64()
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("struct_bytes", "live", "pending", "reserved", "peak", "limit", "more")]
def call(name, *arguments):
    status = getattr(lib, name)(*arguments)
    sentence = lib.dymem_last_error().decode() if status else ""
    assert "\\n" not in sentence and bool(sentence) == bool(status)
    return status, sentence
assert lib.dymem_abi() == 1 and lib.dymem_last_error() == b""
assert call("dymem_configure", b"limt:3")[0] == 2 and call("dymem_configure", None)[0] == 2
assert call("dymem_configure", b"driver:emulated,limit:64MiB") == (0, "")
assert call("dymem_hold", None, ctypes.c_size_t(1), 0, None, b"x")[0] == 2
assert call("dymem_hold", ctypes.byref(p), ctypes.c_size_t(1), 0, None, None)[0] == 2
for name in (b"", b"torch", b"x" * 65):
    assert "a holder has a name" in call("dymem_hold", ctypes.byref(p), ctypes.c_size_t(1), 0, None, name)[1]
assert "no device 7" in call("dymem_hold", ctypes.byref(p), ctypes.c_size_t(1), 7, None, b"x")[1]
assert call("dymem_hold", ctypes.byref(p), ctypes.c_size_t(0), 0, None, b"x") == (0, "") and p.value is None
assert call("dymem_hold", ctypes.byref(p), ctypes.c_size_t(65 << 20), 0, None, b"x")[0] == 1 and p.value is None
assert call("dymem_hold", ctypes.byref(p), ctypes.c_size_t(1000), 0, None, b"x") == (0, "")
assert call("dymem_use_on_stream", ctypes.c_void_p(p.value + 1), None)[0] == 2
info = Info(struct_bytes=ctypes.sizeof(Info), more=7)  # of a program with a newer header: what is not known stays
assert call("dymem_memory", 0, ctypes.byref(info)) == (0, "")
assert (info.live, info.limit, info.more) == (1024, 64 << 20, 7)
assert call("dymem_memory", 0, ctypes.byref(Info()))[0] == 2 and call("dymem_memory", 99, ctypes.byref(info))[0] == 2
old = Info(struct_bytes=16, reserved=5)
assert call("dymem_memory", 0, ctypes.byref(old)) == (0, "") and (old.live, old.reserved) == (1024, 5)
assert call("dymem_held", 0, b"x", ctypes.byref(n)) == (0, "") and n.value == 1024
assert call("dymem_held", 0, b"nobody", ctypes.byref(n)) == (0, "") and n.value == 0
stats = dymem.memory_stats()
assert (stats["held_bytes.x"], stats["held_bytes.torch"], stats["allocated_bytes.all.current"]) == (1024, 0, 1024)
dymem.sleep()
assert call("dymem_hold", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1), 0, None, b"x")[0] == 4
assert call("dymem_release", p) == (0, "") and call("dymem_release", None) == (0, "")
assert call("dymem_release", p)[0] == 2
dymem.wake()
assert dymem.memory_stats()["held_bytes.x"] == 0 and call("dymem_give_back", None) == (0, "")
from dymem import _core
assert _core.abi.pool(0).audit() == []
print("ok")
""")
    assert run.returncode == 0 and run.stdout == "ok\n", run.stderr


def test_holders_add_up(python):
    """PyTorch's is what no other holds, on each device of its own."""
    run = python("-c", """
import dymem
from dymem import _core
pool = _core.abi.pool(0)
mine = pool.malloc(10 << 20)
a, b, c = _core.abi.hold(1, 0, 0, "cupy"), _core.abi.hold(3 << 20, 0, 0, "c"), _core.abi.hold(1 << 20, 1, 0, "cupy")
for device, torch, cupy, other in ((0, 10 << 20, 512, 3 << 20), (1, 0, 1 << 20, None)):
    stats = dymem.memory_stats(device)
    assert (stats["held_bytes.torch"], stats["held_bytes.cupy"], stats.get("held_bytes.c")) == (torch, cupy, other)
    held = sum(value for key, value in stats.items() if key.startswith("held_bytes."))
    assert held == stats["allocated_bytes.all.current"]
for address in (a, b, c): _core.abi.release(address)
assert dymem.memory_stats()["held_bytes.torch"] == 10 << 20
try: _core.abi.release(a)
except dymem.InvalidArgument as error: print(error)
try: _core.abi.release(mine)
except dymem.InvalidArgument: print("PyTorch's")
""", env={"DYMEM_CONF": "driver:emulated,emulated_devices:2"})
    assert run.returncode == 0 and "is not held" in run.stdout and "PyTorch's" in run.stdout, run.stderr


def test_a_name_that_cannot_be_shown_is_refused_before_anything_is_held(python):
    """memory_stats() has the names as its keys: one that is no text would break it for good."""
    run = python("-c", """
import ctypes, dymem
lib = ctypes.CDLL(dymem.library_path())
at = ctypes.c_void_p()
for name in (b"\\xff\\xfe", b"two\\nlines", b"", b"torch", b"x" * 65, "caf\\u00e9".encode()):
    assert lib.dymem_hold(ctypes.byref(at), ctypes.c_size_t(100), 0, None, name) != 0, name
assert lib.dymem_hold(ctypes.byref(at), ctypes.c_size_t(100), 0, None, b"my program") == 0
assert {key for key in dymem.memory_stats() if key.startswith("held_bytes.")} == {"held_bytes.torch", "held_bytes.my program"}
""", env={"DYMEM_CONF": "driver:emulated"})
    assert run.returncode == 0, run.stderr


ENDS = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include "dymem.h"
// Takes small blocks of the heap, as whoever runs last might, and looks whether a failure of dymem's writes to them.
static void fails(const char* when) {
  static unsigned char* held[512];
  for (int i = 0; i < 512; i++) memset(held[i] = (unsigned char*)malloc(16 + 8 * (i % 64)), 0x11, 16 + 8 * (i % 64));
  const int status = dymem_release((void*)0x1234);
  int bad = 0;
  for (int i = 0; i < 512; i++)
    for (int k = 0; k < 16 + 8 * (i % 64); k++) bad += held[i][k] != 0x11;
  std::printf("%s %d %d %s\n", when, status, bad, dymem_last_error());
}
struct Ends { const char* when = nullptr; ~Ends() { if (when) fails(when); } };
static thread_local Ends of_thread;
static Ends of_process{"process"};
int main() {
  dymem_configure("driver:emulated");
  std::thread([] { of_thread.when = "thread"; dymem_release((void*)0x1000); }).join();
  dymem_release((void*)0x1000);
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_failures_while_a_thread_or_the_process_ends_write_to_nothing_that_has_gone(tmp_path):
    """Objects of a thread, and static ones, release memory in their destructors, when ours may have run."""
    library = dymem.library_path()
    (tmp_path / "ends.cpp").write_text(ENDS)
    subprocess.run(["g++", "-pthread", "-I", dymem.include_path(), tmp_path / "ends.cpp", library,
                    f"-Wl,-rpath,{os.path.dirname(library)}", "-o", tmp_path / "ends"], check=True)
    run = subprocess.run([tmp_path / "ends"], capture_output=True, text=True, env={"MALLOC_PERTURB_": "165"})
    assert run.returncode == 0, run.stderr
    for line, when in zip(run.stdout.splitlines(), ("thread", "process"), strict=True):
        assert line.startswith(f"{when} 2 0 dymem: ") and "is not held" in line, line


def test_a_child_forked_while_another_thread_makes_the_pool_is_told(python):
    """And does not wait for a lock whose holder is not there; one that is forked before the first use begins anew."""
    run = python("-c", """
import os, signal, threading, dymem
from dymem import _core
def in_child(ask):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # which ends it
        os._exit(ask())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def hold():
    try:
        _core.abi.release(_core.abi.hold(1 << 20, 0, 0, "cupy"))
        return 0
    except dymem.DymemError as error:
        return 3 if "was forked from one that had already used the GPU" in str(error) else 4
def round():
    maker = threading.Thread(target=hold)
    maker.start()
    told = []
    while maker.is_alive() or not told:
        told.append(in_child(hold))
    return 0 if set(told) <= {0, 3} and in_child(hold) == 3 else 5
for _ in range(40):
    assert in_child(round) == 0
assert in_child(hold) == 0
""", env={"DYMEM_CONF": "driver:emulated"})
    assert run.returncode == 0, run.stderr


def test_a_forked_child_lets_go_of_nothing(python):
    run = python("-c", """
import os, dymem
from dymem import _core
a = _core.abi.hold(1 << 20, 0, 0, "cupy")
if os.fork() == 0:
    _core.abi.release(a)
    os._exit(0 if _core.abi.held_by_others() == {} else 1)
assert os.wait()[1] == 0 and _core.abi.held_by_others() == {"cupy": 1 << 20}
_core.abi.release(a)
""", env={"DYMEM_CONF": "driver:emulated"})
    assert run.returncode == 0, run.stderr
