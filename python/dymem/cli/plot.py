"""`dymem plot`: pictures of recordings, as recorded or as dymem's pool would place them."""

from __future__ import annotations

import warnings
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from dymem.cli.console import chosen, complain, out, progress, show
from dymem.cli.replay import parse_limit
from dymem.cli.environment import replay_keys
from dymem.config import format_bytes
from dymem.errors import DymemError, InvalidArgument
from dymem.replaying import LAG_MS, lag_ns
from dymem.trace import Recording, check_there, load
from dymem.writing import check_apart, check_writable, shown

RECORDED = "recorded"
# What each name says, whatever DYMEM_CONF says; "dymem" is dymem as it is configured, and its panel tells.
CONFIGURATIONS = {"dymem": {}, "dymem_remap": {"backing": "vmm", "alias": False},
                  "dymem_contiguous": {"backing": "contiguous"}}
ALLOCATORS = [RECORDED, *CONFIGURATIONS]
_PANELS_MAX = 24


def main(traces: list[Path], *, out_file: Path | None, allocators: str | None, replay: bool, pictures: list[str] | None,
         colour: str, x: str, first: int | None, last: int | None, limit: str | None, lag_ms: float,
         title: str | None) -> int:
    from dymem.plotting import files, needs
    from dymem.plotting.pictures import PICTURES, Options

    names = chosen(list(PICTURES), pictures, "picture")
    wanted = _allocators(allocators, replay)
    wanted_limit = parse_limit(limit)
    lag_ns(lag_ms)
    for_replays = limit is not None or lag_ms != LAG_MS
    if for_replays and wanted is not None and set(wanted) == {RECORDED}:
        raise _nothing_replayed()  # before anything is read
    options = Options(colour, x, first, last)
    _check(options)
    target = out_file or Path(_default_name(traces))
    kind = files.kind_of(target)
    if kind != "html" and not pictures:
        names = ["address"]
    if kind != "html" and len(names) > 1:
        raise InvalidArgument(f"{shown(target)} holds one picture; name one --picture, or write an .html page.")
    check_writable(target)
    check_apart([target], traces)
    for path in traces:
        check_there(path)
    needs.require()
    inherited, replayed = None, 0
    layouts = []
    labels = _labels(traces)
    with progress() as bar:
        for path in traces:
            recordings = load(path, layout=True)
            several = len(traces) > 1 or len(recordings) > 1
            for recording in recordings:
                recording.name = labels[path] + recording.name.removeprefix(_name(path))  # a device's number stays
                panels = _panels(recording, wanted)
                replayed += len(panels) - panels.count(RECORDED)
                if replayed and inherited is None:
                    inherited = replay_keys(takes_limit=True)
                    wanted_limit = inherited.pop("limit", None) if limit is None else wanted_limit
                layouts += _layouts(recording, panels, inherited, wanted_limit, lag_ms, bar, several)
                if len(layouts) > _PANELS_MAX:
                    raise InvalidArgument(f"more than {_PANELS_MAX} panels are no picture; name fewer traces or "
                                          "allocators.")
    if not replayed and for_replays:
        raise _nothing_replayed()
    if title is None:
        title = ", ".join(labels.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font lacks are drawn as boxes
        _write(kind, target, layouts, title, options, names)
    _tables(layouts, options)
    out.print(Text(f"Written to {shown(target.absolute())}"), soft_wrap=True)
    stopped = [layout for layout in layouts if layout.stopped is not None]
    for layout in stopped:
        complain(f"{layout.whole_name}: drawn up to event {layout.stopped:,}, where the limit was not enough any more"
                 f" ({_held(layout)}); give more with --limit.")
    return 1 if stopped else 0


def _nothing_replayed() -> InvalidArgument:
    return InvalidArgument("--limit and --lag are for replays, and nothing is replayed here: add --allocators recorded,dymem.")


def _held(layout) -> str:
    return f"{format_bytes(int(layout.live.max(initial=0)))} live at the most until there"


def _allocators(text: str | None, replay: bool) -> list[str] | None:
    """Names in the order they were given; None: as recorded, or by dymem where the trace tells no addresses."""
    if text is None:
        return ["dymem"] if replay else None
    if replay:
        raise InvalidArgument("--replay is short for --allocators dymem: write one of them.")
    names = [name.strip() for name in text.split(",") if name.strip()]
    chosen(ALLOCATORS, names, "allocator")
    if not names:
        raise InvalidArgument(f"--allocators names none; there are {', '.join(ALLOCATORS)}.")
    return list(dict.fromkeys(names))


def _check(options) -> None:
    """What can be said before anything is read."""
    from dymem.plotting.axis import LABELS
    from dymem.plotting.colours import CLASSIFIERS

    chosen(list(CLASSIFIERS), [options.colour], "way to colour called")
    chosen(["auto", *LABELS], [options.x], "time axis called")
    if options.first is not None and options.last is not None and options.first > options.last:
        raise InvalidArgument(f"--from {options.first} lies behind --to {options.last}; both are numbers of iterations.")


def _panels(recording: Recording, wanted: list[str] | None) -> list[str]:
    """The allocators that this recording is drawn for."""
    if not len(recording):
        raise InvalidArgument(f"{recording.file}: it holds no events; there is nothing to draw.")
    if wanted is not None:
        return wanted
    if not recording.addresses:
        complain(f"{recording.name} is a trace of dymem's own, which holds no addresses: drawn as dymem's pool places it.")
    return [RECORDED] if recording.addresses else ["dymem"]


def _layouts(recording: Recording, wanted: list[str], keys: dict | None, limit, lag_ms: float, bar, several: bool) -> list:
    """`keys`: what replays are configured with, beneath the keys of each form."""
    from dymem.plotting.layout import layout_of
    from dymem.plotting.replayed import name_of_dymem, replayed_layout

    layouts = []
    names = {RECORDED: "as recorded", "dymem": name_of_dymem(keys or {})}
    for name in wanted:
        label = names.get(name, name)
        shown = f"{recording.name}, {label}" if several or len(wanted) == 1 else label
        if name == RECORDED:
            layouts.append(layout_of(recording, shown))
            continue
        task = bar.add_task(shown, total=len(recording))
        try:
            layouts.append(replayed_layout(recording, shown, config={**(keys or {}), **CONFIGURATIONS[name]}, limit=limit,
                                           lag_ms=lag_ms,
                                           progress=lambda done, task=task: bar.update(task, completed=done)))
        except DymemError as error:
            text = str(error)
            raise InvalidArgument(text if text.startswith(recording.file) else f"{recording.file}: {text}") from None
        bar.remove_task(task)
    return layouts


def _write(kind: str, target: Path, layouts: list, title: str, options, names: list[str]) -> None:
    from dymem.plotting import files
    from dymem.plotting.page import page
    from dymem.plotting.pictures import draw

    if kind == "html":
        files.write_bytes(target, page(layouts, title, options, names))
    else:
        files.save_figure(draw(names[0], layouts, options, title), target)


def _tables(layouts: list, options) -> None:
    """The figures behind the picture, and who holds the peak of the first panel."""
    from dymem.plotting.peak import peak_of, rows, sentence
    from dymem.plotting.summary import HEAD, summary

    _print("", HEAD, [summary(layout) for layout in layouts])
    peak = peak_of(layouts[0], options.first, options.last)
    _print(sentence(peak), ("held at the peak, by line" if peak.by_line else "held at the peak", "blocks", "bytes",
                            "share", "largest"), rows(peak, 8))


def _print(title: str, head, body) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=Text(_printable(title)) if title else None, title_justify="left")
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in body:
        table.add_row(*(Text(_printable(cell)) for cell in row))
    show(table)


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _default_name(traces: list[Path]) -> str:
    return f"{_name(traces[0])}.png"


def _labels(traces: list[Path]) -> dict[Path, str]:
    """A name for each file: as short as tells it from the others."""
    labels = {}
    for path in traces:
        names = [lambda other: _name(other), lambda other: other.name, str]
        alone = (name for name in names if all(name(other) != name(path) for other in traces if other != path))
        labels[path] = shown(Path(next(alone)(path)))
    return labels


def _name(path: Path) -> str:
    from dymem.trace import name_of

    return name_of(path)
