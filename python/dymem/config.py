"""What a user may set: `dymem.Config`, `DYMEM_CONF="key:value,…"` and the options of `dymem run` are one list of keys.

The fields of Config are that list. The C++ core parses the same text (allocator/abi/registry.hpp), and a test holds
the two lists equal. Pure Python: nothing is loaded, so a configuration can be made before anything else.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from typing import Callable, Mapping

from dymem.errors import ConfigError

ENVIRONMENT = "DYMEM_CONF"
_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
          "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SPACE = " \t\n\v\f\r"  # what the core takes for space; str.strip() alone takes more
_SIZE_MAX = 1 << 46  # kRequestMax: what no device has


def parse_bytes(text: str | int | float) -> int:
    """Bytes from "20GiB", "512MiB", "1.5GiB", "20GB" (decimal) or a plain number; "none" is 0. A float (0.9 * the card's
    memory) is rounded down."""
    if isinstance(text, float):
        return _whole_bytes(text)
    word = _words(text).strip(_SPACE)
    if word.lower() == "none":
        return 0
    match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]*)", word, re.ASCII | re.IGNORECASE)  # a Kelvin sign is no k
    unit = match[2].lower() if match else ""
    plain = match and not unit and match[1].isdigit()
    if not match or not (plain or unit in _UNITS):
        raise ConfigError(f"'{shortened(text)}' is not a size; write 20GiB, 512MiB or a number of bytes.")
    value = float(match[1]) * _UNITS[unit or "b"]  # exact where it matters: whole numbers up to _SIZE_MAX
    if value > _SIZE_MAX:  # infinite too
        raise ConfigError(f"'{shortened(text)}' is more memory than any device has; write for example 20GiB.")
    return int(value) + (value % 1 >= 0.5)  # int(value + 0.5) makes 1 of what is just below 0.5


def _whole_bytes(value: float) -> int:
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{value} is no number of bytes; give one that is finite and not negative, or text as '20GiB'.")
    if 0 < value < 1:  # rounded down it would be no limit at all
        raise ConfigError(f"{value} is less than a byte; a share of a card is given in bytes: {value} times its memory.")
    if value > _SIZE_MAX:
        raise ConfigError(f"{value} bytes are more memory than any device has; write for example 20GiB.")
    return int(value)


_TOO_LONG = "a number of thousands of digits"  # more than Python writes: str() and repr() raise


def _words(value: object) -> str:
    try:
        return str(value)
    except ValueError:
        return _TOO_LONG


def shortened(text: object) -> str:
    """What somebody wrote, for a sentence that stays one, on one line."""
    text = _words(text)
    text = text if len(text) <= 60 else f"{text[:56]}…"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def shown(value: object) -> str:
    """Anything that somebody gave, for a sentence on one line: text in quotes."""
    try:
        return shortened(repr(value))
    except ValueError:
        return _TOO_LONG


def format_bytes(n: float) -> str:
    """The shortest of "512 B", "12.0 MiB", "1.50 GiB": for people, never parsed."""
    n = float(n)
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(n) >= unit:
            digits = 2 if abs(n) < 10 * unit else 1
            return f"{n / unit:.{digits}f} {name}"
    return f"{n:.0f} B"


def _switch(text: str | bool) -> bool:
    word = _words(text).lower()
    if word in ("on", "true", "1", "yes"):
        return True
    if word in ("off", "false", "0", "no"):
        return False
    raise ConfigError(f"'{shortened(text)}' is neither on nor off.")


def _ratio(text: str | float) -> float:
    word = _words(text).strip(_SPACE).lower()
    number = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", word)  # float() reads more than the core does
    value = float(word) if number else -1.0
    if not 0.0 <= value <= 1.0 or (value == 0.0 and re.search("[1-9]", number[1])):  # too small to be told from 0
        raise ConfigError(f"'{shortened(text)}' is not a number from 0 to 1.")
    return value


def _count(text: str | int) -> int:
    number = re.fullmatch(r"0*([0-9]{1,2})", _words(text))  # int() takes no more than some thousand digits
    if not number or not 1 <= int(number[1]) <= 64:
        raise ConfigError(f"'{shortened(text)}' is not a number from 1 to 64.")
    return int(number[1])


def _capacity(text: str | int | float) -> int:
    if (value := parse_bytes(text)) == 0:
        raise ConfigError("a device needs some memory; write for example 8GiB.")
    return value


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if _words(text).lower() not in names:
            raise ConfigError(f"'{shortened(text)}' is not one of {', '.join(names)}.")
        return str(text).lower()

    return parse


def _key(default, parse, help: str):
    return dataclasses.field(default=default, metadata={"parse": parse, "help": help})


@dataclasses.dataclass(frozen=True)
class Config:
    """The configuration of dymem; every value has a default that needs no thought.

    Byte values also take text ("20GiB") and floats, which are rounded down; switches also take "on" and "off".
    """

    limit: int = _key(0, parse_bytes, "Bytes that dymem may hold of each device; 0 = no limit.")
    backing: str = _key("auto", _one_of("auto", "vmm", "contiguous"), "Where memory is from: auto, vmm or contiguous.")
    alias: bool = _key(True, _switch, "Stitch idle granules by mapping them a second time; off: unmap, then map again.")
    wait: bool = _key(True, _switch, "Copy streams wait for memory that compute freed a while ago; off: the pool grows.")
    debug: bool = _key(False, _switch, "One mapping per block, with guard pages, for compute-sanitizer.")
    grow_ratio: float = _key(0.003, _ratio, "Grow to (1 + this) x the peak of occupied bytes before "
                            "stitching; five times this where several streams are at work.")
    grow_slack: int = _key(8 << 20, parse_bytes, "Bytes to grow beyond that.")
    driver: str = _key("cuda", _one_of("cuda", "emulated"), "The machine to run on: cuda, or emulated (for tests).")
    emulated_capacity: int = _key(8 << 30, _capacity, "Bytes that each emulated device has.")
    emulated_devices: int = _key(1, _count, "How many emulated devices there are.")
    trace: bool = _key(False, _switch, "Record what the pool is asked; dymem.save_trace(path) writes it, "
                       "for `dymem replay`.")
    mobility: str = _key("off", _one_of("off", "auto"), "auto: profile one iteration, once iterations are recognised, and "
                         "group what the next ones allocate by how long it is held.")

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            try:
                parsed = field.metadata["parse"](value)
            except ConfigError as error:
                raise ConfigError(f"{field.name}: {error}") from None
            object.__setattr__(self, field.name, parsed)
        if self.debug and self.backing == "contiguous":
            raise ConfigError("debug:on maps each block by itself, which backing:contiguous cannot; leave one of the two "
                              "out.")

    @classmethod
    def keys(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> "Config":
        for key in values:
            if key not in cls.keys():
                raise ConfigError(f"'{shortened(key)}' is no key of dymem's configuration; the keys are "
                                  f"{', '.join(cls.keys())}.")
        return cls(**values)

    @classmethod
    def from_conf(cls, text: str) -> "Config":
        """From "key:value,key:value", the form of DYMEM_CONF."""
        values: dict[str, str] = {}
        for item in filter(None, (part.strip(_SPACE) for part in text.split(","))):
            key, colon, value = item.partition(":")
            if not colon:
                raise ConfigError(f"'{shortened(item)}' is not key:value, for example limit:20GiB; the keys are "
                                  f"{', '.join(cls.keys())}.")
            key = key.strip(_SPACE)
            if key in values:
                raise ConfigError(f"'{shortened(key)}' stands there twice.")
            values[key] = value.strip(_SPACE)
        return cls.from_mapping(values)

    @classmethod
    def from_environment(cls) -> "Config":
        """What DYMEM_CONF says; a ConfigError names it."""
        try:
            return cls.from_conf(os.environ.get(ENVIRONMENT, ""))
        except ConfigError as error:
            raise ConfigError(f"{ENVIRONMENT}: {error}") from None

    def to_conf(self) -> str:
        """The text of DYMEM_CONF that means this: only what differs from the defaults."""
        items = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                items.append(f"{field.name}:{('on' if value else 'off') if isinstance(value, bool) else value}")
        return ",".join(items)
