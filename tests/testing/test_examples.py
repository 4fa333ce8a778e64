"""The examples run as a reader would run them."""

from pathlib import Path

import warm_processes

ROOT = Path(__file__).parents[2]


def run(name: str) -> str:
    return warm_processes.python({"file": str(ROOT / "examples" / name)})


def test_a_new_intrinsic_is_declared_checked_and_run_in_one_file():
    out = run("new_intrinsic.py")
    assert "federated_median keeps the laws of an intrinsic, in 10 programs" in out
    assert "%0 = federated_median(%readings) : float32@SERVER" in out
    assert "its plan, for 14 steps, runs 14 server stages and 14 client stages" in out
    assert "the median of [3.5, -20.0, 7.25, 100.0, 4.0] is 4.0" in out
    assert "signature  wants  {float32}@CLIENTS\n  argument   has    {str}@CLIENTS" in out


def test_clients_that_fail_are_left_out_of_a_mean():
    without = "without [16, 18, 23, 25, 28, 29], as"
    assert run("faulty_clients.py").splitlines() == [
        f"raise: 24.66666603088379 {without} 'Integer division by zero at examples/faulty_clients.py:20, in floordiv'",
        f"nan: 24.66666603088379 {without} 'its contribution is not finite: "
        "fc.debug.check_numerics() names the operation'",
        "out of memory: 29.0; /device:CPU:0 ran out of memory: at most 1 of its calls run at once now",
    ]
