"""Operations with random operands and attributes: what kills a process is refused, or is known to need a child."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from operations import case

from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef import op_classes
from fedcore.graphs.graphdef.allow_list import check_graphs

pytestmark = pytest.mark.slow  # imports TensorFlow
OPS = sorted(op_classes._allowed() - op_classes.MAY_CRASH - {"While", "StatelessWhile"})


def survey(seed: int, count: int, ops: list[str]) -> list[dict]:
    """The deaths of children, and last of all how many cases ended how."""
    command = [sys.executable, str(Path(__file__).with_name("dying.py")), str(seed), str(count), *ops]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


# Each killed a process before there was a check for it.
KILLED = [
    *[("AudioSpectrogram", 0), ("Conv", 0), ("Conv2DBackpropFilter", 2), ("Conv3DBackpropFilterV2", 7)],
    *[("DepthwiseConv2dNativeBackpropFilter", 13), ("DepthwiseConv2dNativeBackpropInput", 24)],
    *[("FakeQuantWithMinMaxVarsPerChannel", 187), ("FakeQuantWithMinMaxVarsPerChannelGradient", 1)],
    *[("LSTMBlockCell", 178), ("LSTMBlockCellGrad", 88), ("QuantizeAndDequantizeV3", 188), ("RFFT", 24), ("RFFT", 67)],
    *[("ResourceApplyAdagrad", 9), ("ResourceApplyProximalAdagrad", 6), ("ResourceScatterNdAdd", 9)],
    *[("ResourceScatterNdMin", 8), ("ResourceScatterNdSub", 1), ("ResourceScatterNdUpdate", 12)],
    *[("ResourceSparseApplyKerasMomentum", 8), ("ResourceStridedSliceAssign", 1), ("SplitV", 0), ("SplitV", 10)],
    *[("FakeParam", 1001), ("StatelessTruncatedNormal", 288), ("RaggedGather", 0), ("FusedPadConv2D", 0)],
]


@pytest.mark.parametrize(("op", "seed"), KILLED, ids=lambda x: str(x))
def test_what_killed_a_process_is_refused(op, seed):
    with pytest.raises(FedcoreError, match="holds operations that a file from elsewhere may not"):
        check_graphs(case(op, seed).module, trusted=False)


def test_cases_are_of_all_kinds():
    *deaths, counts = survey(0, 1, OPS[::8])
    assert deaths == []
    assert sum(counts["outcomes"].values()) == len(OPS[::8])
    assert {"ran", "raised", "refused", "not imported"} <= set(counts["outcomes"])
    assert not [outcome for outcome in counts["outcomes"] if outcome.startswith("OTHER")]


@pytest.mark.soak
def test_no_operation_kills_a_process():
    *deaths, counts = survey(10_000, 200, OPS)
    print(counts)
    assert deaths == []
