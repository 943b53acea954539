"""dymem.Config, DYMEM_CONF and the C++ parser: one list of keys, and the same values mean the same."""

import dataclasses

import pytest

import dymem
from dymem.config import Config, format_bytes, parse_bytes


def test_python_and_cpp_have_the_same_keys():
    from dymem import _core

    assert Config.keys() == list(_core.abi.valid_keys())


def test_defaults_are_the_same():
    from dymem import _core

    assert _as_cpp(Config()) == _core.abi.parse_config("")


def _as_cpp(config):
    values = {key: getattr(config, key) for key in Config.keys()}
    return ",".join(f"{key}:{_text(value)}" for key, value in values.items())


def _text(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).removesuffix(".0")


@pytest.mark.parametrize("text", [
    "limit:20GiB", "limit:512MiB", "limit:1.5gib", "limit:123456789", "limit:20GB", "limit:none", "limit:0",
    "backing:vmm", "backing:Contiguous", "alias:off", "alias:False", "debug:1", "grow_ratio:0.05", "grow_ratio:0",
    "grow_slack:0", "driver:emulated,emulated_capacity:1GiB,emulated_devices:64", "trace:yes",
    " limit : 1KiB , alias:no,", "limit:.5GiB", "limit:5.GiB", "grow_ratio:.5", "grow_ratio:5e-1", "grow_ratio: 0.5",
    "grow_ratio:1e-5", "emulated_devices:007", "emulated_devices:0064", "emulated_devices:" + "0" * 5000 + "7",
    "grow_ratio:0e-999", "grow_ratio:4e-324",
    "limit:\v1\fKiB\r", "\tlimit\n:1KiB", "limit:63.999999999999999TiB", "emulated_capacity:0.5B", "grow_slack:2.5B",
])
def test_both_parsers_agree(text):
    from dymem import _core

    assert _as_cpp(Config.from_conf(text)) == _core.abi.parse_config(text)


@pytest.mark.parametrize("text", [
    "limt:3", "limit", "limit:", "limit:-1", "limit:lots", "limit:1.5", "limit:20 parsecs", "limit:nan", "limit:1e3",
    "backing:paper", "alias:maybe", "grow_ratio:-0.1", "grow_ratio:1.01", "grow_ratio:nan", "grow_ratio:x",
    "emulated_devices:0", "emulated_devices:65", "emulated_capacity:0", "driver:", "limit:999999TiB",
    "limit:\u0663", "emulated_devices:\u0663", "grow_ratio:\u0663", "grow_ratio:0_0.5", "grow_ratio:0x1p-3", "grow_ratio:+0.5",
    "grow_ratio:-0", "grow_ratio:", "grow_ratio:0.5 x", "limit:1e3KiB", "limit:-0GiB", "limit:0x10", "limit:99999999999999999",
    "grow_ratio:1e-400", "grow_ratio:2e-324", "limit:1\u212aB", "limit:1\u212aiB", "limit:1\xa0KiB", "limit:\x1c1KiB",
    "\u3000limit:1KiB", "limit\x85:1KiB", "alias:on\u2003", "emulated_devices:0065", "emulated_capacity:0.499999999999999959B",
    "emulated_capacity:0.4B", "debug:on,backing:contiguous",
    "limit:" + "9" * 400 + "GiB", "limit:.", "grow_ratio:.", *(key + "x" * 5000 for key in (
        "alias:", "grow_ratio:", "emulated_devices:", "backing:", "", "limit:")), "x" * 5000 + ":1", ("x" * 5000 + ":1,") * 2,
])
def test_both_parsers_refuse(text):
    from dymem import _core

    with pytest.raises(dymem.InvalidArgument) as ours:
        Config.from_conf(text)
    with pytest.raises(dymem.InvalidArgument):
        _core.abi.parse_config(text)
    assert "\n" not in str(ours.value) and len(str(ours.value)) < 300


@pytest.mark.parametrize("text", ["limit:1GiB\nalias:off", "limit\n", "x\ty:1", "backing:\x1b[31mvmm", "li\rmit:1",
                                  "grow_ratio:a\nb", "emulated_devices:1\n2", "limit\n1", "limit:1,limit:2\x00\n"])
def test_what_is_on_several_lines_is_told_on_one(text):
    from dymem import _core

    for parse in (Config.from_conf, _core.abi.parse_config):
        with pytest.raises(dymem.InvalidArgument) as error:
            parse(text)
        assert str(error.value).isprintable()


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(Config)])
def test_a_number_too_long_to_be_written_is_refused_like_any_other(key):
    with pytest.raises(dymem.ConfigError, match=f"^{key}: "):
        Config(**{key: 10**5000})
    with pytest.raises(dymem.ConfigError, match="is no key"):
        Config.from_mapping({10**5000: 1})


def test_unknown_key_names_the_valid_ones():
    with pytest.raises(dymem.ConfigError) as error:
        Config.from_conf("limt:20GiB")
    assert "limt" in str(error.value) and all(key in str(error.value) for key in Config.keys())


@pytest.mark.parametrize("config", [
    Config(), Config(limit="20GiB"), Config(alias=False, grow_ratio=0.02), Config(driver="emulated", emulated_devices=2),
])
def test_text_form_reads_back(config):
    assert Config.from_conf(config.to_conf()) == config


def test_config_is_frozen():
    with pytest.raises(AttributeError):
        Config().limit = 3


@pytest.mark.parametrize("n, text", [(0, "0 B"), (512, "512 B"), (1536, "1.50 KiB"), (12 << 20, "12.0 MiB"),
                                     (3 << 29, "1.50 GiB"), (2 << 40, "2.00 TiB")])
def test_bytes_for_people(n, text):
    assert format_bytes(n) == text


def test_bytes_are_exact_without_a_unit():
    assert parse_bytes(str(2**46 - 1)) == 2**46 - 1


BYTES = ["limit", "grow_slack", "emulated_capacity"]


@pytest.mark.parametrize("key", BYTES)
def test_floats_are_bytes_rounded_down(key):
    assert getattr(Config(**{key: 1e9}), key) == 10**9 and getattr(Config(**{key: 0.9 * 1001}), key) == 900
    config = Config(**{key: 2.5 * (1 << 30)})
    assert type(getattr(config, key)) is int and Config.from_conf(config.to_conf()) == config


@pytest.mark.parametrize("key", BYTES)
@pytest.mark.parametrize("value, words", [(float("nan"), "nan is no number of bytes"), (float("inf"), "inf is no number"),
                                          (-1.0, "-1.0 is no number of bytes; give one that is finite and not negative"),
                                          (0.9, "0.9 times its memory"), (1e300, "more memory than any device has")])
def test_floats_that_are_no_bytes_are_refused(key, value, words):
    with pytest.raises(dymem.ConfigError, match=f"^{key}: ") as error:
        Config(**{key: value})
    assert words in str(error.value)


def test_no_bytes_are_no_limit_but_no_device():
    assert Config(limit=0.0).limit == 0
    with pytest.raises(dymem.ConfigError, match="a device needs some memory"):
        Config(emulated_capacity=0.0)


def test_who_wrote_it_is_named(monkeypatch):
    """What was an argument is not blamed on the environment."""
    with pytest.raises(dymem.ConfigError) as error:
        dymem.install("20GiB")
    assert "'20GiB' is not key:value, for example limit:20GiB" in str(error.value) and "DYMEM_CONF" not in str(error.value)
    monkeypatch.setenv("DYMEM_CONF", "20GiB")
    with pytest.raises(dymem.ConfigError, match="^DYMEM_CONF: '20GiB' is not key:value"):
        Config.from_environment()
