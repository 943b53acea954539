"""`python -m dymem` and the `dymem` command. What it needs beyond Python is looked for here, once, in one line."""

from __future__ import annotations

import importlib.util
import os
import sys


def main() -> None:
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"dymem: the command line needs {' and '.join(missing)}; run `pip install {' '.join(missing)}`.")
    for name in ("stdout", "stderr"):  # closed by whoever started this, as daemons are
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
    for stream in (sys.stdout, sys.stderr):  # text that the terminal's encoding lacks, or a path that is no text: "?"
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        from dymem.cli.app import app

        app(prog_name="dymem")
    except KeyboardInterrupt:  # while the commands are being loaded; later, cli.console.one_sentence says so
        sys.stderr.write("dymem: stopped.\n")
        sys.exit(130)
    except OSError as error:
        from dymem.cli.console import complain, silence

        try:
            os.write(sys.stdout.fileno(), b"\n")  # was it stdout, of help and version?
            complain(f"the system refused {error.filename or 'something'}: {error.strerror or error}.")
        except OSError:
            silence(1)
            complain(f"stdout cannot be written: {error.strerror}.")
        sys.exit(2)


if __name__ == "__main__":
    main()
