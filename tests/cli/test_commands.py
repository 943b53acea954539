"""compare, run, doctor and the help: what they say and how they end, without a GPU."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from processes import workers_of

import dymem
from dymem.config import Config


@pytest.mark.slow
def test_compare_without_a_gpu(dymem_command, tmp_path, traces):
    run = dymem_command("compare", "--recordings", "--json", tmp_path / "out.json")
    assert run.returncode == 0, run.stderr
    content = json.loads((tmp_path / "out.json").read_text())
    names = sorted(path.name.split(".")[0] for path in traces.glob("*.pickle.xz"))
    assert [row["name"] for row in content["traces"]] == names
    for row in content["traces"]:
        assert row["name"] in run.stdout
        assert row["reserved_peak_bytes"] < row["native_reserved_peak_bytes"], row["name"]
    assert "saved" in run.stdout


def test_compare_only(dymem_command, tmp_path):
    run = dymem_command("compare", "--recordings", "--only", "vgg16_b128", "--only", "kmeans", "--json",
                        tmp_path / "out.json")
    assert run.returncode == 0, run.stderr
    assert [row["name"] for row in json.loads((tmp_path / "out.json").read_text())["traces"]] == ["kmeans", "vgg16_b128"]


def test_compare_names_what_there_is(dymem_command):
    run = dymem_command("compare", "--recordings", "--only", "nosuch")
    assert run.returncode == 2 and "nosuch" in run.stderr and "vgg16_b128" in run.stderr


def test_compare_needs_no_torch(python):
    run = python("-c", "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None;"
                 "sys.argv = ['dymem', 'compare', '--recordings', '--only', 'kmeans'];"
                 "from dymem.__main__ import main; main()")
    assert run.returncode == 0 and "kmeans" in run.stdout, run.stderr


@pytest.mark.parametrize("command, words", [([], ["replay", "compare", "run", "doctor"]),
                                            (["replay"], ["--limit", "--lag", "--json", "1.02x"]),
                                            (["compare"], ["--json", "GPU"]), (["doctor"], ["exit code"]),
                                            (["run"], ["--" + key.replace("_", "-") for key in Config.keys()])])
def test_help_teaches(dymem_command, command, words):
    run = dymem_command(*command, "--help")
    assert run.returncode == 0
    for word in words:
        assert word.lower() in run.stdout.lower(), word


def test_version(dymem_command):
    assert dymem_command("--version").stdout.split() == ["dymem", dymem.__version__]


def test_doctor_says_what_is_missing(dymem_command):
    run = dymem_command("doctor", env={"CXX": "no-such-compiler"})
    assert run.returncode == 1
    assert "core" in run.stdout and "g++" in run.stdout and dymem.__version__ in run.stdout


def test_doctor_survives_a_bad_configuration(dymem_command):
    run = dymem_command("doctor", env={"DYMEM_CONF": "limt:3"})
    assert run.returncode == 1 and "limt" in run.stdout


@pytest.mark.parametrize("env", [{"DYMEM_CONF": "limt[/x]:3"}, {"CXX": "'"}, {"CXX": "false"}, {"CXX": " "}])
def test_doctor_survives_any_environment(dymem_command, env):
    run = dymem_command("doctor", env=env)
    assert run.returncode == 1 and run.stderr == ""
    assert ("limt[/x]" if "DYMEM_CONF" in env else "none that runs") in run.stdout or env == {"CXX": " "}


@pytest.mark.parametrize("version, words", [("__version__ = '2.5.1'; cuda = '12.1'", ["2.5.1", "2.11 or newer"]),
                                            ("__version__ = '2.99.0'; cuda = None", ["2.99.0", "without CUDA"]),
                                            ("__version__ = '2.99.0'; cuda = '13.0'", ["2.99.0, CUDA 13.0", "not built yet"]),
                                            (None, ["is not PyTorch"])])
def test_doctor_judges_the_torch_that_would_be_imported(dymem_command, tmp_path, version, words):
    """It has no package metadata, as one on PYTHONPATH; one too old is not served, whatever the rest is."""
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("")
    if version is not None:
        (tmp_path / "lib" / "torch" / "version.py").write_text(version)
    path = os.pathsep.join(filter(None, [str(tmp_path / "lib"), os.environ.get("PYTHONPATH")]))
    run = dymem_command("doctor", env={"PYTHONPATH": path, "DYMEM_CACHE": str(tmp_path / "cache")})
    assert run.returncode == 1 and run.stderr == ""
    assert all(word in " ".join(run.stdout.split()) for word in words), run.stdout


def test_install_with_something_else_called_torch(python, tmp_path):
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("")
    run = python("-c", "import sys; sys.path.insert(0, 'lib'); import dymem\n"
                 "try: dymem.install()\nexcept dymem.InstallError as error: print(error)")
    assert run.returncode == 0 and "is not PyTorch" in run.stdout, run.stderr


def test_killing_compare_leaves_no_workers(tmp_path):
    """SIGKILL gives it no chance to end them: they must notice."""
    command = subprocess.Popen([sys.executable, "-m", "dymem", "compare", "--recordings"], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert workers_of(command)
        command.kill()
        command.communicate(timeout=60)  # returns when the last of its processes has closed the pipe
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)


# --- dymem run. A module named torch that is none stands in for the real one: what is tested is who installs, and when.

@pytest.fixture
def stage(tmp_path, python):
    """Runs `dymem run` with a stand-in for torch, in which install() only says that it was called."""
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("print('torch imported')\n")
    (tmp_path / "lib" / "sitecustomize.py").write_text(
        "import builtins, os\nprint('own sitecustomize')\n"
        "if os.environ.get('DYMEM_RUN') == '1':\n"
        "    import dymem\n"
        "    dymem.install = lambda: print('installed', os.environ['DYMEM_CONF'] or 'defaults')\n")
    path = os.pathsep.join(filter(None, [str(tmp_path / "lib"), os.environ.get("PYTHONPATH")]))

    def run(*arguments, script="", env=None):
        (tmp_path / "script.py").write_text(script)
        return python("-m", "dymem", "run", *arguments, env={"PYTHONPATH": path, **(env or {})})

    return run


def said(run):
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    return lines[1 + lines.index("own sitecustomize", 1):]  # what dymem run itself printed before is not the script's


def test_run_installs_when_torch_is_imported(stage):
    run = stage("script.py", script="print('start')\nimport torch\nprint('used')\n")
    assert said(run) == ["start", "torch imported", "installed defaults", "used"]


def test_run_leaves_scripts_without_torch_alone(stage):
    assert said(stage("script.py", script="print('start')\n")) == ["start"]


def test_run_passes_arguments_and_options_of_the_script(stage):
    run = stage("--limit", "2GiB", "--alias", "off", "script.py", "--limit", "7", "-m", "x",
                script="import sys, torch\nprint(sys.argv, __name__, __file__)\n")
    assert said(run) == ["torch imported", "installed limit:2147483648,alias:off",
                         "['script.py', '--limit', '7', '-m', 'x'] __main__ " + said(run)[-1].split()[-1]]


def test_run_module(stage, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import sys, torch\nprint(sys.argv[1:])\n")
    assert said(stage("-m", "package", "a", "-b")) == ["torch imported", "installed defaults", "['a', '-b']"]


def test_run_reaches_the_children(stage):
    run = stage("--driver", "emulated", "script.py",
                script="import subprocess, sys\n"
                       "print(subprocess.run([sys.executable, '-c', 'import torch'], capture_output=True, text=True).stdout)")
    assert [line for line in said(run) if line] == ["own sitecustomize", "torch imported", "installed driver:emulated"]


def test_options_win_over_the_environment(stage):
    run = stage("--limit", "1GiB", "script.py", script="import torch\n",
                env={"DYMEM_CONF": "limit:2GiB,alias:off"})
    assert said(run)[1] == "installed limit:1073741824,alias:off"


def test_an_interrupt_while_the_adapter_is_built_is_one_sentence(stage, tmp_path):
    hook = tmp_path / "lib" / "sitecustomize.py"
    hook.write_text(hook.read_text().split("    dymem.install")[0] + "    def stop(): raise KeyboardInterrupt\n"
                    "    dymem.install = stop\n")
    run = stage("script.py", script="import torch\nprint('used')\n")
    assert run.returncode == 130 and run.stderr == "dymem: stopped.\n" and "used" not in run.stdout


def test_exit_code_is_the_scripts(stage):
    assert stage("script.py", script="raise SystemExit(7)\n").returncode == 7


@pytest.mark.parametrize("arguments, words", [
    (["--limt", "3", "script.py"], ["--limt", "--limit", "--alias"]),
    (["--nope"], ["are -m, --limit, ", "--grow-ratio, ", " and --help."]),
    (["--limit", "lots", "script.py"], ["limit", "20GiB"]),
    (["nosuch.py"], ["no script nosuch.py"]),
    (["x" * 300], ["no script x"]),
    (["python3", "script.py"], ["dymem run train.py"]),
    (["ls"], ["no script ls", "command", "dymem run /"]),
])
def test_run_refuses(stage, arguments, words):
    run = stage(*arguments)
    assert run.returncode == 2 and run.stderr.count("\n") == 1
    assert all(word in run.stderr for word in words), run.stderr


def test_run_refuses_a_bad_environment(stage):
    run = stage("script.py", env={"DYMEM_CONF": "limt:3"})
    assert run.returncode == 2 and "limt" in run.stderr and run.stderr.count("\n") == 1


@pytest.mark.torch
def test_run_trains_under_dymem(python, tmp_path, first_build):
    """The real thing, over the emulated driver: the script sees dymem as the allocator's backend."""
    (tmp_path / "script.py").write_text("import torch\nprint(torch.cuda.memory.get_allocator_backend())\n")
    run = python("-m", "dymem", "run", "--driver", "emulated", "script.py", env={"DYMEM_CACHE": str(first_build.cache)})
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["dymem"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_run_without_torch_is_one_sentence(python, tmp_path):
    (tmp_path / "script.py").write_text("")
    run = python("-c", "import importlib.util as u, sys; find = u.find_spec\n"
                 "u.find_spec = lambda n, p=None: None if n == 'torch' else find(n, p)\n"
                 "sys.argv = ['dymem', 'run', 'script.py']\n"
                 "from dymem.__main__ import main; main()")
    assert run.returncode == 2 and "torch is not installed" in run.stderr and run.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["", "nonsense"])
def test_a_name_that_is_none_is_quoted(dymem_command, name):
    run = dymem_command("compare", "--recordings", "--only", name)
    assert run.returncode == 2 and run.stderr.startswith(f"dymem: there is no '{name}'; there are bert_varlen, "), run.stderr
