"""The stacks: which script with which arguments, what it needs, and how to run it under PyTorch's allocator or dymem.

`launcher` goes between Python and the script; "{gpus}" in it becomes the number of GPUs. A script with a launcher runs on
all of them, any other on the first one. dymem gets the same words after `dymem run`; nothing else differs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{gpus}")
LAUNCH = ("-m", "accelerate.commands.launch", "--num_processes", "{gpus}", "--num_machines", "1", "--mixed_precision", "no",
          "--dynamo_backend", "no")


@dataclasses.dataclass(frozen=True)
class Stack:
    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # each a package, or several that will do: "lightning|pytorch_lightning"
    launcher: tuple[str, ...] = ()
    compiles: bool = False  # so it takes longest, and is started first
    peaks_vary: bool = False  # from run to run, with what threads happen to do at once

    def missing(self) -> str | None:
        """A sentence about a package that is not here."""
        for need in self.needs:
            if not any(importlib.util.find_spec(name) for name in need.split("|")):
                return f"needs {need.replace('|', ' or ')}"
        return None

    def words(self, gpus: int) -> list[str]:
        """What follows `python` or `dymem run`."""
        launcher = [word.format(gpus=max(1, gpus)) for word in self.launcher]
        if self.launcher == LAUNCH:
            launcher += ["--multi_gpu"] if gpus > 1 else [] if gpus else ["--cpu"]
        return [*launcher, str(HERE / self.script), *self.arguments]

    def command(self, allocator: str, gpus: int) -> list[str]:
        return [sys.executable, *(["-m", "dymem", "run"] if allocator == "dymem" else []), *self.words(gpus)]

    def environment(self, gpus: int, cache: Path, **more: str) -> dict[str, str]:
        """cache: where compiled kernels go; one for both allocators, so that both run the same kernels."""
        clean = {key: value for key, value in os.environ.items()
                 if not key.startswith(("PYTORCH_CUDA_ALLOC", "PYTORCH_ALLOC", "STACK_")) and key != "DYMEM_CONF"}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if gpus > 1 and not self.launcher:
            clean["CUDA_VISIBLE_DEVICES"] = (visible or "0").split(",")[0]
        return {**clean, "TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton"),
                "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **more}


STACKS: dict[str, Stack] = {
    "trainer_llama": Stack("hf_trainer.py", ("llama",), ("transformers", "accelerate")),
    "trainer_bert": Stack("hf_trainer.py", ("bert",), ("transformers", "accelerate")),
    "lightning": Stack("lightning_fit.py", needs=("lightning|pytorch_lightning",)),
    "accelerate": Stack("accelerate_train.py", needs=("accelerate", "transformers")),
    "accelerate_launch": Stack("accelerate_train.py", needs=("accelerate", "transformers"), launcher=LAUNCH),
    "peft": Stack("peft_lora.py", needs=("peft", "transformers")),
    "compile": Stack("compiled.py", ("default",), compiles=True),
    "compile_reduce_overhead": Stack("compiled.py", ("reduce-overhead",), compiles=True),
    "graph_replay": Stack("graphed.py", ("replay",)),
    "graph_capture": Stack("graphed.py", ("capture",)),
    "graph_callables": Stack("graphed.py", ("callables",)),
    "ddp": Stack("ddp.py", launcher=TORCHRUN),
    "fsdp2": Stack("fsdp2.py", launcher=TORCHRUN),
    "nccl_graph": Stack("nccl_graph.py", launcher=TORCHRUN),
    "threads": Stack("threads.py", peaks_vary=True),
    "generate_dynamic": Stack("generate.py", ("dynamic",), ("transformers",)),
    "generate_static": Stack("generate.py", ("static",), ("transformers",)),
    "generate_compiled": Stack("generate.py", ("compiled",), ("transformers",), compiles=True),
    "cudnn_benchmark": Stack("cudnn_benchmark.py"),
    "amp": Stack("amp.py"),
    "checkpointing": Stack("checkpointing.py"),
    "loaders": Stack("loaders.py"),
}


def gpu_count() -> int:
    """Asked of a process of its own: this one is to stay without a context. 0 without torch, too."""
    ask = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0
