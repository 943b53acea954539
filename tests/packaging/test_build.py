"""What `pip install .` ships, offline and without build isolation; and what a machine without a compiler is told.

The objects in build/ are reused, so that only what changed is compiled.
"""

import importlib.util
import subprocess
import sys
import zipfile

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
    for path in root.glob("python/dymem/traces/*"):
        assert f"dymem/traces/{path.name}" in names


@pytest.mark.slow
def test_installed_wheel_works_by_itself(wheel, python, tmp_path):
    """Unpacked elsewhere, with nothing of the checkout on the path."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = ("import sys; sys.path.insert(0, 'site'); import dymem, dymem._paths as p; from dymem import _core; "
            "print(dymem.__file__, p.source_dir(), dymem.library_path())")
    run = python("-c", code, env={"PYTHONPATH": str(tmp_path / "site")})
    assert run.returncode == 0, run.stderr
    assert all(word.startswith(str(tmp_path / "site")) for word in run.stdout.split()), run.stdout
    run = python("-m", "dymem", "replay", tmp_path / "site" / "dymem" / "traces" / "vgg16_b128.pickle.xz",
                 env={"PYTHONPATH": str(tmp_path / "site")})
    assert run.returncode == 0 and "vgg16_b128" in run.stdout, run.stderr


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


def test_sources_are_found_from_a_checkout():
    from dymem._paths import source_dir

    assert (source_dir() / "allocator" / "torch").is_dir()
