"""From a decorator to a result in ten steps.

python examples/tour.py
"""

import os
import tempfile

import fedcore as fc
from fedcore.compiler import DEFAULT_PIPELINE, run_passes

# 1. Say what a client's value looks like: here one number a client.
READINGS = fc.FederatedType("float32", fc.CLIENTS)
assert str(READINGS) == "{float32}@CLIENTS"


# 2. Write local work. It is traced once, to a TensorFlow graph; AutoGraph turns Python control flow into graph ops.
@fc.tf_computation("float32")
def to_celsius(fahrenheit):
    return (fahrenheit - 32.0) / 1.8


# 3. Compose it with intrinsics. The function runs once, now, over symbolic values: nothing is computed yet.
@fc.federated_computation(READINGS)
def mean_temperature(readings):
    return fc.federated_mean(fc.federated_map(to_celsius, readings))


assert str(mean_temperature.type_signature) == "({float32}@CLIENTS -> float32@SERVER)"

# 4. Read the program: one line an operation, each with the line of yours that made it. The text is a file format too.
traced = mean_temperature.to_text("traced")
assert "federated_map(@to_celsius, %readings)" in traced
assert "federated_mean(%0)" in traced

# 5. Lower it. A mean is a sum of pairs and a division; only core operations are left.
lowered = mean_temperature.to_text("lowered")
assert "= federated_mean" not in lowered
assert "federated_aggregate" in lowered

# 6. Run passes one by one. Each is a pure function from module to module; what changed nothing returns its argument.
changed, before = [], mean_temperature.module
for one, after in run_passes(before, DEFAULT_PIPELINE):
    if after is not before:
        changed.append(one.name)
    before = after
assert changed[-2:] == ["fuse", "plan"]

# 7. Read the plan: one client stage that holds its share of the mean, a merge, a server stage; and what each client
# sends, in bits: its part of the sum. It counts as 1, which is a constant and crosses nothing.
plan = mean_temperature.to_module("planned")
assert [op.kind for op in plan.main.operations] == ["fold", "merge", "run"]
assert plan.main.operations[1].attributes["bits"] == 32

# 8. Call it. A list is a cohort, one element a client.
assert round(float(mean_temperature([32.0, 212.0])), 3) == 50.0

# 9. Ask what ran: one graph call a block of clients, one less to merge them.
report = fc.context.last_report()
assert report is not None
assert report.clients == 2
assert report.graph_calls == {"server": 1, "blocks": 1, "merges": 0}

# 10. Keep it. The file runs in a process that has none of this Python.
path = os.path.join(tempfile.mkdtemp(), "mean.fed")
fc.save(mean_temperature, path)
assert fc.load(path)([32.0, 212.0]) == mean_temperature([32.0, 212.0])

# The same from a shell: `fedcore dump`, `fedcore run`, and `FEDCORE_TRACE=trace python …` with `fedcore report trace`;
# docs/finding-your-way.md walks through them.
