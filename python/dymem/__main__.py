"""`python -m dymem` and the `dymem` command. What it needs beyond Python is looked for here, once, in one line."""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"dymem: the command line needs {' and '.join(missing)}; run `pip install {' '.join(missing)}`.")
    for stream in (sys.stdout, sys.stderr):  # text that the terminal's encoding lacks, or a path that is no text: "?"
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        from dymem.cli.app import app

        app(prog_name="dymem")
    except KeyboardInterrupt:  # while the commands are being loaded; later, cli.console.one_sentence says so
        sys.stderr.write("dymem: stopped.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
