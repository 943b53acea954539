"""One self-contained HTML page: every picture as an embedded PNG, and the tables as tables. It loads nothing."""

from __future__ import annotations

import base64
import html
from typing import Sequence

from dymem import __version__
from dymem.plotting.files import figure_bytes
from dymem.plotting.layout import Layout
from dymem.plotting.peak import Peak, peak_of, rows, sentence
from dymem.plotting.pictures import PICTURES, Options, draw
from dymem.plotting.summary import HEAD, summary

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1240px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; } img { width: 100%; height: auto; }
table { border-collapse: collapse; margin: .6em 0 1.4em; } th, td { padding: .25em .8em; text-align: right; }
th { border-bottom: 2px solid #888; } td { border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
footer { color: #666; margin-top: 3em; font-size: .9em; }
"""


def page(layouts: Sequence[Layout], title: str, options: Options, names: Sequence[str] = tuple(PICTURES)) -> bytes:
    """The page, UTF-8."""
    parts = [f"<h1>{_text(title)}</h1>", table(HEAD, [summary(layout) for layout in layouts])]
    for name in names:
        picture = base64.b64encode(figure_bytes(draw(name, layouts, options), "png", dpi=120)).decode()
        what = PICTURES[name][0].upper() + PICTURES[name][1:]
        parts.append(f'<h2>{what}</h2>\n<img alt="{what}" src="data:image/png;base64,{picture}">')
    if "peak" in names:
        parts += [_peak(peak_of(layout, options.first, options.last)) for layout in layouts]
    parts.append(f"<footer>Drawn by dymem {__version__}.</footer>")
    return (f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{_text(title)}</title>\n'
            f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n").encode("utf-8", "replace")


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Rows of text as an HTML table."""
    lines = ["<table>", "<tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return "\n".join([*lines, "</table>"])


def _peak(peak: Peak) -> str:
    who = "line" if peak.by_line else "allocated in"
    largest = [(h.who, f"{h.bytes:,}") for h in peak.largest]
    return (f"<p>{_text(sentence(peak))}</p>\n" + table((who, "blocks", "bytes", "share", "largest block"), rows(peak))
            + "<p>The largest blocks:</p>\n" + table((who, "bytes"), largest))


def _text(text: str) -> str:
    return html.escape(text)
