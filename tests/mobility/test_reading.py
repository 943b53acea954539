"""What is concluded from an operator log, on logs written by hand."""

import gzip
import json
import lzma
import os

import pytest

from dymem import _core
from dymem.errors import InvalidArgument, TraceError
from dymem.mobility import MOVABLE, RECLAIMED, TEMPORARY, UNTAGGED, Facts, by_stream, classes, patterns
from dymem.mobility.facts import DEVICES
from dymem.mobility.kinds import kind_of
from dymem.mobility.reading import ALLOC, GRAD, NODE, USER

ACCUMULATE = "torch::autograd::AccumulateGrad"


def residual(log):
    """x -> conv a -> relu b -> conv c -> add d (+ a) -> loss e, and back."""
    log = log()
    for older in ("x", "w1", "w2"):
        log.held(older)
    log.begin("aten::conv2d", seq=1).given("x").given("w1", leaf=True).alloc("a").alloc("scratch").free("scratch")
    log.end()
    log.op("aten::relu", ["a"], ["b"], seq=2)
    log.begin("aten::conv2d", seq=3).given("b").given("w2", leaf=True).alloc("c").end()
    log.op("aten::add", ["c", "a"], ["d"], seq=4).free("c")
    log.op("aten::mse_loss", ["d"], ["e"], seq=5)
    log.op("aten::ones_like", ["e"], ["ge"])
    log.node("MseLossBackward0", ["ge"], ["gd"], ["d"], ["d"], seq=5)
    log.node("AddBackward0", ["gd"], seq=4)
    log.node("ConvolutionBackward0", ["gd"], ["gb", "gw2"], saved=["b", "w2"], seq=3)
    log.node(ACCUMULATE, ["gw2"])
    log.node("ReluBackward0", ["gb"], ["ga"], ["b", "gb"], ["b"], seq=2)
    log.node("ConvolutionBackward0", ["ga"], ["gw1"], ["ga", "gd"], ["gd", "x", "w1"], seq=1)
    log.node(ACCUMULATE, ["gw1"], frees=["a"])
    log.begin("Optimizer.step#SGD.step", USER).alloc("m1")
    log.op("aten::add_", ["w1", "gw1", "m1"], flags=0)
    log.op("aten::mul", ["w2"], ["tmp"], flags=0).free("tmp").end()
    log.begin("Optimizer.zero_grad#SGD.zero_grad", USER).free("gw1").free("gw2").end()
    return log


def named(log, facts):
    """Allocations by the names they have in a log that allocates each name once."""
    made = [row for row in log.rows if row[0] == ALLOC]
    by_address = {address: name for name, address in log.addresses.items()}
    return {by_address[int.from_bytes(row[8:16], "little")]: facts.allocations[i] for i, row in enumerate(made)}


def test_roles_of_a_residual_block(log):
    log = residual(log)
    facts = log.facts()
    roles = {name: a.role for name, a in named(log, facts).items()}
    assert roles == {"a": "saved", "scratch": "workspace", "b": "saved", "c": "result", "d": "saved", "e": "result",
                     "ge": "result", "gd": "result", "gb": "result", "gw2": "gradient", "ga": "result", "gw1": "gradient",
                     "m1": "optimizer", "tmp": "result"}
    assert [a.role for a in facts.older] == ["other", "parameter", "parameter"]
    assert facts.segments == ["F", "B", "O"] and facts.complete and not facts.notes


def test_who_made_and_used_what(log):
    log = residual(log)
    facts = log.facts()
    a = named(log, facts)
    names = {name: [facts.nodes[i].name for i in x.users] for name, x in a.items()}
    assert names["a"] == ["aten::relu", "aten::add"] and a["a"].fork and not a["a"].waits
    assert names["b"] == ["aten::conv2d", "ConvolutionBackward0", "ReluBackward0"] and not a["b"].fork
    assert names["gd"] == ["ConvolutionBackward0"] * 2, "AddBackward0 only passes it on"
    assert a["gd"].fork and not a["gb"].waits, "accumulating a gradient is no step from one layer to the next"
    assert (a["a"].kind, a["c"].kind, a["gb"].kind, a["ga"].kind) == ("conv", "conv", "conv", "act")
    assert a["scratch"].node == 0 and a["scratch"].operator == "aten::conv2d"
    back = [n for n in facts.nodes if n.name == "ConvolutionBackward0"]
    assert [facts.nodes[n.forward].index for n in back] == [2, 0]
    assert facts.nodes[a["b"].freed_by].name == "ReluBackward0" == facts.nodes[a["b"].last_use].name


def test_classes_of_a_residual_block(log):
    log = residual(log)
    facts = log.facts()
    names = list(named(log, facts))
    lifetime, paper = (dict(zip(names, classes(facts, rule))) for rule in ("lifetime", "paper"))
    assert {name for name, told in lifetime.items() if told == TEMPORARY} == {"scratch", "c", "gd", "gb", "ga", "tmp"}
    assert RECLAIMED not in lifetime.values()
    kept = {name for name, told in lifetime.items() if told == UNTAGGED}
    assert kept and kept == {name for name, a in named(log, facts).items() if a.freed is None}, "outlives the iteration"
    assert paper["a"] == paper["gd"] == TEMPORARY, "forks"
    assert paper["b"] == paper["c"] == paper["gb"] == paper["ga"] == MOVABLE, "consumed by the next layer"
    for rule in ("oracle", [], None):
        with pytest.raises(InvalidArgument, match="lifetime, paper"):
            classes(facts, rule)


@pytest.mark.parametrize("of", [classes, by_stream])
def test_classes_of_what_is_no_facts(of):
    for thing in (None, {"version": 1}, "facts.json"):
        with pytest.raises(InvalidArgument, match=r"there are no facts in .*Facts\.load"):
            of(thing)


def test_an_input_that_takes_a_gradient_is_no_parameter_but_has_a_gradient(log):
    log = log().held("w")
    log.op("aten::randn", [], ["x"])
    log.begin("aten::linear", seq=1).given("x", "w", leaf=True).alloc("y").end()
    log.node("AddmmBackward0", ["y"], ["gx", "gw"], saved=["x", "w"], seq=1)
    log.node(ACCUMULATE, ["gx"]).node(ACCUMULATE, ["gw"]).free("gx").free("x")
    facts = log.facts()
    assert [a.role for a in facts.older] == ["parameter"]
    roles = {name: a.role for name, a in named(log, facts).items()}
    assert (roles["x"], roles["gx"], roles["gw"]) == ("saved", "gradient", "gradient")


def test_small_layers_are_reclaimed(log):
    log = log()
    log.op("aten::linear", [], ["a"]).op("aten::dropout", ["a"], ["mask", "b"]).op("aten::softmax", ["b"], ["c"])
    log.op("aten::relu", ["c"], ["d"])
    assert classes(log.facts(), "paper") == [RECLAIMED] * 4 + [TEMPORARY]


def test_branches_wait_for_their_join(log):
    log = log().held("image")
    log.op("aten::conv2d", ["image"], ["l0"])
    log.op("aten::conv2d", ["l0"], ["l1"]).op("aten::conv2d", ["l0"], ["l2"]).op("aten::conv2d", ["l2"], ["l3"])
    log.op("aten::cat", ["l1", "l3"], ["l4"]).op("aten::relu", ["l4"], ["l5"])
    facts = log.facts()
    assert [(a.fork, a.waits) for a in facts.allocations[:5]] == [(True, False), (False, True), (False, False),
                                                                  (False, False), (False, False)]
    assert classes(facts, "paper")[:5] == [TEMPORARY, TEMPORARY, MOVABLE, MOVABLE, MOVABLE]


def test_weight_cast_is_no_step_between_layers(log):
    log = log().held("w")
    log.op("aten::relu", [], ["a"]).op("aten::to", ["w"], ["w16"]).op("aten::linear", ["a", "w16"], ["b"])
    a = log.facts().allocations[0]
    assert not a.waits and not a.fork


def test_view_is_no_user_but_writing_in_place_is(log):
    log = log()
    log.op("aten::conv2d", [], ["a"]).op("aten::flatten", ["a"]).op("aten::relu_", ["a"])
    facts = log.facts()
    assert [facts.nodes[i].name for i in facts.allocations[0].users] == ["aten::relu_"]
    assert [n.view for n in facts.nodes] == [False, True, False]


def test_operators_within_an_operator_are_one_node(log):
    log = log()
    log.begin("aten::dropout").begin("aten::empty_like").begin("aten::empty").alloc("mask").end().end()
    log.begin("aten::mul").alloc("out").end().end()
    facts = log.facts()
    assert [n.name for n in facts.nodes] == ["aten::dropout"]
    assert [a.operator for a in facts.allocations] == ["aten::empty", "aten::mul"]
    assert facts.nodes[0].makes == [0, 1]


def test_custom_function_is_one_node(log):
    log = log()
    log.begin("Scale", seq=7).begin("aten::mul", 0).alloc("a").end().end()
    log.begin("autograd::engine::evaluate_function: ScaleBackward", 0).begin("ScaleBackward", NODE, seq=7, forward=1)
    log.begin("aten::mul", 0).given("a").alloc("ga").end().end().free("a").end()
    facts = log.facts()
    assert [(n.name, n.kind, n.phase, n.forward) for n in facts.nodes] == [("Scale", "custom", "F", None),
                                                                          ("ScaleBackward", "custom", "B", 0)]
    assert [a.role for a in facts.allocations] == ["saved", "result"]


def test_checkpoint_that_recomputes_within_backward(log):
    """Not reentrant: operators that autograd records while one of its nodes runs."""
    log = log()
    log.op("aten::linear", [], ["in"], seq=1)
    log.op("aten::linear", ["in"], ["drop"], seq=2).op("aten::relu", ["drop"], ["out"], seq=3).free("drop")
    log.begin("autograd::engine::evaluate_function: ReluBackward0", 0).begin("ReluBackward0", NODE, seq=3)
    log.op("aten::linear", ["in"], ["again"], flags=GRAD, seq=4).op("aten::relu", ["again"], ["out2"], seq=5)
    log.begin("aten::threshold_backward", 0).given("out2").alloc("g").end().end().end()
    log.node("AddmmBackward0", ["g"], ["g2"], ["again", "out2"], ["again"], seq=2)
    facts = log.facts()
    again = [n for n in facts.nodes if n.again]
    assert [n.name for n in again] == ["aten::linear", "aten::relu"] and {n.phase for n in again} == {"B"}
    by = {a.index: a for a in facts.allocations}
    assert [by[i].role for i in (3, 4)] == ["saved", "saved"] and by[3].segment == 1, "recomputed, then needed by backward"
    assert by[5].node == again[0].index - 1, "the node's own work is still the node's"
    assert classes(facts)[3] == TEMPORARY


def test_checkpoint_as_a_custom_function_is_looked_through(log):
    log = log()
    log.begin("CheckpointFunction").op("aten::conv2d", [], ["a"], flags=0).op("aten::relu", ["a"], ["b"], flags=0).end()
    assert [n.name for n in log.facts().nodes] == ["aten::conv2d", "aten::relu"]


def test_backward_on_its_own_thread(log):
    log = log()
    log.op("aten::exp", [], ["a"], seq=1)
    log.op("aten::ones_like", ["a"], ["g"]).node("ExpBackward0", ["g"], ["h"], ["a"], ["a"], seq=1, thread=9)
    facts = log.facts()
    assert facts.segments == ["F", "B"] and facts.nodes[2].forward == 0
    assert [a.role for a in facts.allocations] == ["saved", "result", "result"]


def test_same_sequence_number_of_another_thread_is_another_node(log):
    log = log()
    log.op("aten::exp", [], ["a"], seq=1).op("aten::sin", [], ["b"], seq=1, thread=2)
    log.node("SinBackward0", ["b"], seq=1, thread=9, forward=2)
    assert log.facts().nodes[2].forward == 1


def test_thread_beside_changes_nothing_of_the_phase(log):
    log = log()
    log.node("ExpBackward0", [], ["g"]).op("aten::add", [], ["other"], thread=5).node("SinBackward0", ["g"], ["h"], ["g"])
    facts = log.facts()
    assert facts.segments == ["B"] and classes(facts)[0] == TEMPORARY


def test_operators_of_two_threads_interleave(log):
    log = log().begin("aten::conv2d").begin("aten::add", thread=2).alloc("a").alloc("b", thread=2)
    log.free("a").end(thread=2).end()
    facts = log.facts()
    assert [facts.nodes[a.node].name for a in facts.allocations] == ["aten::conv2d", "aten::add"]


def test_address_used_again_is_another_allocation(log):
    log = log().op("aten::exp", [], ["a"]).free("a").op("aten::sin", [], ["a"]).op("aten::cos", ["a"], ["b"])
    facts = log.facts()
    assert [len(a.users) for a in facts.allocations] == [0, 1, 0] and facts.allocations[0].freed is not None


def test_places_count_by_device_and_stream(log):
    log = log().alloc("a").alloc("b", stream=7).alloc("c").alloc("d", device=1)
    facts = log.facts()
    assert [(a.device, a.stream, a.place) for a in facts.allocations] == [(0, 0, 0), (0, 7, 0), (0, 0, 1), (1, 0, 0)]
    assert by_stream(facts) == {(0, 0): [UNTAGGED] * 2, (0, 7): [UNTAGGED], (1, 0): [UNTAGGED]}, "nothing is freed"


def test_ends_without_a_beginning_and_unknown_addresses(log):
    log = log().end().end(thread=4).free("never").begin("aten::exp").given("stranger").alloc("a").end()
    log.begin("aten::sin").alloc("b")  # an exception, or the end of the profile: it never ends
    facts = log.facts()
    assert not facts.older and facts.nodes[0].uses == [] and facts.nodes[1].end == -1
    assert facts.allocations[1].role == "result"


def test_freed_before_and_held_since(log):
    log = log().held("w", number=3).op("aten::exp", ["w"], ["a"]).free("w")
    (w,) = log.facts().older
    assert (w.number, w.freed is not None, w.users) == (3, True, [0])


def test_older_ones_that_nothing_used_are_left_out(log):
    log = log().op("aten::exp", [], ["a"]).held("a").held("idle").held("w", device=1).op("aten::sin", ["w", "a"], ["b"])
    facts = log.facts()
    assert [(x.device, x.users) for x in facts.older] == [(1, [1])] and facts.allocations[0].users == [1]


def test_older_one_that_went_while_it_was_listed(log):
    facts = log().free("a").held("a").alloc("a").op("aten::sin", ["a"], ["b"]).facts()
    assert not facts.older and facts.allocations[0].users == [0]


def test_host_memory_is_known_when_it_is_seen(log):
    log = log(host=True).begin("aten::exp").given("w", leaf=True).alloc("a").end()
    assert [a.role for a in log.facts().older] == ["parameter"]


@pytest.mark.parametrize("fault", [{"lost": 3}, {"displaced": True}])
def test_incomplete_facts_tag_nothing(log, fault):
    facts = log().op("aten::exp", [], ["a"]).facts(**fault)
    assert not facts.complete and len(facts.notes) == 1
    assert classes(facts) == classes(facts, "paper") == [UNTAGGED]


def test_empty_log(log):
    facts = log().facts()
    assert facts == Facts() and classes(facts) == []


def test_facts_come_back_from_json(log, tmp_path):
    facts = residual(log).facts()
    facts.save(tmp_path / "facts.json")
    assert Facts.load(tmp_path / "facts.json") == facts


@pytest.mark.parametrize("name, opened", [("x.json", open), ("x.json.xz", lzma.open), ("x.json.GZ", gzip.open)])
def test_facts_are_compressed_as_the_name_says(log, tmp_path, name, opened):
    facts = residual(log).facts()
    facts.save(tmp_path / name)
    with opened(tmp_path / name, "rb") as file:
        assert json.loads(file.read())["version"] == 1
    assert Facts.load(tmp_path / name) == facts and os.listdir(tmp_path) == [name]


def test_facts_that_cannot_be_written_or_read(log, tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be written: there is no folder .*nowhere; name a file in a folder"):
        residual(log).facts().save(tmp_path / "nowhere" / "x.json")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    for name, words in (("missing", "there is no such file"), ("picture.png", "nor any other text"), (".", "a folder"),
                        ("a\0b", "no file can have that name"), ("\ud800", "no file can have that name")):
        with pytest.raises(TraceError, match=words) as raised:
            Facts.load(tmp_path / name)
        assert "Errno" not in str(raised.value) and "codec" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[" * 100_000, '{"version": 99}', '{"version":1,"nodes":{"fields":[],"rows":[[1]]}}'])
def test_what_is_no_facts_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TraceError, match="x.json"):
        Facts.load(tmp_path / "x.json")


def test_another_version_is_said_and_nothing_else():
    with pytest.raises(TraceError) as raised:
        Facts.from_json('{"version": 99}')
    assert str(raised.value) == "these facts are of version 99, and this dymem reads 1; record anew."


@pytest.mark.parametrize("version, said", [(True, "True"), (1.0, "1.0"), ("1", "'1'"), (None, "None"), ([1] * 10**5, "[1, 1, "),
                                           ("9" * 10**5, "'999")])
def test_what_is_equal_to_the_version_is_not_the_version(log, version, said):
    data = json.loads(residual(log).facts().to_json())
    with pytest.raises(TraceError) as raised:
        Facts.from_json(json.dumps(data | {"version": version}))
    assert str(raised.value).startswith(f"these facts are of version {said}") and len(str(raised.value)) < 200


BROKEN = [  # of one table, and what is said of it
    (lambda t: None, "`T` is no table of fields and rows"), (lambda t: [], "`T` is no table of fields and rows"),
    (lambda t: t | {"rows": None}, "`T` is no table of fields and rows"),
    (lambda t: {"rows": t["rows"]}, "`T` is no table of fields and rows"),
    (lambda t: t | {"rows": [*t["rows"][:2], t["rows"][2][:-1]]}, "row 2 of `T` has {less} values for {all} fields"),
    (lambda t: t | {"rows": [t["rows"][0] + [3]]}, "row 0 of `T` has {more} values for {all} fields"),
    (lambda t: t | {"rows": [t["rows"][0], None]}, "row 1 of `T` has None for {all} fields"),
    (lambda t: t | {"fields": ["inex", *t["fields"][1:]]}, "`T` has a field 'inex', which no profile tells"),
    (lambda t: t | {"fields": [["w" * 999], *t["fields"][1:]]}, "`T` has a field ['www"),
    (lambda t: t | {"fields": t["fields"][1:]}, "`T` has no field `index`"),
    (lambda t: t | {"fields": [t["fields"][1], *t["fields"][1:]]}, "`T` has its field `{second}` twice")]


@pytest.mark.parametrize("table", ["nodes", "allocations", "older"])
@pytest.mark.parametrize("broken, words", BROKEN)
def test_a_table_that_is_none_is_told_in_words_of_the_project(log, table, broken, words):
    data = json.loads(residual(log).facts().to_json())
    fields = data[table]["fields"]
    words = words.replace("T", table).format(all=len(fields), less=len(fields) - 1, more=len(fields) + 1, second=fields[1])
    with pytest.raises(TraceError) as raised:
        Facts.from_json(json.dumps(data | {table: broken(data[table])}))
    said = str(raised.value)
    assert said.startswith(words) and said.endswith("; these facts are damaged: record them anew.") and len(said) < 200


@pytest.mark.parametrize("text, words", [
    ("", "nor any other JSON"), ("[" * 100_000, "nor any other JSON"), ('{"version": 1', "nor any other JSON"),
    ("1" * 5000, "facts"), ("[1]", "which have a version"), ("{}", "which have a version"), ('{"version": 1}', "it has no `nodes`")])
def test_what_is_no_facts_is_told_without_pythons_words(text, words):
    with pytest.raises(TraceError, match=words) as raised:
        Facts.from_json(text)
    assert "Error" not in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["nodes", "allocations", "older", "segments", "complete", "notes"])
def test_what_is_left_out_is_named(log, name):
    data = json.loads(residual(log).facts().to_json())
    del data[name]
    with pytest.raises(TraceError, match=f"^it has no `{name}`; these facts are damaged"):
        Facts.from_json(json.dumps(data))


def test_facts_of_host_memory_say_so(log):
    """Files of others are as they were."""
    facts, plain = (log(host=host).op("aten::exp", [], ["a"]).facts() for host in (True, False))
    assert facts.host and not plain.host and facts != plain
    assert Facts.from_json(facts.to_json()) == facts and Facts.from_json(plain.to_json()) == plain
    assert "host" not in json.loads(plain.to_json())


DAMAGE = [  # to the facts of `residual`: 14 allocations, 3 older ones, 3 segments
    ("segments", None, None, "FBO"), ("segments", None, None, ["F", "B", "X"]), ("complete", None, None, 1),
    ("notes", None, None, "none"), ("notes", None, None, [3]), ("host", None, None, "yes"),
    ("nodes", 1, "index", 2), ("nodes", 1, "name", None), ("nodes", 1, "kind", 4), ("nodes", 1, "phase", ""),
    ("nodes", 1, "segment", 3), ("nodes", 1, "thread", "main"), ("nodes", 1, "at", -1), ("nodes", 1, "end", 0),
    ("nodes", 1, "end", -1.0), ("nodes", 1, "forward", 1), ("nodes", 1, "again", 0), ("nodes", 1, "view", None),
    ("nodes", 1, "uses", [14]), ("nodes", 1, "uses", [-4]), ("nodes", 1, "makes", [-1]), ("nodes", 1, "makes", 0),
    ("allocations", 2, "index", 3), ("allocations", 2, "index", 10**6), ("allocations", 2, "number", -1),
    ("allocations", 2, "device", 64), ("allocations", 2, "device", 0.0), ("allocations", 2, "stream", -1),
    ("allocations", 2, "stream", 1 << 64), ("allocations", 2, "place", 3), ("allocations", 2, "place", None),
    ("allocations", 2, "bytes", "64"), ("allocations", 2, "bytes", 10**400), ("allocations", 2, "bytes", True),
    ("allocations", 2, "role", "wages"), ("allocations", 2, "node", 99), ("allocations", 2, "operator", None),
    ("allocations", 2, "kind", []), ("allocations", 2, "phase", "FB"), ("allocations", 2, "segment", -1),
    ("allocations", 2, "at", None), ("allocations", 2, "freed", 1), ("allocations", 2, "freed", "late"),
    ("allocations", 2, "freed_in", 3), ("allocations", 2, "freed_by", -1), ("allocations", 2, "users", [99]),
    ("allocations", 2, "users", None), ("allocations", 2, "last_use", 99), ("allocations", 2, "fork", "no"),
    ("allocations", 2, "waits", 1), ("older", 1, "index", -1), ("older", 1, "place", 0), ("older", 1, "at", 5),
    ("older", 1, "phase", "F"), ("older", 1, "segment", 0), ("older", 1, "freed", -1), ("older", 1, "bytes", None)]


@pytest.mark.parametrize("table, row, field, value", DAMAGE)
def test_damaged_facts_are_refused_when_they_are_read(log, table, row, field, value):
    """Not when they are followed; with the field and the index of what has it."""
    data = json.loads(residual(log).facts().to_json())
    if row is None:
        data[table], field, of = value, table, "it"
    else:
        data[table]["rows"][row][data[table]["fields"].index(field)] = value
        of = {"nodes": f"node {row}", "allocations": f"allocation {row}", "older": f"allocation {-1 - row}"}[table]
    with pytest.raises(TraceError, match=f"^{of} has .* as `{field}`, .*record them anew.$") as raised:
        Facts.from_json(json.dumps(data))
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("make", [
    lambda log: log.alloc("a").free("a"), lambda log: log.alloc("a", device=DEVICES - 1, stream=(1 << 64) - 1),
    lambda log: log.begin("aten::exp").alloc("a").free("a"), lambda log: log.held("w", number=3).free("w"),
    lambda log: log.node("ExpBackward0", [], ["g"]).op("aten::add", [], ["b"], thread=5).free("g")])
def test_facts_that_are_odd_but_sound_are_read(log, make):
    """No segment yet, the last device and stream there can be, an operator that never ends."""
    facts = make(log()).facts()
    assert Facts.from_json(facts.to_json()) == facts
    patterns(facts, classes(facts), again=True)


def test_devices_are_as_many_as_in_the_core():
    assert DEVICES == _core.abi.DEVICES_MAX


@pytest.mark.parametrize("name, kind", [
    ("aten::conv2d", "conv"), ("ConvolutionBackward0", "conv"), ("aten::conv_transpose2d", "conv"), ("aten::linear", "fc"),
    ("AddmmBackward0", "fc"), ("aten::_softmax", "softmax"), ("aten::log_softmax", "softmax"), ("aten::dropout", "dropout"),
    ("NativeDropoutBackward0", "dropout"), ("aten::batch_norm", "norm"), ("CudnnBatchNormBackward0", "norm"),
    ("aten::relu_", "act"), ("aten::max_pool2d", "pool"), ("aten::cross_entropy_loss", "loss"), ("aten::cat", "join"),
    ("aten::scaled_dot_product_attention", "attention"), ("aten::_to_copy", "copy"), ("aten::add_", "elementwise"),
    ("MyFunction", "custom"), ("CompiledFunctionBackward", "custom"), ("aten::sum", "reduce"), ("aten::nonsense", "other")])
def test_kinds(name, kind):
    assert kind_of(name) == kind
