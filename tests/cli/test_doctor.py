"""`dymem doctor` on machines made up: cards, drivers and caches that say what the test wants, without a GPU or torch."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dymem import calibration
from dymem.errors import DriverError, InvalidArgument

MIB = 1 << 20


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory):
    """A folder with a libcuda and an NVML that answer from the environment."""
    compiler = shutil.which("gcc") or shutil.which("g++") or pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("fake")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-w", str(Path(__file__).parent / "fake_cuda.c"), "-o",
                    str(folder / "libcuda.so.1")], check=True)
    shutil.copy(folder / "libcuda.so.1", folder / "libnvidia-ml.so.1")
    return folder


@pytest.fixture
def doctor(dymem_command, fake_cuda, tmp_path):
    """Runs it with a torch of 2.99 for CUDA 13.0 and the fake cards; the findings by their names, and the run."""
    (tmp_path / "lib" / "torch" / "include" / "pybind11").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("raise RuntimeError('the doctor imports no torch')\n")
    (tmp_path / "lib" / "torch" / "version.py").write_text("__version__ = '2.99.0'; cuda = '13.0'")
    (tmp_path / "lib" / "torch" / "include" / "pybind11" / "pybind11.h").write_text("")
    for header in ("cuda_runtime_api.h", "crt/host_defines.h"):
        target = tmp_path / "lib" / "nvidia" / "cu13" / "include" / header
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("")

    def run(*arguments, cuda=fake_cuda, **env):
        path = os.pathsep.join(filter(None, [str(tmp_path / "lib"), os.environ.get("PYTHONPATH")]))
        target = tmp_path / "doctor.json"
        target.unlink(missing_ok=True)
        done = dymem_command("doctor", "--json", target, *arguments,
                             env={"PYTHONPATH": path, "LD_LIBRARY_PATH": str(cuda), "DYMEM_CACHE": str(tmp_path / "cache"),
                                  **env})
        content = json.loads(target.read_text()) if target.exists() else {"findings": []}
        return done, {finding["what"]: finding for finding in content["findings"]}, content

    return run


def test_a_machine_that_can_serve(doctor):
    run, found, content = doctor()
    assert run.returncode == 0 and run.stderr == "", run.stdout + run.stderr
    assert content["ready"] is True and "dymem can serve PyTorch here." in run.stdout
    assert found["driver"]["facts"] == {"cuda": "13.0", "release": "580.1.2"}
    assert found["GPU 0"]["facts"] == {
        "index": 0, "name": "Fake card 0", "memory_bytes": 80 << 30, "compute_capability": "9.0", "compute_mode": "default",
        "vmm": True, "exportable_handles": True, "granularity_bytes": 2 * MIB, "mig": False, "bar1_bytes": 128 << 30}
    for words in ("MIG off", "BAR1 128.0 GiB", "granularity 2.00 MiB", "exportable handles", "580.1.2"):
        assert words in " ".join(run.stdout.split()), words
    assert found["torch"]["facts"]["cuda"] == "13.0" and found["pybind11"]["facts"]["from"] == "torch"
    assert found["costs"]["advice"] == "dymem doctor --calibrate" and not found["costs"]["needed"]
    assert found["adapter"]["ok"] is False and found["adapter"]["needed"] is False


def test_every_card_is_looked_at(doctor):
    _, found, _ = doctor(FAKE_COUNT="3")
    assert [found[f"GPU {i}"]["facts"]["name"] for i in range(3)] == [f"Fake card {i}" for i in range(3)]


@pytest.mark.parametrize("env, what, words, ready", [
    ({"FAKE_VMM": "0"}, "GPU 0", "contiguous", True),
    ({"FAKE_POSIX": "0"}, "GPU 0", "no exportable handles", True),
    ({"FAKE_MIG": "1"}, "GPU 0", "MIG on", True),
    ({"FAKE_NO_MIG": "3"}, "GPU 0", "BAR1", True),
    ({"FAKE_MODE": "2"}, "GPU 0", "nvidia-smi -i 0 -c DEFAULT", False),
    ({"FAKE_MODE": "3"}, "GPU 0", "exclusive process", True),
    ({"FAKE_OPEN": "1"}, "GPU 0", "cannot be opened", False),
    ({"FAKE_INIT": "100"}, "GPU", "cuInit: 100", False),
    ({"FAKE_COUNT": "0"}, "GPU", "CUDA_VISIBLE_DEVICES", False),
    ({"FAKE_VERSION": "12080"}, "driver", "torch is built for CUDA 13.0", False),
    ({"FAKE_NVML": "1"}, "driver", "CUDA 13.0", True),
])
def test_what_a_card_may_lack(doctor, env, what, words, ready):
    run, found, content = doctor(**env)
    assert words in f"{found[what]['state']} {found[what]['advice']}"
    assert content["ready"] is ready and run.returncode == (0 if ready else 1), run.stdout
    assert ready or not found[what]["ok"]


def test_no_driver_at_all(doctor, tmp_path):
    if Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists():
        pytest.skip("there is a driver")
    run, found, _ = doctor(cuda=tmp_path)
    assert run.returncode == 1 and "nvidia-driver" in found["GPU"]["advice"]


@pytest.mark.parametrize("text, words", [
    ('NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n', "apt-get install nvidia-driver-580"),
    ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt-get install nvidia-driver-580"),
    ('PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n', "apt-get install nvidia-driver (of the section non-free)"),
    ("ID='fedora'\n", "package of it (often nvidia-driver), or https://www.nvidia.com/drivers"),
    ("ID='\n\xff", "https://www.nvidia.com/drivers"), (None, "https://www.nvidia.com/drivers")])
def test_the_driver_is_named_as_this_system_has_it(monkeypatch, tmp_path, text, words):
    from dymem.doctor import cards, system

    if text is not None:
        (tmp_path / "os-release").write_text(text, encoding="latin-1")
    monkeypatch.setattr(system, "OS_RELEASE", tmp_path / "os-release")

    def no_driver(name):
        raise OSError(name)

    monkeypatch.setattr(cards.ctypes, "CDLL", no_driver)
    advice = cards.check_driver()[0].advice
    assert words in advice and (text is None or "ubuntu" in text or "driver-580" not in advice)


def test_no_compiler_says_how_to_get_one(doctor):
    run, found, _ = doctor(CXX="no-such-compiler")
    assert run.returncode == 1 and "apt-get install g++" in found["compiler"]["advice"]


def test_a_compiler_of_another_age(doctor, tmp_path):
    old = tmp_path / "old-compiler"
    old.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'old 4.8' || exit 1\n")
    old.chmod(0o755)
    run, found, _ = doctor(CXX=str(old))
    assert run.returncode == 1 and "no C++20" in found["compiler"]["state"]


def test_headers_that_are_missing_are_named(doctor, tmp_path):
    shutil.rmtree(tmp_path / "lib" / "nvidia" / "cu13" / "include" / "crt")
    (tmp_path / "lib" / "torch" / "include" / "pybind11" / "pybind11.h").unlink()
    _, found, _ = doctor(CUDA_HOME=str(tmp_path))
    if "CUDA headers" in found and not found["CUDA headers"]["ok"]:  # else another package has them on this machine
        assert "pip install nvidia-cuda-crt" in found["CUDA headers"]["advice"]
    assert found["pybind11"]["ok"] == (found["pybind11"]["facts"].get("from") == "pybind11")


def test_adapters_in_the_cache_are_listed(doctor, tmp_path):
    for name, content in (("a", {"torch": "2.99.0+cu130", "cuda": "13.0", "python": "3.12.1", "compiler": ["g++"]}),
                          ("b", {"torch": "2.11.0", "cuda": "13.0", "python": "3.12.1"}), ("c", "damaged"), ("d", {})):
        folder = tmp_path / "cache" / "adapter" / name
        folder.mkdir(parents=True)
        (folder / "built.json").write_text(content if isinstance(content, str) else json.dumps(content))
    _, found, _ = doctor()
    assert found["adapter"]["ok"] and "CUDA 13.0, Python 3.12.1" in found["adapter"]["state"]
    assert [each["torch"] for each in found["adapter"]["facts"]["built"]] == ["2.99.0+cu130", "2.11.0"]


def test_a_cache_that_cannot_be_written(doctor, tmp_path):
    (tmp_path / "cache").write_text("a file")
    run, found, _ = doctor()
    assert run.returncode == 1 and "DYMEM_CACHE" in found["cache"]["advice"]


def test_a_home_where_nothing_can_be_made(doctor):
    """To root, permissions there promise everything."""
    run, found, _ = doctor(DYMEM_CACHE="", XDG_CACHE_HOME="", HOME="/proc/nope")
    assert run.returncode == 1 and not found["cache"]["ok"] and "DYMEM_CACHE" in found["cache"]["advice"]


def test_looking_whether_a_folder_can_be_made_leaves_none(doctor, tmp_path):
    _, found, _ = doctor()
    assert found["cache"]["ok"] and not (tmp_path / "cache").exists() and not list(tmp_path.glob(".dymem-*"))


def test_a_user_without_a_home(monkeypatch):
    import pwd

    from dymem._adapter_build import cache_folder
    from dymem.doctor import adapters
    from dymem.errors import InstallError

    def nobody(uid):
        raise KeyError(uid)

    for name in ("HOME", "DYMEM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(InstallError, match="set DYMEM_CACHE"):
        cache_folder()
    for finding in (adapters.check_cache(), adapters.check_adapter()):
        assert not finding.ok and "DYMEM_CACHE" in finding.advice
    assert calibration.load("card", "580") is None


@pytest.mark.parametrize("broken", ["matplotlib", "numpy"])
def test_an_optional_package_that_does_not_import_is_not_ok(doctor, tmp_path, broken):
    (tmp_path / "lib" / broken).mkdir()
    (tmp_path / "lib" / broken / "__init__.py").write_text("raise ImportError('built for another one')\n")
    (tmp_path / "lib" / f"{broken}-9.9.dist-info").mkdir()
    (tmp_path / "lib" / f"{broken}-9.9.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {broken}\nVersion: 9.9\n")
    run, found, _ = doctor()
    assert run.returncode == 0 and run.stderr == ""
    assert not found[broken]["ok"] and "9.9 is installed but does not import (built for another one)" in found[broken]["state"]
    assert found[broken]["advice"] == "pip install matplotlib numpy"


def test_optional_packages_do_not_decide(python):
    run = python("-c", "import sys; sys.modules['matplotlib'] = None; sys.argv = ['dymem', 'doctor']\n"
                 "from dymem.__main__ import main; main()")
    assert "pip install matplotlib numpy" in run.stdout and run.stderr == "", run.stderr
    assert "compare --html and --pictures, stress --picture" in run.stdout


def test_paths_are_broken_at_slashes(dymem_command):
    from dymem.cli.doctor import at_slashes

    assert at_slashes("in /usr/lib/python3/site-packages now", 20) == "in /usr/lib/python3/\nsite-packages now"
    assert at_slashes("short words stay", 20) == "short words stay" and at_slashes("a" * 50, 20) == "a" * 50
    lines = dymem_command("doctor", env={"COLUMNS": "80"}).stdout.splitlines()
    assert any(line.rstrip().endswith("libdymem.so") for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("arguments, words", [(["--calibrate"], "none is here"), (["--json", "no/where.json"], "no/where")])
def test_refuses(dymem_command, arguments, words, tmp_path):
    run = dymem_command("doctor", *arguments, env={"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""})
    assert run.returncode == 2 and words in run.stderr and run.stderr.count("\n") == 1


# --- costs


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DYMEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "costs"


def emulated(**more):
    from dymem import _core

    return _core.driver.make_emulated(bytes=False, **more)


def test_measuring_finds_what_the_emulated_driver_charges(cache):
    driver = emulated()
    costs = calibration.measure(driver, "Fake card", "580.1", repetitions=4)
    model = {"create": (15, 0.033), "map": (1.5, 0.004), "access": (38, 0.075), "unmap": (26, 0.036), "release": (14, 0.5)}
    for call, (base, slope) in model.items():
        assert costs["fit"][call]["base_us"] == pytest.approx(base, rel=0.01)
        assert costs["fit"][call]["us_per_mib"] == pytest.approx(slope, rel=0.05)
        assert costs["calls_us"][call]["2"] == pytest.approx(base + 2 * slope, rel=0.01)
    assert all(0 <= costs["events_us"][name] < 1000 for name in calibration.EVENTS)
    assert driver.physical_in_use() == 0 and driver.mappings() == 0, "nothing is left behind"


def test_costs_are_kept_for_their_card_and_driver(cache):
    costs = calibration.measure(emulated(), "NVIDIA H/200 ../x", "580.1", repetitions=3)
    path = calibration.save(costs)
    assert path.parent == cache and os.listdir(cache) == [path.name]
    assert calibration.load("NVIDIA H/200 ../x", "580.1") == costs
    assert calibration.load("NVIDIA H/200 ../x", "581") is None and calibration.load("NVIDIA H100", "580.1") is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"{\"schema\": 1, \"fit\": 3}"])
def test_damaged_costs_count_as_none(cache, damage):
    calibration.save(calibration.measure(emulated(), "c", "d", repetitions=3)).write_bytes(damage)
    assert calibration.load("c", "d") is None


def test_measuring_says_why_it_cannot(cache, tmp_path):
    from dymem import _core

    with pytest.raises(InvalidArgument, match="no virtual memory management"):
        calibration.measure(emulated(vmm=False), "c", "d")
    with pytest.raises(DriverError, match="creating 256 MiB failed .out_of_memory."):
        calibration.measure(emulated(capacity=128 * MIB), "c", "d", repetitions=3)
    inner = emulated()
    faulty = _core.driver.make_faulty(inner)
    faulty.fail_nth(4, forever=True)
    with pytest.raises(DriverError, match="in use by others"):
        calibration.measure(faulty, "c", "d", repetitions=3)
    inner = emulated()
    faulty = _core.driver.make_faulty(inner)
    faulty.fail_nth(4)  # giving access
    with pytest.raises(DriverError, match="giving access failed"):
        calibration.measure(faulty, "c", "d", repetitions=3)
    assert inner.physical_in_use() == 0 and inner.mappings() == 0, "nothing is left behind"
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InvalidArgument, match="DYMEM_CACHE"):
        calibration.save(calibration.measure(emulated(), "c", "d", repetitions=3))


def test_the_doctor_shows_costs_that_are_kept(doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("DYMEM_CACHE", str(tmp_path / "cache"))
    calibration.save(calibration.measure(emulated(), "Fake card 0", "580.1.2", repetitions=3))
    run, found, _ = doctor()
    assert found["costs"]["ok"] and "create 15.1, map 1.51, access 38.1, unmap 26.1, release 15 µs" in found["costs"]["state"]
    assert found["costs"]["facts"]["fit"]["create"]["base_us"] == pytest.approx(15)


def test_a_card_that_cannot_be_measured_costs_nothing_else(doctor):
    """The fake driver knows no memory calls: one sentence, and every finding all the same."""
    run, found, content = doctor("--calibrate")
    assert run.stderr.startswith("dymem: ") and run.stderr.count("\n") == 1, run.stderr
    assert run.returncode == 0 and content["ready"] and not found["costs"]["ok"]
