"""Plans that a site's policy refuses, each by the name of the rule and the line."""

from contextlib import nullcontext

import attrs
import numpy as np
import pytest
import tensorflow as tf
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from direct_exchange import ELEMENT, open_sites
from elsewhere import with_graph

import fedcore as fc
from fedcore.compiler import compile_module, pipeline_with
from fedcore.compiler.client_outputs import ClientOutputs
from fedcore.compiler.liveness import Liveness
from fedcore.deployment.policy import SIGNED_PREFIX, Policy, Refusal
from fedcore.deployment.policy_file import PolicyFile
from fedcore.deployment.sent_numbers import measured_std
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_plans import read_plan
from fedcore.errors import FedcoreError
from fedcore.ir import bundle
from fedcore.types import FederatedType

ROWS = fc.SequenceType(fc.to_type(ELEMENT))
DATA = FederatedType(ROWS, fc.CLIENTS)
OPEN = Policy(aggregated=False)


@fc.tf_computation(ROWS)
def total_label(rows):
    return rows.reduce(0, lambda total, batch: total + tf.reduce_sum(batch["y"]))


@fc.tf_computation(ROWS)
def mean_features(rows):
    return rows.reduce(tf.zeros([6]), lambda total, batch: total + tf.reduce_sum(batch["x"], 0))


@fc.tf_computation(ROWS)
def label_text(rows):
    return tf.strings.as_string(rows.reduce(0, lambda total, batch: total + tf.reduce_sum(batch["y"])))


@fc.tf_computation("str", "str")
def append(text, other):
    return tf.strings.join([text, other])


@fc.tf_computation(ROWS)
def noisy_label(rows):
    total = rows.reduce(0, lambda total, batch: total + tf.reduce_sum(batch["y"]))
    return total + tf.cast(tf.random.normal([]), tf.int32)


@fc.federated_computation(DATA)
def masked_total(data):
    return fc.federated_secure_sum(fc.federated_map(total_label, data), 1000)


@fc.federated_computation(DATA)
def plain_total(data):
    return fc.federated_sum(fc.federated_map(total_label, data))


@fc.federated_computation(DATA)
def total_of_features(data):
    return fc.federated_sum(fc.federated_map(mean_features, data))


@fc.tf_computation(np.int32, ROWS.element)
def add_label(total, batch):
    return total + tf.reduce_sum(batch["y"])


@fc.federated_computation(ROWS)
def reduced_label(rows):
    return fc.sequence_reduce(rows, np.int32(0), add_label)


@fc.federated_computation(DATA)
def reduced_total(data):
    return fc.federated_sum(fc.federated_map(reduced_label, data))


@fc.tf_computation(ROWS.element)
def both(batch):
    return tf.reduce_sum(batch["x"], 1) + tf.cast(batch["y"], tf.float32)


@fc.tf_computation(np.float32, ("float32", [None]))
def add_all(total, numbers):
    return total + tf.reduce_sum(numbers)


@fc.federated_computation(ROWS)
def mapped(rows):
    return fc.sequence_reduce(fc.sequence_map(both, rows), np.float32(0), add_all)


@fc.federated_computation(DATA)
def mapped_total(data):
    return fc.federated_sum(fc.federated_map(mapped, data))


@fc.federated_computation(DATA)
def client_values(data):
    return fc.federated_map(total_label, data)


@fc.federated_computation(DATA)
def largest(data):
    return fc.federated_secure_sum(fc.federated_map(total_label, data), 1000), fc.federated_max(
        fc.federated_map(total_label, data)
    )


@fc.federated_computation(DATA)
def all_labels(data):
    texts = fc.federated_map(label_text, data)
    return fc.federated_aggregate(texts, b"", append, append, fc.tf_computation(lambda text: text, "str"))


@fc.federated_computation(DATA)
def noisy_total(data):
    return fc.federated_sum(fc.federated_map(noisy_label, data))


def plan_of(computation):
    module = computation.to_module("traced")
    return compile_module(module, pipeline_with({"secure": "masked"}, "default"))


def rules(policy, computation, **facts):
    return {refusal.rule for refusal in policy.refusals(plan_of(computation), **facts)}


@pytest.mark.parametrize(
    ("policy", "computation", "rule"),
    [
        (OPEN, client_values, "values"),
        (Policy(), plain_total, "aggregated"),
        (Policy(), largest, "aggregated"),
        (Policy(), all_labels, "aggregated"),
        (Policy(aggregated=False, bits=8), plain_total, "bits"),
        (Policy(aggregated=False, bits=10**6), all_labels, "sizes"),
        (Policy(aggregated=False, columns=frozenset({"x"})), reduced_total, "columns"),
        (Policy(aggregated=False, columns=frozenset({"x"})), mapped_total, "columns"),
        (Policy(aggregated=False, columns=frozenset({"y"})), mapped_total, "columns"),
        (Policy(aggregated=False, bits_per_day=10**6), all_labels, "sizes"),
        (Policy(aggregated=False, noise=True), all_labels, "sizes"),
        (Policy(aggregated=False, clip=1.0), all_labels, "sizes"),
        (Policy(aggregated=False, without=frozenset({"Sum"})), plain_total, "operations"),
        (Policy(aggregated=False, operations=frozenset({"AddV2"})), plain_total, "operations"),
        (Policy(aggregated=False, noise=True), plain_total, "noise"),
        (Policy(aggregated=False, digests=frozenset({"0" * 64})), plain_total, "plans"),
        (Policy(aggregated=False, signers=(bytes(32),)), plain_total, "plans"),
    ],
)
def test_a_plan_is_refused_by_the_rule_that_it_breaks(policy, computation, rule):
    assert rule in rules(policy, computation)


@pytest.mark.parametrize(
    ("policy", "computation"),
    [
        (Policy(), masked_total),
        (OPEN, plain_total),
        (Policy(aggregated=False, bits=32, noise=True), noisy_total),
        (Policy(aggregated=False, columns=frozenset({"y"})), reduced_total),
        (Policy(aggregated=False, client_values=True), client_values),
    ],
)
def test_a_plan_is_accepted_where_no_rule_is_against_it(policy, computation):
    assert rules(policy, computation) == set()


def test_a_refusal_names_the_line_of_the_program():
    (refusal,) = Policy(aggregated=False, columns=frozenset({"x"})).refusals(plan_of(reduced_total))

    assert "test_policy.py:" in str(refusal)
    assert str(refusal).endswith("reads y")


def test_columns_are_those_of_the_sites_table(tmp_path):
    exchange, _ = open_sites(tmp_path, 1, 'aggregated = false\nclients = 1\ncolumns = ["f0", "f1", "label"]\n')
    data = fc.deployment.sites(exchange, ELEMENT)
    with fc.use(fc.runtime.network(exchange)), pytest.raises(fc.errors.ClientError, match="reads f2, f3, f4, f5"):
        total_of_features(data.cohort(data.client_ids))


def test_a_plan_that_a_key_of_the_policy_has_signed_runs():
    key = Ed25519PrivateKey.generate()
    policy = Policy(aggregated=False, signers=(key.public_key().public_bytes_raw(),))
    plan = plan_of(plain_total)

    policy.check_plan(plan, signature=key.sign(SIGNED_PREFIX + plan.digest().encode()))
    with pytest.raises(Refusal, match="is not signed by a key of the policy"):
        policy.check_plan(plan, signature=Ed25519PrivateKey.generate().sign(SIGNED_PREFIX + plan.digest().encode()))


@pytest.mark.parametrize(("bound", "rule"), [("rounds_per_day = 2", "rounds_per_day"), ("bits_per_day = 64", "bits_")])
def test_budgets_of_a_day_hold_after_a_restart(tmp_path, bound, rule):
    policy = f"aggregated = false\nclients = 1\n{bound}\n"
    exchange, _ = open_sites(tmp_path, 1, policy)
    data = fc.deployment.sites(exchange, ELEMENT)
    with fc.use(fc.runtime.network(exchange)):
        plain_total(data.cohort(data.client_ids))
        exchange.restart("site-00")
        plain_total(data.cohort(data.client_ids))
        with pytest.raises(fc.errors.ClientError, match=f"declined: rule {rule}"):
            plain_total(data.cohort(data.client_ids))


def test_a_result_whose_measured_size_is_too_large_does_not_leave(tmp_path):
    policy, log = Policy(aggregated=False, bits=64), SiteLog(tmp_path / "site.log")
    policy.check_sent(64, log, planned_bits=0)
    with pytest.raises(Refusal, match=r"^the client would send 65 bits; at most 64 may leave$") as refusal:
        policy.check_sent(65, log, planned_bits=0)
    assert refusal.value.rule == "bits"


def test_a_site_with_the_rule_noise_draws_its_own_seed(tmp_path):
    exchange, _ = open_sites(tmp_path, 1, "aggregated = false\nclients = 1\nnoise = true\n")
    data = fc.deployment.sites(exchange, ELEMENT)

    @fc.tf_computation(ROWS)
    def draw(rows):
        return rows.reduce(0.0, lambda total, batch: total + tf.reduce_sum(batch["x"])) + tf.random.normal([])

    @fc.federated_computation(DATA)
    def noisy(values):
        return fc.federated_sum(fc.federated_map(draw, values))

    with fc.use(fc.runtime.network(exchange)):
        totals = {float(noisy.invoke(data.cohort(data.client_ids), seed=7)) for _ in range(3)}

    assert len(totals) == 3


@fc.tf_computation(ROWS)
def noisy_features(rows):
    totals = rows.reduce(tf.zeros([6]), lambda total, batch: total + tf.reduce_sum(batch["x"], 0))
    return totals[:, None] + tf.random.normal([6, 100])


@fc.federated_computation(DATA)
def noisy_features_total(data):
    return fc.federated_sum(fc.federated_map(noisy_features, data))


@pytest.mark.parametrize(
    ("bound", "computation", "message"),
    [
        ("clip = 1000", total_of_features, None),
        ("clip = 0.1", total_of_features, r"rule clip: .*test_policy.py:\d+: the norm of what would leave exceeds 0.1"),
        ("noise_std = 0.9", noisy_features_total, None),
        ("noise_std = 1.2", noisy_features_total, r"rule noise_std: .*test_policy.py:\d+: .* less noise than"),
        ("noise_std = 0.9", total_of_features, r"rule noise: .* leaves without noise"),
    ],
)
def test_what_leaves_is_clipped_and_has_noise(tmp_path, bound, computation, message):
    exchange, _ = open_sites(tmp_path, 1, f"aggregated = false\nclients = 1\n{bound}\n")
    data = fc.deployment.sites(exchange, ELEMENT)
    refused = nullcontext() if message is None else pytest.raises(fc.errors.ClientError, match=message)
    with fc.use(fc.runtime.network(exchange)), refused:
        computation(data.cohort(data.client_ids))


DTYPES = {
    "complex64": lambda x: tf.complex(x, x),
    "bfloat16": lambda x: tf.cast(x, tf.bfloat16),
    "float16": lambda x: tf.cast(x, tf.float16),
    "float64": lambda x: tf.cast(x, tf.float64),
    "int64": lambda x: tf.cast(x, tf.int64),
}


def total_in(convert):
    """Features in another dtype, with the noise of random numbers that no digit shows."""

    @fc.tf_computation(ROWS)
    def features(rows):
        totals = rows.reduce(tf.zeros([6]), lambda total, batch: total + 100 * tf.reduce_sum(batch["x"], 0))
        return convert(totals + 1e-9 * tf.random.normal([6]))

    @fc.federated_computation(DATA)
    def total(data):
        return fc.federated_sum(fc.federated_map(features, data))

    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bound", ["clip = 0.5", "noise_std = 0.9"])
def test_clip_and_noise_are_measured_in_each_dtype(tmp_path, dtype, bound):
    exchange, _ = open_sites(tmp_path, 1, f"aggregated = false\nclients = 1\n{bound}\n")
    data = fc.deployment.sites(exchange, ELEMENT)
    with (
        fc.use(fc.runtime.network(exchange)),
        pytest.raises(fc.errors.ClientError, match=f"rule {bound.split()[0]}: "),
    ):
        total_in(DTYPES[dtype])(data.cohort(data.client_ids))


@pytest.mark.parametrize("rule", ["clip", "noise_std"])
def test_texts_are_refused_where_numbers_are_measured(rule):
    assert rule in rules(Policy(aggregated=False, **{rule: 1.0}), all_labels)


def test_two_runs_that_send_other_numbers_of_values_have_no_noise():
    assert measured_std(np.zeros(3), np.zeros(4)) == 0


@fc.federated_computation(DATA)
def masked_noise_and_count(data):
    return (
        fc.federated_secure_sum_bitwidth(fc.federated_map(noisy_label, data), 20),
        fc.federated_secure_sum_bitwidth(fc.federated_map(total_label, data), 20),
    )


@fc.tf_computation(ROWS)
def label_counts(rows):
    return tf.stack([rows.reduce(0, lambda total, batch: total + tf.reduce_sum(batch["y"])), 1])


@fc.federated_computation(DATA)
def masked_label_counts(data):
    return fc.federated_secure_sum_bitwidth(fc.federated_map(label_counts, data), 20)


@pytest.mark.parametrize(
    ("policy", "computation", "refused"),
    [
        (Policy(noise=frozenset({"update"})), masked_label_counts, {"noise"}),
        (Policy(noise=frozenset({"update"})), masked_total, set()),
        (Policy(noise=True), masked_noise_and_count, {"noise"}),
        (Policy(noise=frozenset({"noisy_label"})), masked_noise_and_count, set()),
        (Policy(noise=frozenset({"total_label"})), masked_noise_and_count, {"noise"}),
        (Policy(aggregated=False, noise=frozenset({"other"})), plain_total, {"noise"}),
    ],
)
def test_noise_by_name_lets_other_values_leave_in_masked_sums_only(policy, computation, refused):
    assert rules(policy, computation) == refused


def test_a_value_that_is_sent_and_not_added_is_not_in_sums_only():
    @fc.tf_computation(np.int32, np.int32)
    def ignore(total, value):
        return total + 1

    @fc.tf_computation(np.int32, np.int32)
    def plus(left, right):
        return left + right

    @fc.federated_computation(DATA)
    def count(data):
        labels = fc.federated_map(total_label, data)
        return fc.federated_aggregate(labels, np.int32(0), ignore, plus, fc.tf_computation(lambda n: n, np.int32))

    plan = compile_module(count.to_module("traced"), "inline,lower-intrinsics,canonicalize,partition,plan")

    assert {refusal.rule for refusal in Policy().refusals(plan)} == {"aggregated"}
    assert rules(Policy(), count) == set()


def test_every_client_stage_of_a_plan_holds_allowed_operations_only():
    @fc.tf_computation(ROWS)
    def clock(rows):
        total = rows.reduce(0, lambda total, batch: total + tf.reduce_sum(batch["y"]))
        return tf.timestamp() + tf.cast(total, tf.float64)

    @fc.tf_computation(np.int32, np.float64)
    def minus(value, centre):
        return tf.cast(value, tf.float64) - centre

    @fc.federated_computation(DATA, DATA)
    def two_stages(first, second):
        one, other = fc.federated_map(clock, first), fc.federated_map(total_label, second)
        centre = fc.federated_sum(one)
        away = fc.federated_map(minus, (other, fc.federated_broadcast(centre)))
        return fc.federated_sum(away)

    with pytest.raises(FedcoreError, match="Timestamp"):
        read_plan(bundle.to_bytes(plan_of(two_stages)))


def test_server_stages_may_hold_operations_that_sites_refuse():
    @fc.tf_computation(np.int32)
    def stamp(total):
        return total, tf.timestamp()

    @fc.federated_computation(DATA)
    def stamped(data):
        return fc.federated_map(stamp, fc.federated_sum(fc.federated_map(total_label, data)))

    plan = plan_of(stamped)

    assert read_plan(bundle.to_bytes(plan)) == plan


def test_a_policy_file_names_its_mistakes(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text("agregated = true\n")
    with pytest.raises(FedcoreError, match="there is no rule 'agregated'"):
        PolicyFile(file)
    file.write_text("clients = -1\n")
    with pytest.raises(FedcoreError, match="clients is a whole number, 0 or more, not -1"):
        PolicyFile(file)
    file.write_text("reply_s = 0.5\n")
    with pytest.raises(FedcoreError, match=r"reply_s is a number of seconds, 5 or more, not 0\.5"):
        PolicyFile(file)


def test_a_policy_file_that_is_being_written_refuses_all(tmp_path):
    """An editor empties the file first. Without rules, it would be the default policy."""
    file = tmp_path / "policy.toml"
    file.write_text("clients = 9\n")
    policy = PolicyFile(file)
    file.write_text("")
    with pytest.raises(Refusal, match="cannot be read"):
        policy.read()
    with pytest.raises(FedcoreError, match="has no rules"):
        PolicyFile(file)
    file.write_text("clients = 9\n")
    assert policy.read().policy.clients == 9


@fc.tf_computation(ROWS)
def noisy_number_and_counts(rows):
    total = rows.reduce(0, lambda total, batch: total + tf.reduce_sum(batch["y"]))
    return {"trainable": (total + tf.cast(tf.random.normal([]), tf.int32), tf.stack([total, 1]))}


@fc.federated_computation(DATA)
def masked_number_and_counts(data):
    return fc.federated_secure_sum_bitwidth(fc.federated_map(noisy_number_and_counts, data), 20)


def test_names_of_elements_that_a_server_gives_make_no_other_value_of_a_name():
    """They are not in a plan's digest. A value of several tensors has their names, with "and" between them."""
    plan, policy = plan_of(masked_number_and_counts), Policy(noise=frozenset({"update"}))
    renamed = attrs.evolve(plan, element_names={"trainable": ("a and update", "b")})

    assert [refusal.rule for refusal in policy.refusals(plan)] == ["noise"]
    assert [refusal.rule for refusal in policy.refusals(renamed)] == ["noise"]


def test_names_of_elements_do_not_decide_which_value_a_rule_is_about():
    plan = plan_of(masked_number_and_counts)
    named = attrs.evolve(plan, element_names={"trainable": ("kernel", "bias")})
    label = next(o.label for o in ClientOutputs(plan).of(*fold_of_masks(plan), masked=True) if "1" in o.label)
    for names in ({label}, {"kernel"}, {"bias"}):
        policy = Policy(noise=frozenset(names))
        assert [r.rule for r in policy.refusals(named)] == [r.rule for r in policy.refusals(plan)]


def fold_of_masks(plan):
    return [op.name for op in plan.main.operations if op.kind == "fold"]


# What a graph reads.


def waiting_for_income(graph_def):
    """`total + age` waits for a NoOp, which waits for what fails by income."""
    node = graph_def.node.add(name="seen", op="Reshape", input=["arg1", "arg2"])
    node.attr["T"].type = node.attr["Tshape"].type = tf.int32.as_datatype_enum
    graph_def.node.add(name="unseen", op="NoOp", input=["^seen"])
    next(n for n in graph_def.node if n.op == "AddV2").input.append("^unseen")


def returning_with_income(graph_def):
    """The result is an operation of its own."""
    (result,) = (n for n in graph_def.node if n.name == "ret0")
    result.op = "AddV2"
    result.input.append("arg2")


def result_waiting_for_income(graph_def):
    node = graph_def.node.add(name="seen", op="Reshape", input=["arg1", "arg2"])
    node.attr["T"].type = node.attr["Tshape"].type = tf.int32.as_datatype_enum
    next(n for n in graph_def.node if n.name == "ret0").input.append("^seen")


def taking_income_for_nothing(graph_def):
    """A call computes an operand that its function does not read."""
    node = graph_def.node.add(name="seen", op="Reshape", input=["arg1", "arg2"])
    node.attr["T"].type = node.attr["Tshape"].type = tf.int32.as_datatype_enum
    function = graph_def.library.function.add()
    function.signature.name = "first"
    for name in ("a", "b"):
        function.signature.input_arg.add(name=name, type=tf.int32.as_datatype_enum)
    function.signature.output_arg.add(name="c", type=tf.int32.as_datatype_enum)
    function.ret["c"] = "a"
    call = graph_def.node.add(name="called", op="PartitionedCall", input=["arg1", "seen"])
    call.attr["f"].func.name = "first"
    call.attr["Tin"].list.type.extend([tf.int32.as_datatype_enum] * 2)
    call.attr["Tout"].list.type.append(tf.int32.as_datatype_enum)
    add = next(n for n in graph_def.node if n.op == "AddV2")
    add.input[1] = "called"


CHANGES = [waiting_for_income, returning_with_income, result_waiting_for_income, taking_income_for_nothing]


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_a_graph_reads_what_an_operation_of_it_waits_for(change):
    """A failure tells of it, and an operation without results hid what was before it."""

    @fc.tf_computation("int32", "int32", "int32")
    def add(total, age, income):
        return total + age

    def in_order(graph_def):
        if change is not None:
            change(graph_def)
        new = [n for n in graph_def.node if n.name in ("seen", "unseen", "called")]
        old = [n for n in graph_def.node if n not in new]
        arguments = [n for n in old if n.op == "Placeholder"]
        nodes = [*arguments, *new, *(n for n in old if n not in arguments)]  # what others read comes first
        del graph_def.node[:]
        graph_def.node.extend(nodes)

    module = with_graph(add.to_module("traced"), in_order)
    (graph,) = module.graphs
    reads = Liveness(module, counts_failures=True).argument_reads(graph.name)
    assert reads[-3:] == [True, True, change is not None]
