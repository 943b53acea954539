"""install(): once, early, without touching CUDA, and one clear sentence for all that can go wrong."""

import json
import os
import shutil
import stat
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch
EMULATED = "driver='emulated', emulated_capacity='64MiB'"


def test_four_processes_at_once_build_once(first_build):
    assert [r.returncode for r in first_build.results] == [0] * 4, [r.err for r in first_build.results]
    assert [r.out.strip() for r in first_build.results] == ["dymem"] * 4
    lines = [line for r in first_build.results for line in r.err.splitlines() if line.startswith("dymem: building its adapter")]
    assert len(lines) == 1
    folders = list((first_build.cache / "adapter").iterdir())
    assert len(folders) == 1 and sorted(p.name for p in folders[0].iterdir()) == ["_torch.so", "build.log", "built.json", "lock"]


def test_it_is_pytorchs_allocator_and_nothing_was_touched(script):
    script("""
        assert torch.cuda.get_allocator_backend() == "dymem"
        assert _torch.cuda_allocator_is_ours() and _torch.accelerator_allocator_is_ours()
        assert not torch.cuda.is_initialized()
        assert not _core.abi.made(0)
        assert not any(value for key, value in dymem.memory_stats().items())
    """)


def test_a_child_forked_while_another_thread_installs_can_install(script):
    """Whoever held the locks is not in the child; and the child, alive, holds none that others wait for."""
    script("""
        import fcntl, signal, tempfile, threading, time
        from pathlib import Path
        from dymem import _adapter_build
        folder = Path(tempfile.mkdtemp())
        real, building = _adapter_build.load, threading.Event()
        def slow(torch):
            with _adapter_build._locked(folder):
                building.set()
                time.sleep(1)
            return real(torch)
        _adapter_build.load = slow
        parent = threading.Thread(target=lambda: dymem.install(driver="emulated"))
        parent.start()
        building.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            _adapter_build.load = real
            dymem.install(driver="emulated")
            os.close(1)
            time.sleep(600)
        parent.join()
        asked = time.monotonic()
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free, although the child has it open
        try:
            while "_torch.so" not in open(f"/proc/{child}/maps").read():  # its install() went through
                assert os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < asked + 50
                time.sleep(0.05)
        finally:
            os.kill(child, signal.SIGKILL)
    """, conf=None)


def test_again_with_the_same_configuration_does_nothing_with_another_raises(script):
    script("""
        dymem.install(dymem.Config(driver="emulated", emulated_capacity=64 * MiB))
        dymem.install("driver:emulated,emulated_capacity:64MiB")
        raises(dymem.InstallError, lambda: dymem.install(driver="emulated", limit="1GiB"), "already", "limit:1073741824")
        assert torch.cuda.get_allocator_backend() == "dymem"
    """)


def test_an_allocator_that_took_its_place_is_told_of(script):
    script("""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(dymem.library_path(), "dymem_malloc", "dymem_free")
        torch.cuda.memory.change_current_allocator(allocator)
        for limit in (None, "1GiB"):
            raises(dymem.InstallError, lambda: dymem.install(driver="emulated", emulated_capacity="64MiB", limit=limit),
                   "'pluggable'", "taken dymem's place", "change_current_allocator")
    """)


def test_where_warnings_are_errors_nothing_is_half_done(script):
    script("""
        import warnings
        warnings.simplefilter("error")
        raises(UserWarning, lambda: dymem.install(driver="emulated", limit="32MiB"), "max_split_size_mb")
        assert torch.cuda.get_allocator_backend() == "native"
        warnings.simplefilter("ignore")
        dymem.install(driver="emulated", limit="16MiB")
        assert torch.cuda.get_allocator_backend() == "dymem" and "limit:16777216" in _core.abi.process_config()
    """, conf=None, PYTORCH_ALLOC_CONF="max_split_size_mb:64")


def test_configuration_comes_from_the_environment_and_keys_go_on_top(script):
    script("""
        dymem.install(limit="32MiB")
        assert "limit:33554432" in _core.abi.process_config()
        assert "emulated_devices:3" in _core.abi.process_config()
        assert _core.abi.device_count() == 3
    """, conf=None, DYMEM_CONF="driver:emulated,emulated_devices:3,limit:16MiB")


@pytest.mark.parametrize("backing, before, after", [("auto", None, "0"), ("vmm", None, "0"), ("vmm", "1", "1"),
                                                    ("contiguous", None, None)])
def test_nccl_registers_no_captured_buffers_unless_told_to(script, backing, before, after):
    """Pages of a block may be several, or others after sleeping: a graph must not reach the ones NCCL saw."""
    script(f"""
        import os
        dymem.install(driver="emulated", backing={backing!r})
        assert os.environ.get("NCCL_GRAPH_REGISTER") == {after!r}
    """, conf=None, **({"NCCL_GRAPH_REGISTER": before} if before else {}))


def test_unknown_keys_and_bad_values_name_what_is_valid(script):
    script("""
        for call in (lambda: dymem.install(limitt="1GiB"), lambda: dymem.install("limitt:1GiB"),
                     lambda: _core.abi.configure("limitt:1GiB")):
            raises(dymem.InvalidArgument, call, "limitt", ", ".join(dymem.Config.keys()))
        raises(dymem.ConfigError, lambda: dymem.install(limit="a lot"), "limit", "20GiB")
        raises(dymem.ConfigError, lambda: dymem.install(17), "int")
        assert torch.cuda.get_allocator_backend() == "native"
    """, conf=None)


def test_the_core_and_python_read_the_same_configuration(script):
    script("""
        import dataclasses
        assert _core.abi.valid_keys() == dymem.Config.keys()
        def pairs(text):
            return dict(item.split(":") for item in text.split(","))
        defaults = pairs(_core.abi.parse_config(""))
        for field in dataclasses.fields(dymem.Config):
            value = {True: "on", False: "off"}.get(field.default, field.default) if isinstance(field.default, bool) else field.default
            assert defaults[field.name] == str(value), field.name
        for text in ("limit:20GiB", "limit:1.5GiB", "limit:20GB", "limit:none", "backing:contiguous", "alias:off", "debug:on",
                     "grow_ratio:0.25", "grow_slack:0", "trace:yes", "emulated_devices:64,emulated_capacity:1TiB"):
            assert _core.abi.parse_config(text) == _core.abi.parse_config(dymem.Config.from_conf(text).to_conf()), text
        for text in ("limit:-1", "limit:1XB", "limit:1.5", "limit", "alias:maybe", "grow_ratio:2", "emulated_devices:0",
                     "emulated_devices:65", "emulated_capacity:0", "backing:none", "driver:rocm", "limit:1,limit:2",
                     "limit:99999TiB", "limit:nan"):
            raises(dymem.InvalidArgument, lambda: _core.abi.parse_config(text))
            raises(dymem.InvalidArgument, lambda: dymem.Config.from_conf(text))
    """, conf=None)


def test_after_cuda_was_used_it_refuses(script):
    script("""
        torch.cuda.is_initialized = lambda: True
        raises(dymem.InstallError, lambda: dymem.install(driver="emulated"), "CUDA was used", "dymem.install()")
        assert torch.cuda.get_allocator_backend() == "native"
    """, conf=None)


def test_an_allocator_in_use_is_not_replaced(script):
    script("""
        assert not _torch.native_initialized()
        _torch.init()  # what PyTorch does at the first use of CUDA
        assert _torch.native_initialized()
        raises(dymem.InvalidArgument, _torch.install, "before the first use of CUDA")
    """)


def test_beside_another_allocator_it_refuses(script):
    script("""
        torch.cuda.get_allocator_backend = lambda: "pluggable"
        raises(dymem.InstallError, lambda: dymem.install(driver="emulated"), "another allocator ('pluggable')")
    """, conf=None)


def test_the_wrong_torch(script):
    script("""
        def refuses(*words):
            raises(dymem.InstallError, lambda: dymem.install(driver="emulated"), *words)
        right, torch.__version__ = torch.__version__, "2.9.1"
        refuses("2.11 or newer", "2.9.1")
        torch.__version__, torch.version.cuda = right, None
        refuses("built without CUDA")
        sys.modules["torch"] = None
        refuses("torch is not installed", "pip install torch")
    """, conf=None)


def test_no_compiler_and_one_that_fails(script, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'adapter.cpp:1: error: this compiler is broken'\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    attempt = "raises(dymem.InstallError, lambda: dymem.install(driver='emulated'), {})"
    script(attempt.format("'C++20 compiler', '/no/such/compiler', 'CXX'"), conf=None, cache=tmp_path / "a", CXX="/no/such/compiler")
    script(attempt.format("'C++20 compiler', 'CXX'"), conf=None, cache=tmp_path / "a", CXX="'g++")
    script(attempt.format("'C++20 compiler', 'none is there', 'g++'"), conf=None, cache=tmp_path / "a", PATH="/nowhere")
    done = script(attempt.format("'could not be built', 'this compiler is broken', 'build.log'"), conf=None,
                  cache=tmp_path / "b", CXX=str(broken))
    assert done.err.count("dymem: building its adapter") == 1
    log = next((tmp_path / "b").glob("adapter/*/build.log")).read_text()
    assert "this compiler is broken" in log and str(broken) in log
    assert not list((tmp_path / "b").glob("adapter/*/building-*"))


def test_a_compiler_that_is_no_program(script, tmp_path):
    (tmp_path / "text").write_text("an executable file, and no program")
    (tmp_path / "text").chmod(0o755)
    script("""
        error = raises(dymem.InstallError, lambda: dymem.install(driver="emulated"), "text does not run", "CXX")
        assert "DYMEM_CACHE" not in str(error)
    """, conf=None, cache=tmp_path / "c", CXX=str(tmp_path / "text"))


def test_a_cache_that_cannot_be_written(script, tmp_path):
    (tmp_path / "file").write_text("")
    script("raises(dymem.InstallError, lambda: dymem.install(driver='emulated'), 'DYMEM_CACHE', 'write')", conf=None,
           cache=tmp_path / "file")


@pytest.mark.slow
def test_a_damaged_adapter_is_built_again_and_a_new_torch_is_told_of(script, first_build, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(first_build.cache, cache)
    folder = next((cache / "adapter").iterdir())
    (folder / "building-1").mkdir()  # of a build that was killed
    whole = (folder / "_torch.so").read_bytes()
    (folder / "_torch.so").write_bytes(whole[: len(whole) // 2])  # loading this would kill the process
    stamp = json.loads((folder / "built.json").read_text())
    (folder / "built.json").write_text(json.dumps({**stamp, "torch": "2.13.9"}))
    code = "assert torch.cuda.get_allocator_backend() == 'dymem'"
    first = script(code, cache=cache, seconds=1500)  # it compiles
    assert first.err.count("dymem: torch is now") == 1 and "built for 2.13.9: building it again" in first.err
    assert (folder / "_torch.so").stat().st_size == len(whole)
    assert not list(folder.glob("building-*"))
    assert script(code, cache=cache).err == ""


def test_settings_of_pytorchs_allocator_that_mean_nothing_are_named(script):
    done = script("", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,roundup_power2_divisions:[256:1,>:4],"
                  "pinned_use_background_threads:True,per_process_memory_fraction:0.5,max_split_size_mb:64")
    for key in ("expandable_segments", "roundup_power2_divisions", "max_split_size_mb"):
        assert done.err.count(f"{key} (") == 1, done.err
    assert "pinned_use" not in done.err and "per_process" not in done.err and "PYTORCH_CUDA_ALLOC_CONF" in done.err
    assert done.err.count("Warning") == 1
    assert script("", PYTORCH_ALLOC_CONF="backend:native,expandable_segments:False,pinned_num_register_threads:4").err == ""


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
def test_a_backend_chosen_for_pytorch_fails_no_allocation(first_build, variable, backend):
    # In a process of its own: PyTorch chooses while it is imported.
    code = f"""
import sys
import torch, dymem
if {backend!r} == "cudaMallocAsync" and torch.__version__ < "2.12":
    try:
        torch.cuda.cudart().cudaMemGetInfo(0)
    except Exception:
        sys.exit("no driver: torch 2.11 asks it when it reads this setting, and fails without dymem too")
dymem.install(driver="emulated", emulated_capacity="64MiB")
from dymem import _torch
for _ in range(2):
    assert _torch.allocate_on(1000).address
from dymem.alloc_conf import SETTERS
for setter in [getattr(torch._C, name) for name in SETTERS if hasattr(torch._C, name)]:
    setter("backend:{backend}")
    setter(" backend : {backend} ,pinned_use_background_threads:True")
    setter("pinned_use_background_threads:False,backend:{backend}")
    for other in ("native", "cudaMallocAsync"):
        if other == "{backend}":
            continue
        try:
            setter("backend:" + other)
        except RuntimeError as error:
            assert "at load time" in str(error)
        else:
            raise AssertionError("PyTorch took another backend than it was loaded with")
assert torch.cuda.get_allocator_backend() == "dymem"
"""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("DYMEM_", "PYTORCH_"))}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True,
                          env={**clean, "DYMEM_CACHE": str(first_build.cache), variable: f"backend:{backend}"})
    if done.stderr.startswith("no driver: "):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_settings_changed_at_run_time_are_answered_too(script):
    script("""
        import warnings
        from dymem.alloc_conf import SETTERS
        setters = [getattr(torch._C, name) for name in SETTERS if hasattr(torch._C, name)]
        assert setters
        for setter in setters:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                setter("pinned_use_background_threads:True,expandable_segments:False")
                assert not told
                setter("max_split_size_mb:64")
            [one] = told
            assert "max_split_size_mb (" in str(one.message) and setter.__name__ in str(one.message)
            try:
                setter("nosuchkey:1")
            except Exception as error:
                assert "nosuchkey" in str(error)
            else:
                raise AssertionError("PyTorch took it")
    """)


def test_a_fraction_in_pytorchs_settings_is_honoured(script):
    script("""
        assert torch._C._cuda_getMemoryFraction(0) == 0.25 and not _core.abi.made(0)
        _torch.allocate_on(1)
        assert _core.abi.pool(0).limit() == 16 * MiB
        assert torch._C._cuda_getMemoryFraction(0) == 0.25
    """, PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.25")


def test_a_fraction_that_is_set_at_run_time_is_one_for_all_devices(script):
    script("""
        from dymem.alloc_conf import SETTERS
        fraction, limit = torch._C._cuda_getMemoryFraction, lambda device: _core.abi.pool(device).limit()
        _torch.allocate_on(1, device=0)
        assert limit(0) == 0
        for wanted, setter in zip((0.5, 0.25), [getattr(torch._C, name) for name in SETTERS if hasattr(torch._C, name)]):
            setter(f"per_process_memory_fraction:{wanted}")
            assert fraction(0) == fraction(1) == wanted and limit(0) == wanted * 64 * MiB
            assert not _core.abi.made(1)
        raises(torch.OutOfMemoryError, lambda: _torch.allocate_on(40 * MiB, device=0), "limit")
        _torch.allocate_on(1, device=1)
        assert limit(1) == limit(0)
        torch._C._cuda_setMemoryFraction(0.75, 0)
        setter("pinned_use_background_threads:True")  # says nothing of it
        assert fraction(0) == 0.75 and fraction(1) == wanted
    """, conf="driver='emulated', emulated_capacity='64MiB', emulated_devices=2")


def test_a_fraction_of_no_device_and_one_that_is_none(script):
    script("""
        for device in (-1, 1, 63, 64, 100):
            raises(RuntimeError, lambda: torch._C._cuda_getMemoryFraction(device), f"there is no device {device}")
            raises(RuntimeError, lambda: torch._C._cuda_setMemoryFraction(0.5, device), f"there is no device {device}")
        for device in (-1, 64):
            raises(dymem.InvalidArgument, lambda: _core.abi.memory_fraction(device), f"there is no device {device}")
        for fraction in (1.0000001, -1e-9, float("nan")):
            raises(dymem.InvalidArgument, lambda: _core.abi.set_memory_fraction(0, fraction), f"not {fraction}")
    """)


@pytest.mark.parametrize("setting", ["expandable_segments:maybe", "max_split_size_mb:1", "per_process_memory_fraction:3",
                                     "per_process_memory_fraction:abc", "nosuchkey:1"])
def test_a_setting_that_pytorch_cannot_read_fails_the_first_allocation_and_no_snapshot(script, setting):
    script(f"""
        for _ in range(2):
            try:
                _torch.allocate_on(1)
            except Exception as error:
                assert type(error) in (RuntimeError, ValueError) and not isinstance(error, torch.OutOfMemoryError), error
            else:
                raise AssertionError("it was taken")
            settings = torch._C._cuda_memorySnapshot(None)["allocator_settings"]
            assert "backend:dymem" in settings["PYTORCH_CUDA_ALLOC_CONF"], settings
            assert "{setting}" in settings["PYTORCH_CUDA_ALLOC_CONF"], settings
    """, PYTORCH_ALLOC_CONF=setting)


def test_without_a_gpu_only_the_first_allocation_fails(script):
    if _has_cuda():
        pytest.skip("this machine has a GPU")
    script("""
        assert not any(dymem.memory_stats().values())
        assert torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["current"] == 0
        assert torch.cuda.memory_allocated(0) == 0 and torch.cuda.max_memory_reserved(0) == 0
        torch._C._cuda_emptyCache()
        raises(RuntimeError, lambda: _torch.allocate_on(1))
        raises(RuntimeError, lambda: torch.empty(1, device="cuda"), "NVIDIA")
    """, conf="")


def test_a_forked_child_neither_frees_nor_allocates(script):
    script("""
        import signal
        held = _torch.allocate_on(3 * MiB)
        before = dymem.memory_stats()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                assert _core.abi.forked() and not _core.abi.made(0)
                held.free()
                raises(RuntimeError, lambda: _torch.allocate_on(1), "forked", "spawn")
                assert not any(dymem.memory_stats().values())
                torch._C._cuda_emptyCache()
            except BaseException as error:
                print(error, flush=True)
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not _core.abi.forked() and dymem.memory_stats() == before
        held.free()
        assert dymem.memory_stats()["allocated_bytes.all.current"] == 0
    """)


def test_a_child_forked_before_the_first_use_may_use_it(script):
    script("""
        child = os.fork()
        if child == 0:
            os._exit(0 if _torch.allocate_on(1).address and not _core.abi.forked() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """)


def test_what_is_still_held_at_exit_is_left_quietly(script):
    done = script("""
        kept = [_torch.allocate_on(n) for n in (1, 3 * MiB)]
        kept[0].record_stream(7)
        sys.modules["keeps_it"] = kept
    """)
    assert done.err == ""


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
