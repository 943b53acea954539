"""What `pip install .` ships, offline and without build isolation; and what a machine without a compiler is told.

The objects in build/ are reused, so that only what changed is compiled.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not all(map(importlib.util.find_spec, ("pip", "setuptools", "pybind11"))),
                                reason="needs pip, setuptools and pybind11")


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    target = tmp_path_factory.mktemp("wheel")
    run = subprocess.run([sys.executable, "-m", "pip", "wheel", str(root), "--no-deps", "--no-index",
                          "--no-build-isolation", "-w", str(target)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    [path] = target.glob("dymem-*.whl")
    return path


@pytest.mark.slow
def test_wheel_has_all_that_is_needed(wheel, root):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "dymem/libdymem.so" in names and any(name.startswith("dymem/_core.") for name in names)
    assert {"dymem/_boot/sitecustomize.py", "dymem/cli/app.py", "dymem/trace/snapshot.py", "dymem/py.typed"} <= names
    for path in [*root.glob("allocator/*/*.hpp"), *root.glob("allocator/torch/*.cpp")]:
        assert f"dymem/_src/{path.relative_to(root)}" in names, f"{path.name}: the adapter cannot be built without it"
    assert "dymem/include/dymem.h" in names
    for path in root.glob("python/dymem/traces/*"):
        assert f"dymem/traces/{path.name}" in names


@pytest.mark.slow
def test_wheel_names_its_licence_and_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = archive.read(metadata).decode().splitlines()
    assert any(line in ("License: Apache-2.0", "License-Expression: Apache-2.0") for line in lines)
    [licence] = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert "Apache License" in archive.read(licence).decode() and "Version 2.0" in archive.read(licence).decode()
    assert "Requires-Python: >=3.10" in lines and "Requires-Dist: typer>=0.12" in lines
    assert "linux" in wheel.name and f"cp{sys.version_info[0]}{sys.version_info[1]}" in wheel.name, "it holds machine code"


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """The Python of a new environment into which the wheel was installed; it has nothing else, and no checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    # With PYTHONPATH kept, pip would find the checkout and install nothing.
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "DYMEM_"))}
    run = subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index",
                          str(wheel)], capture_output=True, text=True, env=clean)
    assert run.returncode == 0, run.stdout + run.stderr

    def run_there(*command, **env):
        return subprocess.run([python.parent / command[0], *command[1:]], cwd=folder, env={**clean, **env},
                              capture_output=True, text=True)

    return run_there


@pytest.mark.slow
def test_it_works_in_another_environment(elsewhere, tmp_path):
    code = ("import dymem, dymem._paths as p; from dymem import _core; print(dymem.__file__, p.source_dir(), "
            "dymem.library_path(), dymem.include_path())")
    run = elsewhere("python", "-c", code)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 4 and all("/site-packages/dymem" in word for word in run.stdout.split()), run.stdout
    run = elsewhere("python", "-c", "import dymem; from dymem import _core; a = _core.abi.hold(1 << 20, holder='me'); "
                    "print(dymem.memory_stats()['held_bytes.me'])", DYMEM_CONF="driver:emulated")
    assert run.stdout == "1048576\n", run.stderr
    run = elsewhere("dymem", "--version")
    assert run.returncode != 0 and "pip install typer rich" in run.stderr, "without its dependencies, one line"
    with_them = os.pathsep.join({str(Path(importlib.util.find_spec(name).origin).parents[1]) for name in ("typer", "rich")})
    run = elsewhere("dymem", "replay", _traces(elsewhere) + "/vgg16_b128.pickle.xz", PYTHONPATH=with_them)
    assert run.returncode == 0 and "vgg16_b128" in run.stdout, run.stderr


def _traces(elsewhere) -> str:
    return elsewhere("python", "-c", "import dymem._paths as p; print(p.traces_dir())").stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_c_example_builds_against_what_was_installed(elsewhere, root, tmp_path):
    include, library = elsewhere("python", "-c", "import dymem; print(dymem.include_path(), dymem.library_path())").stdout.split()
    subprocess.run(["cc", "-std=c11", "-Werror", "-I", include, root / "examples" / "hold.c", library,
                    f"-Wl,-rpath,{os.path.dirname(library)}", "-o", tmp_path / "hold"], check=True)
    run = subprocess.run([tmp_path / "hold"], env={"DYMEM_CONF": "driver:emulated"}, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.startswith("held 67108864"), run.stderr


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", ""])
def test_no_compiler_is_one_sentence(root, tmp_path, python, compiler):
    run = subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path)], cwd=root,
                         env={"PATH": "/usr/bin:/bin", "CXX": compiler}, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("dymem: no C++ compiler") and "g++" in run.stderr


@pytest.mark.parametrize("env, words", [({"CXX": "'g++"}, ["CXX"]), ({"CXXFLAGS": '-DX="'}, ["CXXFLAGS"]),
                                        ({"DYMEM_JOBS": "many"}, ["DYMEM_JOBS", "many"]), ({"DYMEM_JOBS": "-1"}, ["DYMEM_JOBS"])])
def test_a_variable_that_makes_no_sense_is_named(root, tmp_path, env, words):
    run = subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path)], cwd=root,
                         env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert run.stderr.startswith("dymem: ") and all(word in run.stderr for word in words), run.stderr


@pytest.mark.parametrize("command", ["dist_info", "editable_wheel", "bdist_wheel"])
def test_tools_that_make_no_wheels_are_one_sentence(root, tmp_path, command):
    hidden = ("wheel", "setuptools.command.bdist_wheel")
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, package=None: None if name in {hidden} else find(name, package)\n")
    run = subprocess.run([sys.executable, "setup.py", "--quiet", command], cwd=root, capture_output=True, text=True,
                         env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)})
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("dymem: ") and "pip install wheel" in run.stderr, run.stderr


def test_sources_are_found_from_a_checkout():
    from dymem._paths import source_dir

    assert (source_dir() / "allocator" / "torch").is_dir()
