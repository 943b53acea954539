"""The rules of the sources that a machine can check. A rule that nothing can break is no rule: the last tests plant a
breach of each."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each layer may include its own headers and those of the layers before it. As the design lists them.
LADDER = ["base", "driver", "space", "stream", "pool", "plan", "trace", "replay", "abi", "torch", "bind"]
NEVER = {("bind", "torch"): "bindings are built without torch", ("torch", "replay"): "the adapter replays nothing",
         ("abi", "replay"): "the process's pools replay nothing"}
LINES_MAX = 700
COLUMNS_MAX = 140  # the formatters aim at 120; this is where a line has gone astray
SUFFIXES = {".py", ".cpp", ".hpp", ".cu", ".cuh", ".sh"}
# Put together here, so that this file does not hold them itself.
FORBIDDEN = [re.compile(pattern, re.IGNORECASE) for pattern in (
    r"(#|//) *TO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bXX" + r"X\b", "for no" + "w,? simplified", "not yet impl" + "emented",
    "/wo" + r"rk/", r"/tm" + r"p/(?!$)\w+/", "far" + "m-", r"\bAI ag" + "ent")]


def sources():
    folders = ("allocator", "python", "tests", "bench", "kernels", ".ci")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))
             if (path.suffix in SUFFIXES or path == ROOT / ".ci" / "run") and path.is_file()]
    return [ROOT / "setup.py", *(p for p in files if "__pycache__" not in p.parts and "out" not in p.parts)]


def layer_breaches(layer: str, text: str):
    for included in re.findall(r'^\s*#\s*include\s+"(\w+)/', text, re.MULTILINE):
        if included not in LADDER:
            yield f'includes "{included}/…", which is no layer'
        elif LADDER.index(included) > LADDER.index(layer):
            yield f"{layer}/ includes {included}/, which stands above it"
        elif (layer, included) in NEVER:
            yield f"{layer}/ includes {included}/: {NEVER[layer, included]}"


def foreign_breaches(path: str, text: str):
    for header in re.findall(r"^\s*#\s*include\s+[<\"]([\w./-]+)[>\"]", text, re.MULTILINE):
        own = path.startswith("allocator/torch/")
        if re.match(r"(torch/csrc|torch/extension|torch/all|ATen|c10)/?", header) and not own:
            yield f"includes {header}, but only allocator/torch/ may know torch"
        if header.startswith("cuda") and not (path.startswith("allocator/driver/cuda") or own):
            yield f"includes {header}, but only allocator/driver/cuda* may know CUDA"
        if header.startswith(("pybind11", "Python.h")) and not (path.startswith("allocator/bind/") or own):
            yield f"includes {header}, but only allocator/bind/ may know Python"


def head_comment(path: Path, text: str) -> bool:
    """Does the file begin by saying what it is for? A .cpp may leave that to its own header, included first."""
    lines = [line for line in text.splitlines() if line.strip()]
    while lines and (lines[0].startswith("#!") or lines[0].startswith("# -*-") or lines[0] == "#pragma once"):
        lines.pop(0)
    if not lines:
        return path.name == "__init__.py"
    if path.suffix == ".cpp" and re.match(rf'#include "[\w/]*\b{path.stem}\.hpp"', lines[0]):
        return True
    return lines[0].startswith(('"""', 'r"""', "#") if path.suffix in {".py", ".sh", ""} else ("//", "/*"))


def forbidden_words(text: str):
    return [match[0] for pattern in FORBIDDEN for match in pattern.finditer(text)]


def each_source():
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in sources()]


@pytest.mark.parametrize("path", each_source())
def test_source_is_tidy(path):
    text = path.read_text()
    where = str(path.relative_to(ROOT))
    lines = text.splitlines()
    assert len(lines) <= LINES_MAX, f"{where} has {len(lines)} lines: split it"
    long = [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX]
    assert not long, f"{where}: lines {long} are longer than {COLUMNS_MAX} columns"
    assert "\t" not in text and not re.search(r"[ ]+$", text, re.MULTILINE), f"{where}: tabs or blanks at line ends"
    assert text.endswith("\n") or not text, f"{where} does not end with a newline"
    assert head_comment(path, text), f"{where} does not begin with a comment that says what it is for"
    assert not forbidden_words(text), f"{where}: {forbidden_words(text)}"


def test_layers_are_those_of_the_design():
    found = {path.name for path in (ROOT / "allocator").iterdir() if path.is_dir() and any(path.glob("*.[ch]pp"))}
    assert found <= set(LADDER), f"unknown layers: {found - set(LADDER)}"
    assert {"base", "driver", "pool", "replay", "bind"} <= found


@pytest.mark.parametrize("path", [p for p in each_source() if p.values[0].suffix in {".cpp", ".hpp"}])
def test_includes_point_downwards(path):
    where = str(path.relative_to(ROOT))
    text = path.read_text()
    breaches = list(foreign_breaches(where, text)) if where.startswith("allocator/") else []
    if where.startswith("allocator/"):
        breaches += layer_breaches(where.split("/")[1], text)
    assert not breaches, f"{where}: {breaches}"


@pytest.mark.parametrize("path", [p for p in each_source() if p.values[0].is_relative_to(ROOT / "python" / "dymem")])
def test_python_package_imports_optional_packages_late(path):
    """At module level only the standard library, dymem itself, and (in cli/) typer and rich."""
    allowed_late = {"torch", "numpy", "matplotlib", "cupy", "setuptools", "pybind11", "typer", "rich", "click"}
    if "cli" in path.parts:
        allowed_late -= {"typer", "rich"}
    found = re.findall(r"^(?:from|import)\s+(\w+)", path.read_text(), re.MULTILINE)
    assert not allowed_late & set(found), f"imports {allowed_late & set(found)} when it is itself imported"


def test_readme_is_a_first_screen_with_the_commands():
    text = (ROOT / "README.md").read_text()
    for needed in ("dymem.install()", "dymem run", "make compare", "make test", "DYMEM_ENV=here"):
        assert needed in text, f"README.md does not show {needed}"
    assert not forbidden_words(text)


# --- a breach of each rule is noticed


@pytest.mark.parametrize("layer, include", [("base", "pool/pool.hpp"), ("driver", "space/space.hpp"),
                                            ("pool", "replay/replay.hpp"), ("bind", "torch/adapter.hpp"),
                                            ("pool", "nowhere/x.hpp")])
def test_upward_include_is_noticed(layer, include):
    assert list(layer_breaches(layer, f'#pragma once\n#include "{include}"\n'))


@pytest.mark.parametrize("path, header", [("allocator/pool/pool.cpp", "cuda.h"), ("allocator/abi/entry.cpp", "c10/x.h"),
                                          ("allocator/driver/emulated.cpp", "cuda_runtime.h"),
                                          ("allocator/space/space.cpp", "torch/csrc/y.h"),
                                          ("allocator/replay/replay.cpp", "pybind11/pybind11.h")])
def test_foreign_include_is_noticed(path, header):
    assert list(foreign_breaches(path, f"#include <{header}>\n"))


def test_allowed_includes_pass():
    assert not list(foreign_breaches("allocator/driver/cuda.cpp", "#include <cuda.h>\n"))
    assert not list(foreign_breaches("allocator/torch/adapter.cpp", "#include <c10/cuda/x.h>\n"))
    assert not list(layer_breaches("pool", '#include "space/space.hpp"\n#include "base/units.hpp"\n'))


@pytest.mark.parametrize("text", ["# TO" + "DO later", "// FIX" + "ME", 'open("/wo' + 'rk/x")', "far" + "m-tool"])
def test_forbidden_word_is_noticed(text):
    assert forbidden_words(text)


def test_missing_head_is_noticed():
    assert not head_comment(Path("x.py"), "import os\n")
    assert not head_comment(Path("x.hpp"), "#pragma once\nint x;\n")
    assert not head_comment(Path("x.cpp"), '#include "pool/y.hpp"\n')
    assert head_comment(Path("x.cpp"), '#include "pool/x.hpp"\n')
    assert head_comment(Path("x.hpp"), "// What.\n#pragma once\n")
