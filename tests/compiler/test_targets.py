import attrs
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.compiler import compile_module, stored_plans
from fedcore.compiler.host_target import default_target, host_target
from fedcore.graphs.batched.cost_model import LARGE_STATE_BYTES, why_loop
from fedcore.ir import parse_module, print_module, verify
from fedcore.ir.target import EXAMPLE, Target, parse_target
from fedcore.processor import has_bfloat16_products

THIS = "avx512/large-l2/fast-memory/no-gpu"
OTHER = "avx2/small-l2/slow-memory/no-gpu"

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
ROWS = fc.FederatedType(fc.SequenceType(fc.TensorType("float32", (784,))), fc.CLIENTS)


@fc.tf_computation(("float32", [784, 200]), ("float32", [784]))
def step(weights, row):
    return weights + row[:, None]


@fc.federated_computation(ROWS, fc.FederatedType(fc.TensorType("float32", (784, 200)), fc.SERVER))
def trained(rows, weights):
    """Each client trains weights of 0.6 MiB, as the MLP of the benchmarks does."""
    start = fc.federated_broadcast(weights)
    return fc.federated_mean(fc.federated_map(lambda s, w: fc.sequence_reduce(s, w, step), (rows, start)))


@fc.federated_computation(FLOATS)
def mean(xs):
    return fc.federated_mean(xs)


def planned(computation, target: str, **options):
    text = ",".join([f"target={target}", *(f"{k}={v}" for k, v in options.items())])
    return verify(
        compile_module(computation.to_module("traced"), f"lowering,partition,dead-leaf-elimination,fuse,plan{{{text}}}")
    )


def strategy(module) -> dict:
    (stage,) = [f for f in module.functions if "strategy" in f.attributes]
    return dict(stage.attributes)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes the files of a machine's system, and returns its target."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)

    def target(flags: str, l2: str | None, nvidia: bool = False) -> str:
        root = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/cpuinfo").write_text(
            f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n"
        )
        for index, (level, size) in enumerate([("1", "32K"), ("2", l2), ("3", "32M")]):
            folder = root / f"sys/devices/system/cpu/cpu0/cache/index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            if size is not None:
                (folder / "size").write_text(f"{size}\n")
        if nvidia:
            (root / "proc/driver/nvidia/version").write_text("")
        return str(host_target(str(root)))

    return target


def test_the_target_comes_from_the_instruction_set_the_cache_and_the_gpu(machine):
    assert machine("fpu avx avx2 avx512f", "2048K") == THIS
    assert machine("fpu avx avx2", "512K") == OTHER
    assert machine("fpu avx avx2", "1024K") == "avx2/large-l2/fast-memory/no-gpu"
    assert machine("fpu avx", "256K", nvidia=True) == "sse/small-l2/slow-memory/nvidia-gpu"


@pytest.mark.parametrize(
    ("most", "isa"),
    [
        ("AVX512_CORE", "avx512"),
        ("avx2", "avx2"),
        ("AVX2_VNNI", "avx2"),
        ("AVX", "sse"),
        ("SSE41", "sse"),
        ("ALL", "avx512"),
    ],
)
def test_instructions_that_onednn_must_leave_alone_do_not_count(machine, monkeypatch, most, isa):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)
    assert machine("fpu avx avx2 avx512f", "2048K") == f"{isa}/large-l2/fast-memory/no-gpu"


@pytest.mark.parametrize(
    ("flags", "most", "has"),
    [
        ("avx avx2 avx512f avx512_bf16", "", True),
        ("avx avx2 avx512f avx512_bf16 amx_bf16", "ALL", True),
        ("avx avx2 avx512f avx512_bf16", "avx512_core_bf16", True),
        ("avx avx2 avx512f avx512_bf16", "AVX512_CORE_VNNI", False),
        ("avx avx2 avx512f avx512_bf16", "AVX2", False),
        ("avx avx2 avx512f", "", False),
        ("avx avx2", "", False),
    ],
)
def test_products_of_bfloat16_need_instructions_that_onednn_may_use(tmp_path, monkeypatch, flags, most, has):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    assert has_bfloat16_products(str(tmp_path)) == has
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert not has_bfloat16_products(str(tmp_path))
    assert not has_bfloat16_products(str(tmp_path / "nothing"))


def test_without_onednn_plans_are_for_avx2_and_name_none_of_its_kernels(machine, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert machine("fpu avx avx2", "512K") == f"{OTHER}/no-onednn"
    assert machine("fpu avx avx2 avx512f", "2048K") == "avx2/large-l2/fast-memory/no-gpu/no-onednn"
    assert str(parse_target(f"{OTHER}/no-onednn")) == f"{OTHER}/no-onednn"


def test_a_cache_whose_size_the_system_does_not_say_counts_as_large(machine, tmp_path):
    assert machine("fpu avx2", None) == "avx2/large-l2/fast-memory/no-gpu"
    assert host_target(str(tmp_path / "nothing")).l2 == "large"


def test_the_name_of_a_target_reads_back():
    assert str(parse_target(OTHER)) == EXAMPLE == OTHER
    assert parse_target(Target("avx2", "small", "slow")) == parse_target(OTHER)


@pytest.mark.parametrize("text", ["avx1024/large-l2/fast-memory/no-gpu", "avx2", "", THIS + "/", THIS.upper(), 3])
def test_an_unknown_target_is_refused_with_the_form(text):
    says = "a target is avx512|avx2|sse|neon/large|small-l2/fast|slow-memory/no|nvidia-gpu[/no-onednn], such as avx2"
    with pytest.raises(fc.errors.FedcoreError) as error:
        parse_target(text)
    assert says in str(error.value)
    with pytest.raises(fc.errors.FedcoreError) as error:
        fc.runtime.local(target=text)
    assert says in str(error.value)


def test_a_variable_names_the_default_target(monkeypatch):
    monkeypatch.setenv("FEDCORE_TARGET", OTHER)
    assert str(default_target()) == OTHER
    monkeypatch.setenv("FEDCORE_TARGET", "mine")
    with pytest.raises(fc.errors.FedcoreError, match="FEDCORE_TARGET: a target is "):
        default_target()
    monkeypatch.setenv("FEDCORE_TARGET", "")
    assert default_target() == host_target()


def test_a_plan_holds_its_target_reads_back_and_changes_its_digest():
    one, other = planned(mean, THIS), planned(mean, OTHER)
    assert one.main.attributes["target"] == THIS
    assert f'{{target="{OTHER}"}}' in str(other)
    assert parse_module(print_module(other)).digest() == other.digest()
    assert one.digest() != other.digest()
    assert strategy(one) == strategy(other)


def test_planning_again_keeps_the_target_of_the_strategies():
    once = planned(mean, THIS)
    assert compile_module(once, f"plan{{target={OTHER}}}") is once


def test_a_plan_with_another_target_than_the_known_ones_is_not_valid():
    plan = planned(mean, THIS)
    main = attrs.evolve(plan.main, attributes={"target": "avx2" * 100_000})
    with pytest.raises(fc.errors.VerifyError, match="the attribute target is a target, avx512"):
        verify(attrs.evolve(plan, functions=(*plan.functions[:-1], main)))


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"strategy": "vectorised", "width": 4, "parallel": 4}, "parallel belongs to the strategy loop"),
        ({"strategy": "loop", "parallel": 0}, "the attribute parallel is a number of clients, 1 to 65536"),
    ],
)
def test_parallel_loops_are_verified(attributes, says):
    plan = planned(mean, THIS)
    functions = tuple(
        attrs.evolve(f, attributes=attributes) if "strategy" in f.attributes else f for f in plan.functions
    )
    with pytest.raises(fc.errors.VerifyError, match=says):
        verify(attrs.evolve(plan, functions=functions))


def test_weights_of_groups_that_exceed_a_small_cache_train_in_a_loop_four_at_once():
    assert strategy(planned(trained, OTHER)) == {
        "strategy": "loop", "block": 8, "parallel": 4, "why": "the states of 8 clients exceed a core's cache"
    }  # fmt: skip


def test_weights_of_groups_train_side_by_side_with_a_large_cache():
    assert strategy(planned(trained, THIS)) == {"strategy": "vectorised", "width": 8, "block": 8, "call": 64}


LARGE = fc.TensorType("float32", (1500, 1500))


@fc.tf_computation(LARGE, fc.TensorType("float32", (None, 1500)))
def scale(w, batch):
    return w * tf.reduce_mean(batch) / (1 + tf.abs(w))


@fc.federated_computation(
    fc.FederatedType(fc.SequenceType(fc.TensorType("float32", (None, 1500))), fc.CLIENTS),
    fc.FederatedType(LARGE, fc.SERVER),
)
def trained_large(rows, weights):
    """Each client trains weights of 8.6 MiB, by steps that keep no form of low rank."""
    start = fc.federated_broadcast(weights)
    return fc.federated_mean(fc.federated_map(lambda s, w: fc.sequence_reduce(s, w, scale), (rows, start)))


@pytest.mark.parametrize("target", [THIS, OTHER])
def test_a_client_with_a_large_state_runs_alone_on_every_processor(target):
    assert strategy(planned(trained_large, target)) == {
        "strategy": "loop", "block": 8, "parallel": 1, "why": "a client's state has 8 MiB"
    }  # fmt: skip
    assert strategy(planned(trained_large, target, vectorize=4))["strategy"] == "vectorised"


def test_a_width_that_is_asked_for_holds_on_every_target():
    assert strategy(planned(trained, OTHER, vectorize=4))["strategy"] == "vectorised"


def test_a_gpu_computes_groups():
    assert strategy(planned(trained, "avx2/small-l2/slow-memory/nvidia-gpu"))["strategy"] == "vectorised"


def test_only_large_dense_states_loop_on_the_machine_on_which_the_widths_were_measured():
    target = parse_target(THIS)
    for exponent in range(40, 120):
        state = int(2 ** (exponent / 4))
        for kept in (state, state // 2):  # dense kernels, and those that are kept low-rank; as the batching policy
            width = min(32, max(2, 1 << (max(1, (5 << 20) // kept).bit_length() - 1)))
            expected = state >= LARGE_STATE_BYTES and kept == state
            dense = state if kept == state else 0
            assert (why_loop(target, state, dense, width, has_loops=False) is not None) == expected


def test_small_states_are_computed_in_groups_on_every_target():
    state = 31_400  # of logistic regression on 784 features
    assert why_loop(parse_target(OTHER), state, state, 32, has_loops=False) is None


def test_a_runtime_pins_the_target_of_its_plans():
    with fc.use(fc.runtime.local(target=OTHER)):
        pinned = context.plan_of(mean.to_module("traced"))
    assert pinned.main.attributes["target"] == OTHER
    assert context.plan_of(mean.to_module("traced")).main.attributes["target"] == THIS


def test_stored_plans_of_one_target_are_not_used_for_another(tmp_path, monkeypatch):
    module, store = mean.to_module("traced"), stored_plans.StoredPlans(tmp_path)
    store.put(module, compile_module(module))
    assert store.get(module).main.attributes["target"] == THIS
    monkeypatch.setenv("FEDCORE_TARGET", OTHER)
    assert store.get(module) is None
