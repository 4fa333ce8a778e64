"""Classes that are added to fill vector registers win no row: softmaxes of any logits are those of the row alone."""

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import run_batched, run_one_client, traced
from onednn_faults import needs_bfloat16

from fedcore.graphs.batched.batching_rules import matmul


def rows_of_extremes(dtype, classes):
    """[rows, classes]: rows whose logits all lie at or near the limits of the dtype, or are not finite."""
    limits = tf.as_dtype(dtype)
    rng = np.random.default_rng(0)
    plain = rng.normal(size=classes)
    low = [np.full(classes, limits.min), np.full(classes, limits.min / 2), limits.min * rng.uniform(0.5, 1, classes)]
    infinite = [np.full(classes, v) for v in (-np.inf, np.inf, np.nan)]
    mixed = []
    for value in (-np.inf, np.inf, np.nan, limits.min, limits.max):
        for place in (0, classes - 1):
            row = plain.copy()
            row[place] = value
            mixed.append(row)
    return np.stack([plain, plain - 3e4, *low, *infinite, *mixed]).astype(dtype)


def outputs(x, labels, probabilities):
    return [
        tf.nn.softmax(x),
        tf.nn.log_softmax(x),
        *tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=labels),
        *tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=x, labels=probabilities),
    ]


DTYPES = [np.float32, np.float64, np.float16, pytest.param(tf.bfloat16.as_numpy_dtype, marks=needs_bfloat16)]


@pytest.mark.parametrize("classes", [3, 40, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padded_classes_win_no_row(dtype, classes, monkeypatch):
    monkeypatch.setattr(matmul, "LONG_RUN", 0)  # all rows are padded, as those of 257 classes and more
    x = rows_of_extremes(dtype, classes)
    clients = np.stack([x, x[::-1]])
    rng = np.random.default_rng(1)
    labels = rng.integers(0, classes, clients.shape[:2]).astype(np.int32)
    probabilities = rng.dirichlet(np.ones(classes), clients.shape[:2]).astype(dtype)
    shapes = [(dtype, x.shape), (np.int32, labels.shape[1:]), (dtype, probabilities.shape[1:])]
    graph = traced(outputs, *shapes)
    together = run_batched(graph, [clients, labels, probabilities], {0, 1, 2})
    tolerance = {2: 2e-2, 4: 1e-5, 8: 1e-9}[np.dtype(dtype).itemsize]
    for k in range(2):
        alone = run_one_client(graph, [clients[k], labels[k], probabilities[k]])
        for number, ((have, _), want) in enumerate(zip(together, alone, strict=True)):
            have, want = have[k].astype(np.float64), want.astype(np.float64)
            if number == 0 and classes < 300:  # of a row that is not finite, oneDNN makes some entries NaN only
                is_finite = np.isfinite(want).all(-1)
                have, want = have[is_finite], want[is_finite]
            np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance, err_msg=f"result {number}")
