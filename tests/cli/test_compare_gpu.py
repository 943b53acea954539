"""`dymem compare` as on a machine with a GPU, a stand-in training in place of bench/train.py; pages, JSON, bad input."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from dymem.cli import compare, compare_gpu
from dymem.cli.compare_gpu import Asked
from dymem.cli.page import page
from dymem.compare import card, training
from dymem.errors import InvalidArgument

HERE = Path(__file__).parent
NAMES = ["native", "expandable", "async", "rmm_pool", "rmm_async", "dymem", "dymem_remap", "dymem_contiguous"]
spec = importlib.util.spec_from_file_location("fake_train", HERE.parent / "compare" / "conftest.py")
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)


@pytest.fixture
def on_a_gpu(tmp_path, monkeypatch):
    """A card is here and RMM is not; the adapter needs no building."""
    (tmp_path / "train.py").write_text(fakes.FAKE_TRAIN)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log.txt"))
    monkeypatch.setattr(training, "TRAIN", tmp_path / "train.py")
    monkeypatch.setattr(card, "gpu_count", lambda: 1)
    monkeypatch.setattr(card, "total_bytes", lambda: 80 << 30)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "rmm" else find(name, *more))
    monkeypatch.setattr(compare_gpu, "build_adapter", lambda allocators: None)
    return lambda **asked: compare.main(Asked(iterations=5, shapes=2, **asked), program=[], recordings=False, lag_ms=10.0)


def test_all_allocators_side_by_side(on_a_gpu, tmp_path, capsys):
    assert on_a_gpu(json_file=tmp_path / "out.json", repeats=1) == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["kind"] == "training" and content["gpu"] == "a card" and content["errors"] == []
    (row,) = content["workloads"]
    assert row["allocators"] == NAMES == list(content["allocators"])
    assert row["rmm_pool"]["missing"] and "pip install rmm" in row["rmm_pool"]["error"]
    for name in set(NAMES) - {"rmm_pool", "rmm_async"}:
        assert {"live_peak_bytes", "occupied_peak_bytes", "reserved_peak_bytes", "step_ms", "overhead", "ratio",
                "ratio_upper_95", "calls_per_step", "call_ns", "device_allocations", "runs"} <= set(row[name]), name
    said = capsys.readouterr()
    for word in ("cudaMallocAsync", "RMM pool", "not here", "dymem, alias=off", "102 MiB", "1.000 ≤1.000"):
        assert word in said.out.replace("102.0", "102"), word
    assert "pip install rmm-cu13" in said.err


def test_a_failure_under_one_allocator_is_told_and_ends_with_1(on_a_gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_CRASH", "expandable")
    assert on_a_gpu(json_file=tmp_path / "out.json", repeats=2, allocators=["native", "expandable", "dymem"]) == 1
    content = json.loads((tmp_path / "out.json").read_text())
    assert len(content["errors"]) == 1 and "the card caught fire" in content["errors"][0]
    assert content["workloads"][0]["dymem"]["repeats"] == 2
    said = capsys.readouterr()
    assert "failed" in said.out and "in a kernel" in said.err


@pytest.mark.parametrize("caps", [None, [1.0, 1.5]])
def test_time_that_is_short_costs_the_last_workloads_not_the_end_of_each(on_a_gpu, tmp_path, capsys, caps):
    assert on_a_gpu(json_file=tmp_path / "out.json", every=True, repeats=1, allocators=["native", "dymem", "rmm_pool"],
                    caps=caps, seconds=0.01) == 1
    content = json.loads((tmp_path / "out.json").read_text())
    first, *others = content["workloads"]
    if caps:
        assert first["uncapped"]["step_ms"] and "error" not in first
    else:
        assert first["dymem"]["step_ms"] and first["native"]["step_ms"] and content["errors"][0].startswith("unet_b16: ")
    assert [row["error"] for row in others] == ["it was not run: the time was spent"] * 2
    assert not any("dymem" in row for row in others)
    said = capsys.readouterr()
    assert "unknown_one: it was not run" in said.err and "unet_b16: each" not in said.out


def test_caps_with_page_and_curve(on_a_gpu, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert on_a_gpu(json_file=tmp_path / "out.json", html_file=tmp_path / "out.html", folder=tmp_path / "pictures",
                    caps=[1.0, 1.05, 1.5]) == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["kind"] == "capped"
    assert [cell["dymem"]["trains"] for cell in content["workloads"][0]["caps"]] == [False, True, True]
    assert content["workloads"][0]["caps"][0]["rmm_pool"]["missing"]
    assert (tmp_path / "pictures" / "caps-resnet50_b128.png").read_bytes().startswith(b"\x89PNG")
    assert self_contained((tmp_path / "out.html").read_text()) == 1
    assert "out of memory" in capsys.readouterr().out


def self_contained(text: str) -> int:
    """Nothing is loaded from elsewhere; the number of pictures in it."""
    sources = re.findall(r'(?:src|href)\s*=\s*"([^"]*)"', text)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"<script|<link|@import|url\(|https?://", text)
    return len(sources)


def test_without_matplotlib_there_is_a_page_without_pictures(on_a_gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert on_a_gpu(html_file=tmp_path / "out.html", caps=[1.5], allocators=["native", "dymem"]) == 0
    text = (tmp_path / "out.html").read_text()
    assert self_contained(text) == 0 and "pictures need matplotlib" in text
    assert "matplotlib" in capsys.readouterr().err


def test_a_page_takes_any_text_for_text(tmp_path):
    from rich.table import Table
    from rich.text import Text

    table = Table("a", "b", title="<title>")
    table.add_row(Text("[red]<b>"), "[red]3[/red]")
    text = page("x & y", [table, "1 < 2"])
    assert "<td>[red]&lt;b&gt;</td><td>3</td>" in text and "x &amp; y" in text and "1 &lt; 2" in text


def test_recordings_have_a_page_and_pictures_too(dymem_command, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("dymem.plotting")
    run = dymem_command("compare", "--recordings", "--only", "kmeans", "--html", "out.html", "--pictures", "p\udcff")
    assert run.returncode == 0, run.stderr
    assert self_contained((tmp_path / "out.html").read_text()) == 1
    assert (tmp_path / "p\udcff" / "addresses-kmeans.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("asked, words", [
    ({"only": ["nosuch"]}, ["nosuch", "resnet50_b128", "unet_b16"]),
    ({"folder": Path("/dev/null/x")}, ["/dev/null/x"]),
    ({"html_file": Path("/nowhere/x.html")}, ["/nowhere/x.html"]),
    ({"json_file": Path("/nowhere/x.json")}, ["/nowhere/x.json"]),
    ({"allocators": ["rmm_pool"]}, ["pip install rmm"]),
    ({"html_file": Path("/dev/full"), "allocators": ["native"], "caps": [1.5]}, ["/dev/full", "No space left"]),
    ({"json_file": Path("/dev/full"), "allocators": ["native"]}, ["/dev/full", "No space left"]),
])
def test_bad_input_on_a_gpu(on_a_gpu, asked, words):
    with pytest.raises(InvalidArgument) as raised:
        on_a_gpu(**asked)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize("arguments, words", [
    (["--allocators", "jemalloc"], ["jemalloc", "native", "dymem_contiguous"]),
    (["--allocators", ","], ["names none", "native"]),
    (["--cap", "1.0z"], ["1.0z", "--cap 1.00x"]),
    (["--cap", "1.02x"], ["needs a GPU"]),
    (["--all"], ["needs a GPU"]),
    (["nosuch.py"], ["no script nosuch.py"]),
    ([__file__], ["no GPU"]),
    (["resnet50_b128"], ["--only"]),
    (["--html", "nowhere/x.html"], ["nowhere/x.html"]),
])
def test_bad_input_without_a_gpu(dymem_command, arguments, words):
    if card.gpu_count():
        pytest.skip("a GPU is here")
    run = dymem_command("compare", *arguments)
    assert run.returncode == 2 and run.stderr.count("\n") == 1, run.stderr
    assert all(word in run.stderr for word in words), run.stderr


@pytest.mark.parametrize("arguments, words", [
    (["nosuch.py"], ["no script nosuch.py"]),
    (["--cap", "1.02", "--only", "kmeans", "x.py"], ["--only and --all choose bundled workloads"]),
    (["--only", "unet_b16", "x.py"], ["leave them out"]),
    (["--recordings", "x.py"], ["leave it out"]),
])
def test_bad_input_beside_a_script(dymem_command, tmp_path, arguments, words):
    (tmp_path / "x.py").write_text("")
    run = dymem_command("compare", *arguments, env={"DYMEM_CONF": "driver:emulated"})
    assert run.returncode == 2 and run.stderr.count("\n") == 1, run.stderr
    assert all(word in run.stderr for word in words), run.stderr


@pytest.mark.torch
def test_a_script_of_the_users(dymem_command, tmp_path, first_build):
    (tmp_path / "my train.py").write_text(
        "import sys, torch\nassert sys.argv[1:] == ['--json', 'mine']\nw = torch.zeros(3, requires_grad=True)\n"
        "o = torch.optim.SGD([w])\nfor i in range(5):\n    w.sum().backward(); o.step()\nprint('secret')\n")
    run = dymem_command("compare", "--allocators", "native,dymem", "--repeats", "1", "--json", "out.json", "my train.py",
                        "--json", "mine", env={"DYMEM_CONF": "driver:emulated", "DYMEM_CACHE": str(first_build.cache)}, timeout=590)
    assert run.returncode == 0, run.stderr
    assert "my train.py" in run.stdout and "secret" not in run.stdout + run.stderr
    row = json.loads((tmp_path / "out.json").read_text())["workloads"][0]
    assert [len(row[name]["runs"][0]["step_seconds"]) for name in ("native", "dymem")] == [4, 4]
