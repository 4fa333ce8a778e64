"""Programs whose digests are compared between processes; AutoGraph wants them in a file."""

import tensorflow as tf

import fedcore as fc


def make_loops():
    @tf.function
    def squared(x):
        return x * x

    @fc.tf_computation("float32", "int32")
    def loops(x, n):
        total = x
        for i in tf.range(n):
            total += tf.cast(i, tf.float32) * squared(x)
        if total > 10.0:
            total = squared(total)
        else:
            total = total - 1.0
        return tf.cond(total > 100.0, lambda: total / 2.0, lambda: squared(total)), tf.while_loop(
            lambda i: i < n, lambda i: (i + 2,), (n,)
        )

    return loops


def make_gradient():
    @fc.tf_computation(("float32", (4,)))
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.nn.relu(x) ** 2)
        return {"loss": y, "gradient": tape.gradient(y, x)}

    return gradient


def make_federated():
    loops = make_loops()

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def federated(xs):
        return fc.federated_mean(fc.federated_map(lambda x: loops(x, 3)[0], xs))

    return federated
