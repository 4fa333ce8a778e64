"""`federated_random_seed`: a number of the call's seed and of the place in the program, and of nothing else."""

import numpy as np
import pytest

import fedcore as fc
from fedcore.compiler import DEFAULT_PIPELINE, LOWERING, run_passes
from fedcore.errors import FedcoreError, TracingError, VerifyError
from fedcore.ir import parse_module, registry, verify
from fedcore.runtime import Report

RUNTIMES = {"local": fc.runtime.local(workers_per_device=2), "reference": fc.runtime.reference()}


@pytest.fixture(params=list(RUNTIMES))
def runtime(request):
    with fc.use(RUNTIMES[request.param]) as used:
        yield used


@fc.federated_computation
def of_server():
    return fc.federated_random_seed(fc.SERVER)


@fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
def everywhere(xs):
    """Seeds at the server, at the clients, sent to them, and in a computation that is called twice."""
    mine = fc.federated_random_seed(fc.CLIENTS)
    sent = fc.federated_broadcast(fc.federated_random_seed(fc.SERVER))
    of_clients = fc.federated_map(lambda a, b, x: (a, b, x), (mine, sent, xs))
    return of_server(), of_server(), fc.federated_random_seed(fc.SERVER), of_clients


def flat(result) -> list[int]:
    *at_server, of_clients = result
    return [int(s) for s in at_server] + [int(s) for client in of_clients for s in client[:2]]


def test_the_same_seed_gives_the_same_values_and_another_gives_others(runtime):
    first, again, other = (flat(everywhere.invoke([0] * 3, seed=s)) for s in (5, 5, 6))
    assert first == again
    assert set(first).isdisjoint(other)


def test_every_use_gives_another_value_and_every_client_its_own(runtime):
    result = everywhere.invoke([0] * 4, seed=1)
    *at_server, of_clients = result
    sent = {int(client[1]) for client in of_clients}
    assert len(sent) == 1
    assert len({*map(int, at_server), *sent, *(int(client[0]) for client in of_clients)}) == 3 + 1 + 4


def test_both_runtimes_give_the_same():
    results = []
    for runtime in RUNTIMES.values():
        with fc.use(runtime, seed=9):
            results.append(flat(everywhere([0] * 5)))
    assert results[0] == results[1]


@pytest.mark.parametrize("pipeline", [LOWERING, f"cse,{DEFAULT_PIPELINE},grappler"])
def test_no_pass_changes_what_is_drawn(pipeline):
    def drawn(module):
        return flat(fc.runtime.reference().run(module, [[0] * 3], Report(seed=4)))

    want = drawn(everywhere.module)
    for one, after in run_passes(everywhere.module, pipeline):
        assert drawn(verify(after)) == want, one.name


def test_it_is_an_int64_that_a_graph_can_draw_from(runtime):
    import tensorflow as tf

    @fc.tf_computation("int64")
    def noise(seed):
        return tf.random.stateless_normal([3], tf.stack([seed, 0]))

    @fc.federated_computation
    def noisy():
        return fc.federated_map(noise, fc.federated_random_seed(fc.SERVER))

    assert of_server().dtype == np.int64
    np.testing.assert_array_equal(noisy.invoke(seed=2), noisy.invoke(seed=2))
    assert not np.array_equal(noisy.invoke(seed=2), noisy.invoke(seed=3))


def test_a_lowering_that_draws_draws_another_number_each_time(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    @fc.intrinsic("(value: {float32}@CLIENTS -> float32@SERVER)", draws=True)
    def sum_and_equal_draws(value, *, seed):
        return np.float32(sum(value))

    @sum_and_equal_draws.lowering
    def _(value):
        drawn = fc.federated_zip((fc.federated_random_seed(fc.SERVER), fc.federated_random_seed(fc.SERVER)))
        equal = fc.federated_apply(lambda a, b: fc.cast(fc.equal(a, b), "float32"), drawn)
        return fc.federated_apply(lambda s, n: s + n, fc.federated_zip((fc.federated_sum(value), equal)))

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def summed(xs):
        return sum_and_equal_draws(xs)

    with fc.use(RUNTIMES["local"]):
        assert summed([1.0, 2.0]) == 3.0


def test_text_without_a_salt_is_refused():
    text = "fedcore 1 traced\n\nfn @f() -> int64@SERVER {\n  %0 = federated_random_seed() : int64@SERVER"
    with pytest.raises(VerifyError, match=r'draws random numbers, so it has a salt .*\{salt="0"\}'):
        verify(parse_module(f'{text} {{placement="SERVER"}}\n  return %0\n}}\n'))


def test_it_is_called_in_a_computation():
    with pytest.raises(TracingError, match="federated_random_seed stands outside a computation"):
        fc.federated_random_seed(fc.SERVER)


def test_a_placement_is_wanted():
    with pytest.raises(FedcoreError, match=r"federated_random_seed: `placement` is a placement \(fc\.SERVER"):
        fc.federated_computation(lambda: fc.federated_random_seed("server"))
