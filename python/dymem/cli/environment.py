"""DYMEM_CONF for the commands that replay: what of it a replay can heed is heeded, and either is said in one line.

What the command's options and the forms that are compared say themselves comes on top.
"""

from __future__ import annotations

import dataclasses

from dymem.cli.console import complain
from dymem.config import ENVIRONMENT, Config

HEEDED = ("backing", "alias", "wait", "grow_ratio", "grow_slack")


def replay_keys(takes_limit: bool = False) -> dict[str, object]:
    """The keys of DYMEM_CONF that a replay uses, by name, with `limit` among them if the command takes one.

    Raises ConfigError if DYMEM_CONF means nothing.
    """
    config = Config.from_environment()
    set_ = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)
            if getattr(config, field.name) != field.default}
    heeded = HEEDED + (("limit",) if takes_limit else ())
    used, unused = ([key for key in set_ if (key in heeded) is wanted] for wanted in (True, False))
    idle = f"{' and '.join(unused)} {'means' if len(unused) == 1 else 'mean'} nothing here."
    if used:
        text = dataclasses.replace(Config(), **{key: set_[key] for key in used}).to_conf()
        complain(f"{ENVIRONMENT} is heeded: {text}." + (f" Its {idle}" if unused else ""))
    elif unused:
        complain(f"{ENVIRONMENT} is not heeded: {idle}")
    return {key: set_[key] for key in used}
