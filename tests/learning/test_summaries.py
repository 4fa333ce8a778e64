"""Figures of rounds written for TensorBoard, as tutorials do."""

import tensorflow as tf
from tensorflow.core.util import event_pb2

import fedcore as fc


def test_what_a_round_returns_is_written_by_tf_summary(tmp_path):
    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def mean(xs):
        return fc.federated_mean(xs)

    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        for round_num, clients in enumerate([[1.0, 2.0], [4.0]]):
            tf.summary.scalar("mean", mean(clients), step=round_num)
    writer.close()
    (file,) = tmp_path.iterdir()
    events = [event_pb2.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file))]
    written = [
        (event.step, value.tag, tf.make_ndarray(value.tensor)) for event in events for value in event.summary.value
    ]
    assert written == [(0, "mean", 1.5), (1, "mean", 4.0)]
