"""Secure sums by masks in the local runtime."""

import traceback

import attrs
import numpy as np
import pytest
import tensorflow as tf
from local_runtimes import local_runtime

import fedcore as fc
from fedcore.errors import ClientError, FedcoreError, SecureSumError, TypeMismatch
from fedcore.runtime.clients.merge_tree import MergeTree
from fedcore.testing.faults import lossy

READING = fc.to_type({"small": "uint8", "row": ("int32", (3,)), "wide": "int64"})
DROP = {"on_client_failure": fc.runtime.drop()}


@fc.federated_computation(fc.FederatedType(READING, fc.CLIENTS))
def sums(readings):
    return (
        fc.federated_secure_sum(readings, 200),
        fc.federated_secure_sum_bitwidth(readings.wide, 64),
        fc.federated_secure_modular_sum(readings.row, 1000),
        fc.federated_sum(readings.row),
        fc.federated_count(readings),
    )


def readings(clients: int) -> list:
    rng = np.random.default_rng(clients)
    return [
        {
            "small": np.uint8(rng.integers(256)),
            "row": rng.integers(-500, 500, 3).astype(np.int32),
            "wide": np.int64(rng.integers(-(2**62), 2**63 - 1)),
        }
        for _ in range(clients)
    ]


def by_meaning(values):
    """The sums by the reference runtime, which interprets the specification."""
    with fc.use(fc.runtime.reference()):
        return sums(values)


def same_bits(one, other) -> bool:
    pairs = list(zip(flat(one), flat(other), strict=True))
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def flat(value) -> list[np.ndarray]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in flat(part)]
    return [np.asarray(value)]


@pytest.fixture(scope="module")
def masked():
    runtime = fc.runtime.local(secure_aggregation="masked")
    yield runtime
    runtime.close()


@pytest.mark.parametrize("clients", [2, 7])
def test_masked_sums_equal_the_plain_sums_to_the_bit(masked, clients):
    values = readings(clients)
    with fc.use(masked):
        assert same_bits(sums(values), by_meaning(values))


@pytest.mark.soak
@pytest.mark.parametrize("clients", [2, 3, 20, 50, 200])
@pytest.mark.parametrize("fraction", [0, 0.1, 0.3])
@pytest.mark.parametrize("phase", ["keys", "shares", "masked", "survivors", "unmasking"])
def test_masked_sums_of_many_clients_with_dropouts(clients, fraction, phase):
    values = readings(clients)
    dropped = np.random.default_rng(clients).choice(clients, int(fraction * clients), replace=False).tolist()
    left = values if phase in ("survivors", "unmasking") else [v for i, v in enumerate(values) if i not in dropped]
    with local_runtime(secure_aggregation=lossy(drop={phase: dropped}), **DROP):
        assert same_bits(sums(values), by_meaning(left))


def test_no_clients_give_zeros(masked):
    with fc.use(masked):
        assert same_bits(sums([]), by_meaning([]))


def test_a_sum_of_one_client_is_refused(masked):
    with fc.use(masked), pytest.raises(SecureSumError, match="a secure sum of one client is its value"):
        sums(readings(1))


def test_a_generator_is_refused_since_its_number_of_clients_is_not_known(masked):
    with fc.use(masked), pytest.raises(FedcoreError, match="need the number of clients beforehand: give a list"):
        sums(r for r in readings(3))


@pytest.mark.parametrize("phase", ["keys", "shares", "masked"])
def test_a_client_that_drops_out_contributes_nothing(phase):
    values = readings(6)
    with local_runtime(secure_aggregation=lossy(drop={phase: [1]}), **DROP):
        result, report = sums(values), fc.context.last_report()
    assert same_bits(result, by_meaning([v for i, v in enumerate(values) if i != 1]))
    assert list(report.dropped) == [1]
    assert f"dropped out of the secure sum in phase {phase}: its message was lost" in report.dropped[1]
    assert (report.secure_sums[0].clients, report.secure_sums[0].contributed) == (6, 5)


def test_a_client_that_drops_out_while_masks_are_removed_has_contributed():
    values = readings(6)
    with local_runtime(secure_aggregation=lossy(drop={"unmasking": [1]})):
        assert same_bits(sums(values), by_meaning(values))


def test_a_client_whose_work_fails_is_a_dropout_of_the_protocol():
    values = readings(6)
    faulty = 4
    with local_runtime(secure_aggregation="masked", **DROP):
        result = sums([v if i != faulty else {**v, "row": np.zeros(4, np.int32)} for i, v in enumerate(values)])
        assert list(fc.context.last_report().dropped) == [faulty]
    assert same_bits(result, by_meaning([v for i, v in enumerate(values) if i != faulty]))


SECRET = 987654321


@fc.tf_computation(fc.to_type("int32"))
def tenfold(index):
    return 10 * tf.gather(tf.constant([1, 2, 3]), index)


@fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
def gathered(indices):
    return fc.federated_secure_sum(fc.federated_map(tenfold, indices), 100)


class Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise ValueError(f"the value {SECRET} is bad")


FAILING = [
    ("InvalidArgumentError", SECRET),
    *(("TypeMismatch", value) for value in (str(SECRET), [SECRET, SECRET], SECRET + 0.5, 10 * SECRET, Unreadable())),
]
OF_KINDS = pytest.mark.parametrize(("kind", "value"), FAILING, ids=["graph", "text", "shape", "float", "large", "code"])


@OF_KINDS
def test_a_masked_run_tells_only_the_kind_of_a_failing_clients_error(kind, value, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    with local_runtime(secure_aggregation="masked", **DROP):
        assert gathered([0, 1, value, 2]) == 60
    told = fc.context.last_report().dropped[2]
    assert told == f"{kind} (its message may quote values, which masks hide in this run)"
    assert not [path for path in tmp_path.glob("call-*.json") if "98765432" in path.read_text()]


@OF_KINDS
def test_a_masked_run_that_raises_tells_only_the_kind_of_a_clients_error(kind, value, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    with local_runtime(secure_aggregation="masked"), pytest.raises(ClientError) as raised:
        gathered([0, 1, value, 2])
    shown = "".join(traceback.format_exception(raised.value))
    assert f"client 2 failed: {kind} (its message may quote values, which masks hide in this run)" in shown
    assert "98765432" not in shown
    (recording,) = tmp_path.glob("call-*.json")
    assert "98765432" not in recording.read_text()


def test_without_masks_the_reason_of_a_failing_client_is_told():
    with local_runtime(**DROP):
        gathered([0, 1, SECRET, 2])
    assert f"= {SECRET} is not in [0, 3)" in fc.context.last_report().dropped[2]


def test_without_a_policy_a_dropout_raises():
    problem = "client 2 failed: dropped out of the secure sum in phase masked: its message was lost"
    with local_runtime(secure_aggregation=lossy(drop={"masked": [2]})), pytest.raises(ClientError, match=problem):
        sums(readings(5))


def test_below_the_threshold_the_call_raises_and_the_state_is_kept():
    @fc.federated_computation
    def initialize():
        return fc.federated_value(10, fc.SERVER)

    @fc.federated_computation(initialize.type_signature.result, fc.FederatedType("int32", fc.CLIENTS))
    def next_round(state, value):
        return fc.federated_map(lambda s, x: s + x, (state, fc.federated_secure_sum(value, 100)))

    process = fc.templates.IterativeProcess(initialize, next_round)
    state = process.initialize()
    drop = {"on_client_failure": fc.runtime.drop(min_fraction=0)}
    problem = "arrived in phase unmasking, but 4 are needed"
    lost = lossy(drop={"unmasking": [0, 1, 2]})
    with local_runtime(secure_aggregation=lost, **drop), pytest.raises(SecureSumError, match=problem):
        process.next(state, [1, 2, 3, 4, 5])
    with local_runtime(secure_aggregation="masked"):
        assert process.next(state, [1, 2, 3, 4, 5]) == 25


def test_the_report_has_the_bits_of_each_phase(masked):
    with fc.use(masked):
        sums(readings(5))
    (traffic,) = fc.context.last_report().secure_sums
    envelope, clients = 25 + 64, 5
    assert traffic.plain_bits == clients * (5 * 8 + 63 + 3 * 10)  # 0 to 200, five times; int64; modulo 1000
    assert traffic.sent_bits["keys"] == clients * 8 * (envelope + 2 * 32)
    assert traffic.sent_bits["shares"] == clients * 8 * (envelope + 32 + 4 + 4 * (4 + 74 + 16))
    widths = 1 + 3 * 2 + 2 + 8 + 3 * 2  # uint8; 0 to 5 * 200 in int32[3] and int64; int64; modulo 1000 in int32[3]
    assert traffic.sent_bits["masked"] == clients * 8 * (envelope + widths)
    assert traffic.sent_bits["survivors"] == clients * 8 * (envelope + 32)
    assert traffic.sent_bits["unmasking"] == clients * 8 * (envelope + 4 + 5 * 38)


def test_the_merge_tree_gets_zeros_in_place_of_secure_leaves(masked, monkeypatch):
    seen = []
    add = MergeTree.add
    monkeypatch.setattr(
        MergeTree, "add", lambda self, i, partial, height=0: (seen.append(partial), add(self, i, partial, height))[1]
    )
    with fc.use(masked):
        sums(readings(3))
    small, row, wide = seen[0][0]
    assert [np.any(leaf) for leaf in (small, row, wide)] == [False, False, False]
    assert np.any(np.asarray(seen[0][3]))  # the plain sum


def test_the_plan_marks_what_crosses_in_secure_sums():
    (merge,) = [op for op in sums.to_module("planned").main.operations if op.kind == "merge"]
    rows = ("0..200", "0..200", "0..200")
    assert merge.attributes["secure"] == (*rows, "0..9223372036854775807", "mod 1000", "", "")


def test_stages_with_secure_sums_run_client_by_client_where_they_are_masked(masked):
    text = sums.to_text("planned")
    assert "strategy=vectorised" in text
    with fc.use(masked):
        assert 'why="secure sums mask the partial of each client"' in sums.to_text("planned")


def test_a_plan_for_plain_sums_is_refused(masked):
    (stage,) = [f for f in sums.to_module("planned").functions if f.attributes.get("strategy")]
    with fc.use(masked):
        module = sums.to_module("planned")
        stages = [attrs.evolve(f, attributes=stage.attributes) if f.name == stage.name else f for f in module.functions]
        plain = attrs.evolve(module, functions=tuple(stages))
        with pytest.raises(FedcoreError, match="is for plain sums: secure sums need the option secure=masked"):
            masked.run(plain, [readings(3)], fc.runtime.Report())


def test_integers_outside_of_the_range_of_the_plan_are_refused(masked):
    """A plan that was written by hand: no lowering clips its values."""

    @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
    def unclipped(x):
        plus = lambda a, b: a + b  # noqa: E731
        return fc.federated_secure_aggregate(x, 0, plus, plus, lambda n: n, ("0..9",))

    with fc.use(masked):
        assert unclipped([4, 5]) == 9
        with pytest.raises(SecureSumError, match=r"integers are not in the range 0\.\.9 of the plan"):
            unclipped([4, 50])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mask", "secure_aggregation is None, 'masked' or fc.runtime.masked"),
        (True, "secure_aggregation is None, 'masked' or fc.runtime.masked"),
    ],
)
def test_other_settings_are_refused(given, message):
    with pytest.raises(TypeMismatch, match=message):
        fc.runtime.local(secure_aggregation=given)


def test_a_threshold_of_half_of_the_holders_is_refused():
    with pytest.raises(FedcoreError, match="threshold is from 6 to 11, for 10 neighbours"):
        fc.runtime.masked(neighbours=10, threshold=5)


def test_a_clients_executor_decides_secure_sums_itself():
    executor = fc.runtime.SlicedClientsExecutor([fc.runtime.DeviceSliceExecutor()])
    with pytest.raises(FedcoreError, match="secure_aggregation: clients_executor is given"):
        fc.runtime.local(clients_executor=executor, secure_aggregation="masked")
    executor.close()


def test_the_protocol_of_a_clients_executor_masks_sums():
    settings = fc.runtime.masked()
    executor = fc.runtime.SlicedClientsExecutor([fc.runtime.DeviceSliceExecutor()], secure=settings)
    with local_runtime(clients_executor=executor):
        have = sums(readings(3))
        assert fc.context.last_report().secure_sums
    assert same_bits(have, by_meaning(readings(3)))
