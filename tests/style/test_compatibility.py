"""docs/compatibility.md promises nothing without a test: each row names one, and each that is named exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "compatibility.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", TEXT)))


def missing(named: str, root: Path = ROOT) -> str | None:
    file, _, test = named.partition("::")
    if not (root / file).is_file():
        return f"there is no {file}"
    if test and not re.search(rf"^def {test}\(", (root / file).read_text(), re.MULTILINE):
        return f"{file} has no {test}"
    return None


@pytest.mark.parametrize("named", NAMED)
def test_what_is_named_exists(named):
    assert missing(named) is None


def rows():
    return [line for line in TEXT.splitlines() if line.startswith("|") and not line.startswith(("|---", "| what |", "| key |"))]


def test_every_row_names_a_test():
    assert len(rows()) >= 30
    assert [row for row in rows() if not re.search(r"`tests/[\w/]+\.py(::\w+)?` *[,|]", row)] == []


@pytest.mark.parametrize("feature", [
    # What users of other allocators miss on day one: a row for each.
    "memory_allocated", "memory_summary", "reset_peak", "torch.accelerator", "memory_snapshot", "_record_memory_history",
    "memory_viz", "torch.OutOfMemoryError", "observers", "PYTORCH_ALLOC_CONF", "set_per_process_memory_fraction",
    "empty_cache", "record_stream", "torch.cuda.graph", "reduce-overhead", "MemPool", "use_mem_pool", "NCCL registration",
    "CUDA IPC", "cudnn.benchmark", "DDP", "FSDP2", "host_memory_stats", "mem_get_info", "DLPack", "dymem.h"])
def test_nothing_is_left_unsaid(feature):
    assert feature in TEXT


def test_every_setting_has_a_row():
    from dymem.alloc_conf import KEYS

    for key in KEYS:
        assert f"`{key}`" in TEXT or key.startswith("pinned_") and "`pinned_*`" in TEXT or key.endswith("hipmalloc"), key


def test_a_test_that_is_not_there_is_noticed(tmp_path):
    (tmp_path / "test_x.py").write_text("def test_here():\n    pass\n")
    assert missing("test_x.py", tmp_path) is None and missing("test_x.py::test_here", tmp_path) is None
    assert "no test_gone" in missing("test_x.py::test_gone", tmp_path) and "no test_y.py" in missing("test_y.py", tmp_path)
