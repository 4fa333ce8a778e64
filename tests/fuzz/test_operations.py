"""Operations with random operands and attributes: what kills a process is refused, or is known to need a child."""

import json
import os
import pickle
from pathlib import Path

import pytest
import warm_processes
from operations import case, with_main

from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.analysis import op_classes
from fedcore.graphs.graphdef.validation.allow_list import check_graphs
from fedcore.ir import bundle

pytestmark = pytest.mark.slow  # imports TensorFlow
OPS = sorted(op_classes._allowed_operations())


def warm(script: str, *arguments: str) -> warm_processes.Ended:
    request = {"file": str(Path(__file__).with_name(script)), "arguments": arguments}
    environment = {**warm_processes.environment(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return warm_processes.run(request, cwd=Path.cwd(), env=environment, timeout_s=24 * 3600)  # a soak takes hours


def survey(seed: int, count: int, ops: list[str]) -> list[dict]:
    """The deaths of children, and last of all how many cases ended how."""
    done = warm("dying.py", str(seed), str(count), *ops)
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


# Each killed a process before there was a check for it, and is refused.
KILLED = [
    *[("AudioSpectrogram", 0), ("Conv", 0), ("Conv2DBackpropFilter", 2), ("Conv3DBackpropFilterV2", 7)],
    *[("DepthwiseConv2dNativeBackpropFilter", 13), ("DepthwiseConv2dNativeBackpropInput", 24)],
    *[("FakeQuantWithMinMaxVarsPerChannel", 187), ("FakeQuantWithMinMaxVarsPerChannelGradient", 1)],
    *[("LSTMBlockCell", 178), ("LSTMBlockCellGrad", 88), ("QuantizeAndDequantizeV3", 188)],
    *[("ResourceApplyAdagrad", 9), ("ResourceApplyProximalAdagrad", 6), ("ResourceScatterNdAdd", 9)],
    *[("ResourceScatterNdMin", 8), ("ResourceScatterNdSub", 1), ("ResourceScatterNdUpdate", 12)],
    *[("ResourceSparseApplyKerasMomentum", 8), ("ResourceStridedSliceAssign", 1), ("SplitV", 0), ("SplitV", 10)],
    *[("AsString", 40398), ("GatherV2", 30025), ("GatherV2", 40014), ("ReduceDataset", 20031)],
    *[("If", 104), ("StatelessIf", 20040), ("StatelessIf", 147), ("UnicodeDecodeWithOffsets", 20050)],
    *[
        ("StatelessTruncatedNormal", 288),
        ("RaggedGather", 0),
        ("FusedPadConv2D", 0),
        ("GatherV2", 735),
        ("SplitV", 1565),
    ],
]


# Each killed a process when it ran, and has its operands checked then.
GUARDED = [
    *[("Case", 30018), ("Case", 30024), ("Case", 30042), ("Case", 289), ("TensorScatterMax", 40037)],
    *[("TensorScatterMax", 40524), ("TensorScatterMin", 40378), ("TensorScatterSub", 40200)],
    *[("TensorScatterUpdate", 40022), ("ResourceScatterMax", 12), ("Transpose", 70009), ("SparseCrossHashed", 70037)],
    *[("Fill", 20049), ("RFFT", 24), ("RFFT", 67)],
]


@pytest.mark.parametrize(("op", "seed"), KILLED, ids=lambda x: str(x))
def test_what_killed_a_process_is_refused(op, seed):
    with pytest.raises(FedcoreError, match=r"holds operations that a file from elsewhere may not|is malformed"):
        check_graphs(case(op, seed).module, trusted=False)


def test_a_process_that_loads_and_calls_what_killed_one_goes_on(tmp_path):
    ended = loaded_and_called(tmp_path, [*KILLED, *GUARDED])
    assert set(ended[: len(KILLED)]) == {"refused"}
    assert set(ended[len(KILLED) :]) == {"failed"}


def loaded_and_called(directory: Path, cases: list[tuple[str, int]]) -> list[str]:
    """How `fc.load` and a call end for each case, in a process that does all of them."""
    files = []
    for op, seed in cases:
        made = case(op, seed)
        files.append(directory / f"{op}-{seed}.fed")
        bundle.write(with_main(made), files[-1])
        files[-1].with_suffix(".pickle").write_bytes(pickle.dumps(made.values))
    done = warm("loading.py", *map(str, files))
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr[-2000:])
    return done.stdout.decode().splitlines()


def test_cases_are_of_all_kinds():
    *deaths, counts = survey(0, 1, OPS[::12])
    assert deaths == []
    assert sum(counts["outcomes"].values()) == len(OPS[::12])
    assert {"ran", "raised", "refused", "not imported"} <= set(counts["outcomes"])
    assert not [outcome for outcome in counts["outcomes"] if outcome.startswith("OTHER")]


NEAR = ["AvgPoolGrad", "MaxPoolGrad", "ExtractImagePatches", "Conv2D", "Conv2DBackpropFilter", "Conv3DBackpropFilterV2"]
"""The first ended processes without oneDNN, the third where a window has 2**31 - 1 rows. The convolutions end them with
paddings of 2**31 - 1, dilations of 2**31, strides of 0, and fewer strides or dilations than dimensions.
"""


@pytest.mark.parametrize("ops", [NEAR, pytest.param([], marks=pytest.mark.soak, id="all")])
def test_operands_that_almost_fit_kill_no_process(ops):
    done = warm("near_operands.py", "200", *ops)
    *deaths, counts = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert deaths == []
    assert {"ran", "raised"} <= set(counts["outcomes"])
    assert not [outcome for outcome in counts["outcomes"] if outcome.startswith("OTHER")]


@pytest.mark.soak  # FEDCORE_FUZZ_SEEDS: how many cases of each operation
def test_no_operation_kills_a_process():
    *deaths, counts = survey(10_000, int(os.environ.get("FEDCORE_FUZZ_SEEDS", "200")), OPS)
    print(counts)
    assert deaths == []
