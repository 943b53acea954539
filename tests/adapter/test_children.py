"""`dymem run`: whatever Python the script starts is under dymem too, with the same configuration; torch only where wanted.

Over the emulated driver: each child allocates through PyTorch's interface of the allocator, as the others of this folder.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch
CONF = "driver:emulated,emulated_capacity:64MiB,limit:48MiB"
TELLS = """
import json, os, sys

def told():
    import torch
    from dymem import _core
    return [torch.cuda.get_allocator_backend(), _core.abi.process_config()]
"""


@pytest.fixture
def run(first_build, tmp_path):
    """`dymem run ARGUMENTS`, and the lines of JSON that it and its children printed."""

    def run(text: str, *arguments: str, before=("-m", "dymem", "run"), **more: str) -> list:
        (tmp_path / "script.py").write_text(TELLS + text)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("DYMEM_", "PYTORCH_"))}
        clean |= {"DYMEM_CACHE": str(first_build.cache), "DYMEM_CONF": CONF, **more}
        done = subprocess.run([sys.executable, *before, *(arguments or ["script.py"])], cwd=tmp_path, env=clean,
                              capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]

    return run


def same(lines: list, count: int) -> None:
    assert len(lines) == count
    for backend, limit in lines:
        assert backend == "dymem" and limit == lines[0][1]


def test_whatever_python_starts_is_under_dymem_too(run):
    lines = run("""
import multiprocessing, subprocess

def child(queue):
    queue.put(told())

if __name__ == "__main__":
    print(json.dumps(told()), flush=True)
    for how in ("spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(how)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(json.dumps(queue.get(timeout=120)), flush=True)
        process.join()
    code = "exec(open('script.py').read().split('import multiprocessing')[0]); print(json.dumps(told()))"
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run(["sh", "-c", f"exec {sys.executable} -c \\"{code}\\""], check=True)
""")
    same(lines, 6)


def test_the_ranks_of_torchrun_are_under_dymem(run):
    text = """
import torch.distributed as dist
dist.init_process_group("gloo")
every = [None] * dist.get_world_size()
dist.all_gather_object(every, told())
if dist.get_rank() == 0:
    for each in every:
        print(json.dumps(each))
dist.destroy_process_group()
"""
    same(run(text, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"), 2)


def test_a_child_that_turns_away_from_it_runs_without(run):
    """-I and -E ignore PYTHONPATH, as they say; and what DYMEM_RUN=0 starts is left alone."""
    lines = run("""
import subprocess
code = "import torch, json; print(json.dumps([torch.cuda.get_allocator_backend(), None]))"
subprocess.run([sys.executable, "-I", "-c", "import sys; sys.path.append('.'); " + code], check=False)
subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "DYMEM_RUN": "0"})
""")
    assert {backend for backend, _ in lines} == {"native"} and len(lines) in (1, 2)


def test_a_child_without_torch_pays_a_look_and_keeps_its_own_hook(run, tmp_path):
    """A Python in which torch cannot be imported starts as ever; the sitecustomize that was there before still runs."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text("import os; os.environ['HOOKED'] = '1'\n")
    lines = run("""
import subprocess
code = '''
import json, os, sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named torch", name="torch")
sys.meta_path.insert(0, NoTorch())
try:
    import torch
    found = True
except ModuleNotFoundError:
    found = False
print(json.dumps([found, os.environ.get("HOOKED"), "dymem" in sys.modules]))
'''
subprocess.run([sys.executable, "-c", code], check=True)
""", PYTHONPATH=os.pathsep.join([str(hook), os.environ.get("PYTHONPATH", "")]))
    assert lines == [[False, "1", False]]
