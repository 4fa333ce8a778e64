"""Hand-written TensorFlow for each workload: what a skilled person writes without a framework.

A floor is `pack(clients) -> packed` and `round(weights, packed) -> (weights, loss, accuracy)`. Deltas are averaged.

`floors` are what a skilled person writes; ratios are against the fastest. `floors_of_same_algebra` are what nobody
writes: fedcore's low-rank kernels by hand, for comparison.
"""

import concurrent.futures
from collections.abc import Callable

import attrs
import numpy as np
import tensorflow as tf

from benchmarks.workloads import BATCH, CLIENT_RATE, LETTERS, LINE, SERVER_RATE, Workload

THREADS = 2
PARALLEL = 4


@attrs.frozen
class Floor:
    name: str
    pack: Callable
    round: Callable


def floors(workload: Workload) -> list[Floor]:
    """The floors of a workload; the fastest of them is what counts."""
    if workload.algorithm == "fed_eval":
        return [_in_chunks(workload, chunk) for chunk in (100, 200)]
    if workload.algorithm == "fed_sgd":
        return [_in_chunks(workload, chunk) for chunk in (500, 2500)]
    if workload.model == "cnn":
        return [_unrolled(workload)]
    if workload.model == "lstm":
        return [_stacked_text(workload, width) for width in (5, 10)]
    if workload.model == "mlp":
        return [*(_stacked(workload, width) for width in (4, 10)), _looped(workload)]
    return [_stacked(workload, width) for width in (100, 250)]


def floors_of_same_algebra(workload: Workload) -> list[Floor]:
    """Floors with low-rank kernels, for workloads whose plans have them or could have them."""
    return [_factored(workload, width) for width in {"mlp": (8, 16), "logistic": (100, 250)}.get(workload.name, ())]


def forward(model: str, ws, x):
    if model == "cnn":
        h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, ws[0], 1, "SAME"), ws[1]))
        h = tf.nn.max_pool2d(h, 2, 2, "VALID")
        h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(h, ws[2], 1, "SAME"), ws[3]))
        h = tf.nn.max_pool2d(h, 2, 2, "VALID")
        h = tf.nn.relu(tf.matmul(tf.reshape(h, [-1, 3136]), ws[4]) + ws[5])
        return tf.matmul(h, ws[6]) + ws[7]
    h = tf.reshape(x, [-1, 784])
    if model == "mlp":
        h = tf.nn.relu(tf.matmul(h, ws[0]) + ws[1])
        return tf.matmul(h, ws[2]) + ws[3]
    return tf.matmul(h, ws[0]) + ws[1]


def _scores(logits, y):
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return each, tf.cast(tf.equal(tf.argmax(logits, -1, output_type=tf.int32), y), tf.float32)


def _padded(clients, steps: int):
    x = np.zeros((len(clients), steps * BATCH, 28, 28, 1), np.float32)
    y = np.zeros((len(clients), steps * BATCH), np.int32)
    m = np.zeros((len(clients), steps * BATCH), np.float32)
    for i, (a, b) in enumerate(clients):
        x[i, : len(b)], y[i, : len(b)], m[i, : len(b)] = a, b, 1
    shape = (len(clients), steps, BATCH)
    return x.reshape(*shape, 28, 28, 1), y.reshape(shape), m.reshape(shape)


def _stacked_step(model: str, ws, x, y, m):
    """One step of a group: a leading axis of clients everywhere."""
    with tf.GradientTape() as tape:
        tape.watch(ws)
        h = tf.reshape(x, [x.shape[0], BATCH, 784])
        if model == "mlp":
            h = tf.nn.relu(tf.matmul(h, ws[0]) + ws[1][:, None])
            logits = tf.matmul(h, ws[2]) + ws[3][:, None]
        else:
            logits = tf.matmul(h, ws[0]) + ws[1][:, None]
        each, hit = _scores(logits, y)
        each *= m
        loss = tf.reduce_sum(tf.math.divide_no_nan(tf.reduce_sum(each, 1), tf.reduce_sum(m, 1)))
    gradients = tape.gradient(loss, ws)
    return (
        [w - CLIENT_RATE * g for w, g in zip(ws, gradients, strict=True)],
        tf.reduce_sum(each),
        tf.reduce_sum(hit * m),
    )


def _groups(workload: Workload, width: int) -> tuple[int, np.ndarray, int, list[int]]:
    """(most steps of a client, clients in order of their steps, number of clients, steps of each group)."""
    taken = np.array([-(-n // BATCH) for n in workload.sizes])
    order = np.argsort(taken, kind="stable")
    ends = [min(i + width, len(order)) for i in range(0, len(order), width)]
    return int(taken.max()), order, len(order), [int(taken[order[end - 1]]) for end in ends]


def _stacked(workload: Workload, width: int) -> Floor:
    """Clients of like size stacked in groups of `width`; groups in one graph, which runs them side by side."""
    steps, order, count, group_steps = _groups(workload, width)

    @tf.function
    def run(ws, x, y, m):
        acc, loss, hits = [tf.zeros_like(w) for w in ws], 0.0, 0.0
        for g, begin in enumerate(range(0, count, width)):
            gx, gy, gm = x[begin : begin + width], y[begin : begin + width], m[begin : begin + width]
            clients = gx.shape[0]
            local = [tf.tile(w[None], [clients] + [1] * len(w.shape)) for w in ws]
            for s in range(group_steps[g]):
                local, a, b = _stacked_step(workload.model, local, gx[:, s], gy[:, s], gm[:, s])
                loss, hits = loss + a, hits + b
            n = tf.reduce_sum(gm, [1, 2])
            acc = [a + tf.tensordot(n, v - w[None], 1) for a, v, w in zip(acc, local, ws, strict=True)]
        n = tf.reduce_sum(m)
        return [w + a / n for w, a in zip(ws, acc, strict=True)], loss / n, hits / n

    def pack(clients):
        return [tf.constant(part) for part in _padded([clients[i] for i in order], steps)]

    return Floor(f"stacked in {width}s", pack, lambda ws, packed: run(ws, *packed))


def _factored(workload: Workload, width: int) -> Floor:
    """As `_stacked`, but the first kernel of a client is W + U^T V, with the inputs U and scaled gradients V of its
    steps.

    No kernel of a client is made. The sum of a group's changes is one product of all factors.
    """
    steps, order, count, group_steps = _groups(workload, width)

    @tf.function
    def run(ws, x, y, m):
        kernel, *others = ws
        change, loss, hits = tf.zeros_like(kernel), 0.0, 0.0
        acc = [tf.zeros_like(w) for w in others]
        for g, begin in enumerate(range(0, count, width)):
            gx, gy, gm = x[begin : begin + width], y[begin : begin + width], m[begin : begin + width]
            clients = gx.shape[0]
            local = [tf.tile(w[None], [clients] + [1] * len(w.shape)) for w in others]
            inputs, scaled = [], []
            for s in range(group_steps[g]):
                h = tf.reshape(gx[:, s], [clients, BATCH, 784])
                out = tf.reshape(tf.matmul(tf.reshape(h, [-1, 784]), kernel), [clients, BATCH, -1])
                if inputs:
                    out += tf.matmul(tf.matmul(h, tf.concat(inputs, 1), transpose_b=True), tf.concat(scaled, 1))
                with tf.GradientTape() as tape:
                    tape.watch([out, *local])
                    logits = out + local[0][:, None]
                    if workload.model == "mlp":
                        logits = tf.matmul(tf.nn.relu(logits), local[1]) + local[2][:, None]
                    each, hit = _scores(logits, gy[:, s])
                    each *= gm[:, s]
                    mean = tf.reduce_sum(tf.math.divide_no_nan(tf.reduce_sum(each, 1), tf.reduce_sum(gm[:, s], 1)))
                of_out, *gradients = tape.gradient(mean, [out, *local])
                local = [w - CLIENT_RATE * v for w, v in zip(local, gradients, strict=True)]
                inputs.append(h)
                scaled.append(-CLIENT_RATE * of_out)
                loss, hits = loss + tf.reduce_sum(each), hits + tf.reduce_sum(hit * gm[:, s])
            n = tf.reduce_sum(gm, [1, 2])
            left = tf.reshape(tf.concat(inputs, 1), [-1, 784])
            right = tf.concat(scaled, 1) * n[:, None, None]
            change += tf.matmul(left, tf.reshape(right, [-1, kernel.shape[1]]), transpose_a=True)
            acc = [a + tf.tensordot(n, v - w[None], 1) for a, v, w in zip(acc, local, others, strict=True)]
        n = tf.reduce_sum(m)
        return [w + a / n for w, a in zip(ws, [change, *acc], strict=True)], loss / n, hits / n

    def pack(clients):
        return [tf.constant(part) for part in _padded([clients[i] for i in order], steps)]

    return Floor(f"same algebra in {width}s", pack, lambda ws, packed: run(ws, *packed))


def _lstm(ws, x):
    """Logits [clients, batch, LINE, LETTERS] of clients side by side; the steps through a line are unrolled."""
    table, kernel, recurrent, bias, out, last = ws
    units = recurrent.shape[1]
    # All letters through the input kernel at once, rather than all places of all lines.
    inputs = tf.gather(tf.matmul(table, kernel) + bias[:, None], x, axis=1, batch_dims=1)
    h = c = tf.zeros([x.shape[0], BATCH, units])
    found = []
    for each in tf.unstack(inputs, axis=2):
        i, f, g, o = tf.split(each + tf.matmul(h, recurrent), 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        found.append(h)
    hidden = tf.reshape(tf.stack(found, 2), [x.shape[0], BATCH * LINE, units])
    return tf.reshape(tf.matmul(hidden, out) + last[:, None], [x.shape[0], BATCH, LINE, LETTERS])


def _stacked_text(workload: Workload, width: int) -> Floor:
    """Clients of like size stacked in groups; groups in one graph, which runs them side by side."""
    steps, order, count, group_steps = _groups(workload, width)

    def step(ws, x, y, m):
        with tf.GradientTape() as tape:
            tape.watch(ws)
            each, hit = _scores(_lstm(ws, x), y)
            each, hit = tf.reduce_mean(each, -1) * m, tf.reduce_mean(hit, -1) * m
            loss = tf.reduce_sum(tf.math.divide_no_nan(tf.reduce_sum(each, 1), tf.reduce_sum(m, 1)))
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, ws)]
        after = [w - CLIENT_RATE * g for w, g in zip(ws, gradients, strict=True)]
        return after, tf.reduce_sum(each), tf.reduce_sum(hit)

    @tf.function
    def run(ws, x, y, m):
        acc, loss, hits = [tf.zeros_like(w) for w in ws], 0.0, 0.0
        for g, begin in enumerate(range(0, count, width)):
            gx, gy, gm = x[begin : begin + width], y[begin : begin + width], m[begin : begin + width]
            local = [tf.tile(w[None], [gx.shape[0]] + [1] * len(w.shape)) for w in ws]
            for s in range(group_steps[g]):
                local, a, b = step(local, gx[:, s], gy[:, s], gm[:, s])
                loss, hits = loss + a, hits + b
            n = tf.reduce_sum(gm, [1, 2])
            acc = [a + tf.tensordot(n, v - w[None], 1) for a, v, w in zip(acc, local, ws, strict=True)]
        n = tf.reduce_sum(m)
        return [w + a / n for w, a in zip(ws, acc, strict=True)], loss / n, hits / n

    def pack(clients):
        x, y = (np.zeros((count, steps * BATCH, LINE), np.int32) for _ in range(2))
        m = np.zeros((count, steps * BATCH), np.float32)
        for i, (a, b) in enumerate(clients[k] for k in order):
            x[i, : len(b)], y[i, : len(b)], m[i, : len(b)] = a, b, 1
        shape = (count, steps, BATCH)
        return [tf.constant(v.reshape(*shape, *v.shape[2:])) for v in (x, y, m)]

    return Floor(f"stacked in {width}s", pack, lambda ws, packed: run(ws, *packed))


def _looped(workload: Workload) -> Floor:
    """One graph that loops over clients, several at once; the weights of each are a matrix of their own."""
    steps = -(-max(workload.sizes) // BATCH)
    count = len(workload.sizes)

    def train(ws, x, y, m):
        def step(s, local, loss, hits):
            with tf.GradientTape() as tape:
                tape.watch(local)
                each, hit = _scores(forward(workload.model, local, x[s]), y[s])
                each *= m[s]
                mean = tf.math.divide_no_nan(tf.reduce_sum(each), tf.reduce_sum(m[s]))
            gradients = tape.gradient(mean, local)
            after = [w - CLIENT_RATE * g for w, g in zip(local, gradients, strict=True)]
            return s + 1, after, loss + tf.reduce_sum(each), hits + tf.reduce_sum(hit * m[s])

        taken = tf.reduce_sum(tf.cast(tf.reduce_any(m > 0, 1), tf.int32))
        return tf.while_loop(lambda s, *_: s < taken, step, (0, list(ws), 0.0, 0.0))[1:]

    @tf.function
    def run(ws, x, y, m):
        def client(i, acc, loss, hits):
            local, a, b = train(ws, x[i], y[i], m[i])
            n = tf.reduce_sum(m[i])
            return i + 1, [u + n * (v - w) for u, v, w in zip(acc, local, ws, strict=True)], loss + a, hits + b

        start = (0, [tf.zeros_like(w) for w in ws], 0.0, 0.0)
        _, acc, loss, hits = tf.while_loop(lambda i, *_: i < count, client, start, parallel_iterations=PARALLEL)
        n = tf.reduce_sum(m)
        return [w + a / n for w, a in zip(ws, acc, strict=True)], loss / n, hits / n

    def pack(clients):
        return [tf.constant(part) for part in _padded(clients, steps)]

    return Floor(f"a loop, {PARALLEL} at once", pack, lambda ws, packed: run([tf.constant(w) for w in ws], *packed))


def _unrolled(workload: Workload) -> Floor:
    """Clients and steps unrolled in one graph: TensorFlow runs clients side by side."""

    def step(ws, x, y):
        with tf.GradientTape() as tape:
            tape.watch(ws)
            each, hit = _scores(forward(workload.model, ws, x), y)
            loss = tf.reduce_mean(each)
        gradients = tape.gradient(loss, ws)
        after = [w - CLIENT_RATE * g for w, g in zip(ws, gradients, strict=True)]
        return after, tf.reduce_sum(each), tf.reduce_sum(hit)

    @tf.function
    def run(ws, xs, ys):
        acc, loss, hits = [tf.zeros_like(w) for w in ws], 0.0, 0.0
        for i, size in enumerate(workload.sizes):
            local = list(ws)
            for begin in range(0, size, BATCH):
                local, a, b = step(local, xs[i][begin : begin + BATCH], ys[i][begin : begin + BATCH])
                loss, hits = loss + a, hits + b
            acc = [a + float(size) * (v - w) for a, v, w in zip(acc, local, ws, strict=True)]
        n = float(sum(workload.sizes))
        return [w + a / n for w, a in zip(ws, acc, strict=True)], loss / n, hits / n

    def pack(clients):
        return [tf.constant(x) for x, _ in clients], [tf.constant(y) for _, y in clients]

    return Floor("unrolled", pack, lambda ws, packed: run(ws, *packed))


def _in_chunks(workload: Workload, chunk: int) -> Floor:
    """All examples as one long batch in chunks, over two threads; with gradients if it trains."""
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)
    trains = workload.algorithm == "fed_sgd"

    @tf.function
    def run(ws, x, y):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(ws if trains else [])
            each, hit = _scores(forward(workload.model, ws, x), y)
            loss = tf.reduce_sum(each)
        return [loss, tf.reduce_sum(hit), *(tape.gradient(loss, ws) if trains else [])]

    def pack(clients):
        x, y = (np.concatenate([c[i] for c in clients]) for i in (0, 1))
        return [(tf.constant(x[i : i + chunk]), tf.constant(y[i : i + chunk])) for i in range(0, len(y), chunk)]

    def round_(ws, packed):
        found = list(pool.map(lambda part: [v.numpy() for v in run(ws, *part)], packed))
        loss, hits, *gradients = (sum(parts) / sum(workload.sizes) for parts in zip(*found, strict=True))
        return [w - SERVER_RATE * g for w, g in zip(ws, gradients, strict=True)] if trains else ws, loss, hits

    return Floor(f"chunks of {chunk}", pack, round_)
