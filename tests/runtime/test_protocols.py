"""Runtimes and executors of one's own, on public names."""

import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, TypeMismatch


@fc.tf_computation("float32")
def doubled(x):
    return 2 * x


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(xs):
    return fc.federated_sum(xs)


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total_and_each(xs):
    return fc.federated_sum(xs), fc.federated_map(doubled, xs)


class OneByOne:
    """A clients executor in a few lines: a slice of one block at a time, in the calling thread."""

    def __init__(self, policy=None):
        self.device = fc.runtime.DeviceSliceExecutor("CPU:0")
        self.policy = policy
        self.closed = False

    def run(self, work, report, stop):
        stage = self.device.prepare(work, report, stop)
        faults = fc.runtime.FaultPolicy(self.policy, report)
        tree, kept, clients = fc.runtime.MergeTree(stage.merge), {}, []
        for cohort in work.cohorts:
            clients = [(value,) for value in cohort]
        for index, first in enumerate(range(0, len(clients), work.block)):
            of_block = tuple(clients[first : first + work.block])
            result = faults.survivors(stage, fc.runtime.ClientSlice(first, work.block, of_block))
            tree.add(index, result.partial)
            kept.update(result.kept)
        report.clients = max(report.clients, len(clients))
        partial = None if work.zero is None else tree.result() if clients else stage.zero()
        keeps = work.keeps or work.zero is None
        return partial, [kept[i] for i in range(len(clients))] if keeps else []

    def close(self):
        self.closed = True


def test_a_clients_executor_of_ones_own_gives_the_local_bits():
    executor = OneByOne()
    values = [1 / (i + 3) for i in range(37)]
    runtime = fc.runtime.local(clients_executor=executor)
    with fc.use(runtime):
        own = total(values), total([]), total_and_each(values)
        report = fc.context.last_report()
    assert own == (total(values), total([]), total_and_each(values))
    assert report.crossings == fc.context.last_report().crossings
    assert runtime.client_devices == []
    runtime.close()
    assert executor.closed


def test_settings_of_clients_are_the_executors():
    with pytest.raises(FedcoreError) as raised:
        fc.runtime.local(clients_executor=OneByOne(), workers_per_device=2, on_client_failure=fc.runtime.drop())
    assert str(raised.value) == (
        "workers_per_device and on_client_failure: clients_executor is given, so its own settings hold for clients"
    )


class WithoutRun:
    compiles = True

    def close(self): ...


class Derived(fc.runtime.Runtime):
    compiles = False


class WithoutClose:
    name = "nowhere"

    def run(self, work, report, stop): ...


@pytest.mark.parametrize(
    ("install", "given", "message"),
    [
        (
            fc.use,
            WithoutRun(),
            "fc.use takes a runtime, but WithoutRun lacks run() and plan_options; see fc.runtime.Runtime",
        ),
        (fc.set_runtime, Derived(), "fc.set_runtime takes a runtime, but Derived lacks run(); see fc.runtime.Runtime"),
        (
            lambda given: fc.runtime.local(clients_executor=given),
            WithoutClose(),
            "fc.runtime.local: clients_executor takes a clients executor, but WithoutClose lacks close(); see "
            "fc.runtime.ClientsExecutor",
        ),
        (
            lambda given: fc.runtime.local(clients_executor=given),
            OneByOne,
            "fc.runtime.local: clients_executor takes a clients executor, but is given the function `OneByOne`: call "
            "it, OneByOne()",
        ),
        (
            lambda given: fc.runtime.SlicedClientsExecutor([given]),
            "CPU:0",
            "fc.runtime.SlicedClientsExecutor takes slice executors, such as fc.runtime.DeviceSliceExecutor(), not "
            "'CPU:0'",
        ),
        (
            lambda given: fc.runtime.SlicedClientsExecutor([given]),
            WithoutClose(),
            "fc.runtime.SlicedClientsExecutor takes slice executors, but WithoutClose lacks prepare() and close(); "
            "see fc.runtime.SliceExecutor",
        ),
    ],
)
def test_what_is_missing_is_named(install, given, message):
    with pytest.raises(TypeMismatch) as raised:
        install(given)
    assert str(raised.value) == message


def test_no_slice_executors_are_refused():
    with pytest.raises(FedcoreError, match=r"fc\.runtime\.SlicedClientsExecutor takes one slice executor or more"):
        fc.runtime.SlicedClientsExecutor([])
    device = fc.runtime.DeviceSliceExecutor("CPU:0")
    with pytest.raises(FedcoreError, match=r"on_client_failure is None or fc\.runtime\.drop\(\), not 'raise'"):
        fc.runtime.SlicedClientsExecutor([device], on_client_failure="raise")
    with pytest.raises(FedcoreError, match="threads_each is a whole number, 1 or more, not 0"):
        fc.runtime.SlicedClientsExecutor([device], threads_each=0)


def test_a_runtime_that_derives_from_the_protocol_needs_run_and_compiles_only():
    class Mine(fc.runtime.Runtime):
        compiles = True

        def run(self, module, arguments, report):
            return module.stage, arguments

    with fc.use(Mine()):
        assert total([1.0, 2.0]) == ("planned", [[1.0, 2.0]])


# Executors that break the protocol.


class Slices(fc.runtime.SliceExecutor):
    """A slice executor whose function is `answer(stage, work, clients)`."""

    name = "here"

    def __init__(self, answer):
        self.device = fc.runtime.DeviceSliceExecutor("CPU:0")
        self.answer = answer

    def prepare(self, work, report, stop):
        stage = self.device.prepare(work, report, stop)
        return lambda clients: self.answer(stage, work, clients)


class NoFunction(Slices):
    def __init__(self):
        super().__init__(None)

    def prepare(self, work, report, stop):
        return None


class Answers:
    """A clients executor that returns what it is given."""

    def __init__(self, answer):
        self.answer = answer

    def run(self, work, report, stop):
        return self.answer

    def close(self): ...


def with_first_half_and_second(stage, work, clients):
    """Divides by hand: the second half may be empty."""
    half = clients.places // 2
    cut = [fc.runtime.ClientSlice(clients.first + i, half, clients.clients[i : i + half]) for i in (0, half)]
    return clients.joined(cut, map(stage, cut), stage.merge)


def sliced(answer):
    return fc.runtime.SlicedClientsExecutor([Slices(answer)], on_client_failure=fc.runtime.drop())


BROKEN = {
    "prepare returns no function": (
        lambda: fc.runtime.SlicedClientsExecutor([NoFunction()]),
        "NoFunction.prepare returns no function; see fc.runtime.SliceExecutor\n"
        "  wants  prepare(work, report, stop) -> Callable[[ClientSlice], SliceResult]\n"
        "  has    None",
    ),
    "a slice gives no result": (
        lambda: sliced(lambda stage, work, clients: 3.0),
        "the function of Slices.prepare returns no SliceResult; see fc.runtime.SliceExecutor\n"
        "  wants  (ClientSlice) -> SliceResult\n"
        "  has    3.0",
    ),
    "a slice gives no partial": (
        lambda: sliced(lambda stage, work, clients: fc.runtime.SliceResult(None)),
        "the function of Slices.prepare returns no partial, but @clients has a fold; see fc.runtime.SliceExecutor\n"
        "  wants  SliceResult(partial=nested tuple of tensors)\n"
        "  has    SliceResult(partial=None, kept=mappingproxy({}), sent_bits=mappingproxy({}))",
    ),
    "a slice keeps no values": (
        lambda: sliced(lambda stage, work, clients: fc.runtime.SliceResult(stage(clients).partial)),
        "the function of Slices.prepare returns other kept values than @clients has; see fc.runtime.SliceExecutor\n"
        "  wants  kept: a value for each of the clients [0, 1]\n"
        "  has    []",
    ),
    "a slice without clients is run": (
        lambda: sliced(with_first_half_and_second),
        "the function of Slices.prepare: it ran a slice of @clients without clients; clients.parts(work.block, most) "
        "leaves out such slices; see fc.runtime.SliceExecutor",
    ),
    "run returns no pair": (
        lambda: Answers(None),
        "Answers.run returns no pair of a partial and kept values; see fc.runtime.ClientsExecutor\n"
        "  wants  run(work, report, stop) -> (partial, list of kept values)\n"
        "  has    None",
    ),
    "run returns no list": (
        lambda: Answers((3.0, None)),
        "Answers.run returns no pair of a partial and kept values; see fc.runtime.ClientsExecutor\n"
        "  wants  run(work, report, stop) -> (partial, list of kept values)\n"
        "  has    (3.0, None)",
    ),
    "run returns no partial": (
        lambda: Answers((None, [])),
        "Answers.run returns no partial, but @clients has a fold; see fc.runtime.ClientsExecutor\n"
        "  wants  run(work, report, stop) -> (partial, list of kept values)\n"
        "  has    (None, [])",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_executor_that_breaks_the_protocol_is_named(case):
    executor, message = BROKEN[case]
    program = total_and_each if "keeps" in case else total
    with fc.use(fc.runtime.local(clients_executor=executor())), pytest.raises(TypeMismatch) as raised:
        program([1.0, 2.0])
    assert str(raised.value) == message


def test_a_slice_executor_is_to_be_wrapped():
    with pytest.raises(TypeMismatch) as raised:
        fc.runtime.local(clients_executor=fc.runtime.DeviceSliceExecutor())
    assert str(raised.value) == (
        "fc.runtime.local: clients_executor takes a clients executor, but DeviceSliceExecutor is a slice executor: "
        "wrap it, fc.runtime.SlicedClientsExecutor([...])"
    )
