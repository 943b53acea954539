"""Each key of PyTorch's allocator settings: honoured, or named once with what to do instead."""

import importlib.util
import re
from pathlib import Path

import pytest

from dymem.alloc_conf import KEYS, VARIABLES, asked, replaced, warning

CUDA, GENERIC = VARIABLES


def test_a_key_is_honoured_or_has_something_instead():
    for key in KEYS.values():
        assert bool(key.honoured) != bool(key.instead), key.name
        assert not (key.honoured and key.nothing), key.name


@pytest.mark.parametrize("text", [
    "", "backend:native", "expandable_segments:False", "release_lock_on_cudamalloc:false,throw_on_cudamalloc_oom:True",
    "per_process_memory_fraction:0.5", "graph_capture_record_stream_reuse:True",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:8", "pinned_of_a_newer_torch:1", " , ,"])
def test_what_is_honoured_or_asks_for_nothing_is_not_named(text):
    assert warning({CUDA: text, GENERIC: text}) is None


@pytest.mark.parametrize("text, names", [
    ("expandable_segments:True", ["expandable_segments"]),
    ("max_split_size_mb:64,pinned_use_background_threads:True,garbage_collection_threshold:0.8",
     ["max_split_size_mb", "garbage_collection_threshold"]),
    ("roundup_power2_divisions:[256:1,512:2,>:8],backend:cudaMallocAsync", ["roundup_power2_divisions", "backend"]),
    ("roundup_power2_divisions:4 , large_segment_size_mb : 64", ["roundup_power2_divisions", "large_segment_size_mb"]),
    ("nosuchkey:1", ["nosuchkey"])])
def test_what_is_replaced_is_named_once_with_what_to_do(text, names):
    assert list(replaced({GENERIC: text})) == names
    sentence = warning({GENERIC: text})
    assert sentence.count("\n") == 0 and sentence.endswith(".") and GENERIC in sentence and CUDA not in sentence
    for name in names:
        assert sentence.count(f"{name} (") == 1
    assert "private pools" in sentence


def test_both_variables_count_each_key_once():
    both = {CUDA: "max_split_size_mb:64,expandable_segments:True", GENERIC: "max_split_size_mb:128,roundup_power2_divisions:8"}
    assert list(replaced(both)) == ["max_split_size_mb", "expandable_segments", "roundup_power2_divisions"]
    assert asked(both)["max_split_size_mb"] == ["64", "128"]
    assert f"{CUDA} and {GENERIC}" in warning(both)


@pytest.mark.parametrize("cuda, generic, name", [
    ("expandable_segments:False", "expandable_segments:True", "expandable_segments"),
    ("expandable_segments:True", "expandable_segments:False", "expandable_segments"),
    ("expandable_segments:False,expandable_segments:True", "", "expandable_segments"),
    ("", "release_lock_on_cudamalloc:0,pinned_free_catch_all:True,release_lock_on_cudamalloc:1", "release_lock_on_cudamalloc"),
    ("backend:native", "backend:cudaMallocAsync", "backend")])
def test_of_values_that_contradict_each_other_one_that_asks_for_something_is_enough(cuda, generic, name):
    assert list(replaced({CUDA: cuda, GENERIC: generic})) == [name]


def test_a_key_that_nobody_knows_stays_on_one_line():
    assert "\n" not in warning({GENERIC: "no\nsuch:1"})


@pytest.mark.torch
def test_every_key_that_this_torch_knows_is_in_the_table():
    """Read off its headers: a key of a newer torch shows here first."""
    include = Path(importlib.util.find_spec("torch").origin).parent / "include" / "c10"
    cuda = (include / "cuda" / "CUDAAllocatorConfig.h").read_text()
    body = cuda[cuda.index("keys{") if "keys{" in cuda else 0:]
    body = re.sub(r"//[^\n]*", "", body[:body.index("};")])
    keys = set(re.findall(r'"(\w+)"', re.sub(r'"\s+"', "", body)))  # some are written in two pieces
    assert "per_process_memory_fraction" in keys and keys <= set(KEYS), keys - set(KEYS)
    generic = (include / "core" / "AllocatorConfig.h").read_text()
    told = set(re.findall(r"// Parse `(\w+)` from environment", generic))
    assert len(told) >= 6
    for name in told:
        assert any(name in key for key in KEYS), name
