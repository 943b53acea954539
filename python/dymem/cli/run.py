"""`dymem run`: a script under dymem, without touching the script.

The process becomes `python script.py ARGS…`, with the configuration in DYMEM_CONF and dymem/_boot first on PYTHONPATH:
there a sitecustomize installs dymem as soon as torch is imported. So the script runs exactly as Python would run it,
and every child it starts (torchrun's ranks, spawned workers) is under dymem with the same configuration. The options
are the keys of dymem.Config; they go before the script and win over DYMEM_CONF.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Callable, Optional

import typer

from dymem._paths import PACKAGE
from dymem import config
from dymem.config import ENVIRONMENT, Config
from dymem.errors import ConfigError, InstallError, InvalidArgument

SWITCH = "DYMEM_RUN"  # read by _boot/sitecustomize.py


def command() -> Callable:
    """The command's function, with one option for each key of Config."""

    def run(program: list[str], module: bool, **keys: str | None) -> None:
        """Run a script under dymem: dymem run train.py ARGS…, or dymem run -m package ARGS…"""
        start(program, module, {key: value for key, value in keys.items() if value is not None})

    parameters = [
        _parameter("program", list[str], typer.Argument(metavar="SCRIPT ARGS…", show_default=False,
                                                        help="The script (or module) and what it is given.")),
        _parameter("module", bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m."), False)]
    for field in dataclasses.fields(Config):
        names = dict.fromkeys([f"--{field.name.replace('_', '-')}", f"--{field.name}"])
        default = ("on" if field.default else "off") if isinstance(field.default, bool) else field.default
        if field.metadata["parse"] in (config.parse_bytes, config._capacity) and default:
            default = config.format_bytes(default).replace(" ", "")
        parameters.append(_parameter(field.name, Optional[str], typer.Option(
            *names, metavar="VALUE", show_default=False,
            help=f"{field.metadata['help']} \\[default: {default}]"), None))
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, kind, option, default=inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _no_script(name: str) -> str:
    """What to write instead, if what stands there is a command, as in `dymem run python train.py`."""
    found = shutil.which(name)
    if found is None:
        return f"there is no script {name}."
    if Path(name).name.startswith("python"):
        return f"{name} needs not be named: write dymem run train.py ARGS…, or dymem run -m MODULE ARGS…"
    return f"there is no script {name}, but a command; if it is written in Python, write dymem run {found} ARGS…"


def start(program: list[str], module: bool, keys: dict[str, str]) -> None:
    """Becomes the program; does not return unless something is wrong with what was asked."""
    if program[0].startswith("-"):
        raise ConfigError(f"'{program[0]}' is no option of dymem run; the options are -m, "
                          f"{', '.join('--' + key.replace('_', '-') for key in Config.keys())} and --help.")
    Config.from_mapping(keys)
    wanted = dataclasses.replace(Config.from_environment(), **keys)
    if not module and not os.path.exists(program[0]):
        raise InvalidArgument(_no_script(program[0]))
    if importlib.util.find_spec("torch") is None:
        raise InstallError("torch is not installed, so there is nothing to serve; run `pip install torch`.")
    environment = dict(os.environ)
    environment[ENVIRONMENT] = wanted.to_conf()
    environment[SWITCH] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE / "_boot"), os.environ.get("PYTHONPATH")]))
    flags = subprocess._args_from_interpreter_flags()  # -u, -O, -X … as this process was given them
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *flags, *(["-m"] if module else []), *program], environment)
