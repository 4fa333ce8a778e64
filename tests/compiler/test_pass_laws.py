"""The laws of every pass, on generated programs."""

import numpy as np
import pytest
from generators import arguments, federated_modules
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcore as fc
from fedcore.compiler import DEFAULT_PIPELINE, LOWERING, all_passes, compile_module, get_pass
from fedcore.ir import Module, verify
from fedcore.runtime import Report
from fedcore.testing.passes import check_pass, client_work
from fedcore.types import fits

# Each pass, and a pipeline whose result it is given.
PREPARED = [
    ("inline", ""),
    ("inline", LOWERING),
    ("lower-intrinsics", ""),
    ("lower-intrinsics", "inline"),
    ("canonicalize", ""),
    ("canonicalize", "inline,lower-intrinsics"),
    ("fold-constants", ""),
    ("fold-constants", "inline,lower-intrinsics"),
    ("cse", ""),
    ("cse", "inline,lower-intrinsics,canonicalize"),
    ("cse", f"{LOWERING},partition"),
    ("dce", ""),
    ("dce", LOWERING),
    ("dce", f"{LOWERING},partition,dead-leaf-elimination,fuse"),
    ("partition", LOWERING),
    ("dead-leaf-elimination", f"{LOWERING},partition"),
    ("dead-leaf-elimination", f"{LOWERING},partition,fuse"),
    ("fuse", f"{LOWERING},partition"),
    ("fuse", f"{LOWERING},partition,dead-leaf-elimination"),
    ("grappler", f"{LOWERING},partition,dead-leaf-elimination,fuse"),
    ("hoist-relu-gradients", f"{LOWERING},partition,dead-leaf-elimination,fuse"),
    ("plan", f"{LOWERING},partition"),
    ("plan", f"{LOWERING},partition,dead-leaf-elimination,fuse"),
    ("strip-locations", ""),
    ("strip-locations", LOWERING),
    ("strip-locations", DEFAULT_PIPELINE),
]
EXAMPLES = 4  # of each law, of each pass after each pipeline; check_pass has thousands under soak
every_pass = pytest.mark.parametrize(("name", "before"), PREPARED)


def prepared(module: Module, pipeline: str) -> Module:
    return compile_module(module, pipeline) if pipeline else module


def test_every_registered_pass_has_its_laws_tested():
    assert {name for name, _ in PREPARED} == {p.name for p in all_passes()}


def reference_result(module: Module, given_arguments: list):
    return fc.runtime.reference().run(module, given_arguments, Report(seed=0))


def assert_close(have, want):
    """Integers equal; floats within a few roundings; NaN is NaN."""
    if isinstance(want, dict):
        assert list(have) == list(want)
        have, want = list(have.values()), list(want.values())
    if isinstance(want, tuple | list):
        assert len(have) == len(want)
        for h, w in zip(have, want, strict=True):
            assert_close(h, w)
        return
    have, want = np.asarray(have), np.asarray(want)
    assert have.dtype == want.dtype
    if want.dtype.kind == "f":
        tolerance = 32 * np.finfo(want.dtype).eps
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(have, want)


def keeps_meaning(name, before, data):
    traced = data.draw(federated_modules())
    module = prepared(traced, before)
    values = data.draw(arguments(traced))
    assert_close(reference_result(get_pass(name).run(module), values), reference_result(module, values))


@every_pass
@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_pass_keeps_the_meaning(name, before, data):
    keeps_meaning(name, before, data)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted({name for name, _ in PREPARED}))
def test_a_pass_keeps_every_law_on_thousands_of_programs(name):
    pipelines = [before for n, before in PREPARED if n == name]
    check_pass(name, before=pipelines, programs=-(-2000 // len(pipelines)))


@every_pass
@settings(max_examples=EXAMPLES)
@given(module=federated_modules())
def test_a_pass_leaves_a_valid_module_of_the_same_type(name, before, module):
    module = prepared(module, before)
    after = verify(get_pass(name).run(module))
    assert fits(module.main.type, after.main.type)
    assert fits(after.main.type, module.main.type)


@pytest.mark.parametrize(("name", "before"), [p for p in PREPARED if get_pass(p[0]).idempotent])
@settings(max_examples=EXAMPLES)
@given(module=federated_modules())
def test_a_pass_run_twice_changes_nothing_more(name, before, module):
    once = get_pass(name).run(prepared(module, before))
    assert get_pass(name).run(once) == once


@pytest.mark.parametrize(
    ("name", "before"), [p for p in PREPARED if p[0] not in ("lower-intrinsics", "fuse", "grappler")]
)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_pass_adds_no_work_of_any_kind_to_a_client(name, before, data):
    traced = data.draw(federated_modules())
    module = prepared(traced, before)
    three = data.draw(arguments(traced, clients=3))
    assert client_work(get_pass(name).run(module), three) <= client_work(module, three)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_fuse_never_gives_a_client_more_calls(data):
    traced = data.draw(federated_modules())
    module = prepared(traced, f"{LOWERING},partition")
    three = data.draw(arguments(traced, clients=3))
    assert client_work(get_pass("fuse").run(module), three).total() <= client_work(module, three).total()


def both_runtimes_agree(data):
    module = data.draw(federated_modules())
    values = data.draw(arguments(module))
    with fc.use(SHARED["local"]):
        have = fc.invoke(module, values, seed=0)  # that of the reference
    assert_close(have, reference_result(module, values))


SHARED: dict[str, object] = {}


@pytest.fixture(scope="module", autouse=True)
def local_runtime():
    SHARED["local"] = fc.runtime.local(workers_per_device=2)
    yield
    SHARED.pop("local").close()


@settings(max_examples=15)
@given(st.data())
def test_a_compiled_program_gives_what_the_reference_gives(data):
    both_runtimes_agree(data)


@pytest.mark.soak
@settings(settings.get_profile("soak"), max_examples=2000)
@given(st.data())
def test_many_compiled_programs_give_what_the_reference_gives(data):
    both_runtimes_agree(data)
