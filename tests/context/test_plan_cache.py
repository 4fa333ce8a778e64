"""The cache of plans: which threads wait for which compilation."""

import threading

import pytest

import fedcore as fc
from fedcore import context

TIMEOUT_S = 60


def program(number: int) -> fc.Computation:
    @fc.tf_computation("float32")
    def add(x):
        return x + float(number)

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def total(xs):
        return fc.federated_sum(fc.federated_map(add, xs))

    return total


def test_a_thread_waits_for_no_compilation_of_another_module(monkeypatch):
    slow, quick = program(1), program(2)
    plans, inside, finished = context.PlanCache(), threading.Event(), threading.Event()
    compile_module = context.compile_module

    def compiled(module, pipeline):
        if module is slow.module:
            inside.set()
            assert finished.wait(TIMEOUT_S)
        return compile_module(module, pipeline)

    monkeypatch.setattr(context, "compile_module", compiled)
    thread = threading.Thread(target=plans.get, args=(slow.module,), daemon=True)
    thread.start()
    assert inside.wait(TIMEOUT_S)
    assert plans.get(quick.module).stage == "planned"
    finished.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    monkeypatch.setattr(context, "compile_module", lambda *_: pytest.fail("it was compiled again"))
    assert plans.get(slow.module).stage == "planned"


def test_threads_that_ask_for_one_module_share_one_compilation(monkeypatch):
    one, plans, together = program(3), context.PlanCache(), threading.Barrier(4)
    compile_module, compiled, found = context.compile_module, [], []
    monkeypatch.setattr(context, "compile_module", lambda *given: compiled.append(given) or compile_module(*given))

    def ask():
        together.wait(TIMEOUT_S)
        found.append(plans.get(one.module))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(compiled) == 1
    assert [plan is found[0] for plan in found] == [True] * 4


def test_modules_compiled_at_once_have_the_plans_of_modules_compiled_alone():
    programs = [program(n) for n in range(4)]
    alone = [context.PlanCache().get(p.module).digest() for p in programs]
    plans, together = context.PlanCache(), threading.Barrier(4)
    at_once: dict[int, str] = {}

    def ask(number: int) -> None:
        together.wait(TIMEOUT_S)
        at_once[number] = plans.get(programs[number].module).digest()

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert [at_once[n] for n in range(4)] == alone
