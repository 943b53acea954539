"""CUDA graphs through the driver API, without PyTorch's private pools: what a captured program with fixed addresses does.

Captured(step) records what `step` launches on a stream of its own; step must allocate nothing. launch() replays it.
"""

from __future__ import annotations

import ctypes

RELAXED = 2


def _check(code: int, call: str) -> None:
    if code:
        raise RuntimeError(f"{call} failed with code {code}")


class Captured:
    def __init__(self, step) -> None:
        import torch

        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            step()  # loads kernels: nothing of that may happen while capturing
        self.stream.synchronize()
        handle = ctypes.c_void_p(self.stream.cuda_stream)
        graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self.cuda.cuStreamBeginCapture_v2(handle, RELAXED), "cuStreamBeginCapture")
        try:
            with torch.cuda.stream(self.stream):
                step()
        finally:
            _check(self.cuda.cuStreamEndCapture(handle, ctypes.byref(graph)), "cuStreamEndCapture")
        _check(self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(self.executable), graph, ctypes.c_ulonglong(0)),
               "cuGraphInstantiate")
        self.cuda.cuGraphDestroy(graph)

    def launch(self) -> None:
        import torch

        self.stream.wait_stream(torch.cuda.current_stream())
        _check(self.cuda.cuGraphLaunch(self.executable, ctypes.c_void_p(self.stream.cuda_stream)), "cuGraphLaunch")
        torch.cuda.current_stream().wait_stream(self.stream)
