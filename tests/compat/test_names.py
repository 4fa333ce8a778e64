"""TFF's names: each resolves, or its error says what to use instead."""

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedcore as fc
from fedcore.compat.names import GONE, PLACES, gone
from fedcore.compat.porting import qualify, resolves, status, tables, value_of
from fedcore.compat.tff_public_names import COMPILER_INTERNALS, EARLIER, NAMES
from scripts.site.insertions import insert

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"
PUBLIC = qualify(NAMES)
KNOWN = {*PUBLIC, *qualify(COMPILER_INTERNALS), *qualify(EARLIER)}


def test_every_name_resolves_or_says_what_to_use():
    assert [name for name in PUBLIC if status(name) == "open"] == []
    assert sum(status(name) == "resolve" for name in PUBLIC) >= 300


def test_every_compiler_internal_resolves_or_says_what_to_use():
    assert {status(name) for name in qualify(COMPILER_INTERNALS)} == {"resolve", "replaced"}


def test_every_name_of_an_earlier_version_resolves_or_says_what_to_use():
    assert [name for name in qualify(EARLIER) if status(name) == "open"] == []


@pytest.mark.parametrize("gone", GONE, ids=lambda gone: gone.names[0])
def test_a_name_that_is_gone_names_its_replacement_and_the_reason(gone):
    assert set(gone.names) <= KNOWN
    for name in gone.names:
        module, _, last = name.rpartition(".")
        if module in gone.names:  # a module that is gone as a whole
            continue
        with pytest.raises(AttributeError) as caught:
            getattr(value_of(module) if module else fc, last)
        public = f"fedcore.{module}".rstrip(".")
        use = f"use {gone.use} instead of TFF's name" if gone.use else "TFF's name is not planned here"
        assert str(caught.value) == f"module {public!r} has no attribute {last!r}\n  {use}: {gone.why}"


@pytest.mark.parametrize("use", sorted({gone.use for gone in GONE} - {""}))
def test_what_is_to_be_used_instead_is_there(use):
    package, _, name = use.partition(".")
    value_of(name) if package == "fc" else pkgutil.resolve_name(f"tensorflow:{name}")


def test_a_name_in_a_module_that_is_gone_has_the_reason_of_the_module():
    assert gone("learning.reconstruction.build_training_process") is gone("learning.reconstruction")


@pytest.mark.parametrize(
    ("access", "use"),
    [
        (lambda: fc.types.type_from_tensors, "fc.framework.infer_type"),
        (lambda: fc.types.is_structure_of_floats, "fc.types.leaves"),
        (lambda: fc.learning.federated_aggregate_keras_metric, "fc.learning.metrics.sum_then_finalize"),
        (lambda: fc.learning.framework.ServerState, "fc.learning.LearningAlgorithmState"),
        (lambda: fc.structure.flatten, "tf.nest.flatten"),
        (lambda: fc.profiler, "fc.runtime.Report"),
    ],
)
def test_a_name_of_an_earlier_version_says_what_to_write(access, use):
    with pytest.raises(AttributeError, match=rf"\n  use {use} instead of TFF's name: "):
        access()


@pytest.mark.parametrize("name", PLACES)
def test_a_name_that_stands_elsewhere_is_found(name):
    value_of(name)


def test_no_name_both_stands_elsewhere_and_is_gone():
    names = [name for gone in GONE for name in gone.names]
    assert len(set(names)) == len(names)
    assert not any(map(resolves, names))


def test_every_package_asks_the_table(monkeypatch):
    packages = [m for m in (*NAMES, "types") if m and resolves(m) and hasattr(value_of(m), "__path__")]
    for package in packages:
        monkeypatch.setitem(PLACES, f"{package}.moved_for_a_test", "fedcore.types:to_type")
    # Such an `__init__` lacks: def __getattr__(name): return tff_name("fedcore.<package>", name)
    assert [p for p in packages if not resolves(f"{p}.moved_for_a_test")] == []


def test_another_name_that_is_not_there_is_a_plain_error():
    with pytest.raises(AttributeError, match=r"^module 'fedcore\.learning' has no attribute 'build_fed_avg'$"):
        fc.learning.build_fed_avg  # noqa: B018


def test_the_table_is_asked_without_tensorflow():
    code = (
        "import sys, fedcore as fc\n"
        "try: fc.array_to_proto\n"
        "except AttributeError as error: assert 'not planned' in str(error)\n"
        "fc.Type, fc.infer_dtype, fc.type_at_server\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


def test_the_message_on_the_page_is_the_message():
    with pytest.raises(AttributeError) as caught:
        fc.framework.with_context  # noqa: B018
    assert str(caught.value) in PAGE.read_text(encoding="utf-8")


def test_the_tables_have_every_name_that_is_gone():
    printed = set(re.findall(r"`([\w.]+)`", tables()))
    assert {name for gone in GONE for name in gone.names} <= printed
    assert insert(PAGE.read_text(encoding="utf-8"), PAGE).endswith(tables())
