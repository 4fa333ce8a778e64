"""A trial that ends its process is a refusal, and the process that asked goes on."""

import os
from pathlib import Path

import attrs
import numpy as np
import pytest
import tensorflow as tf

from fedcore.testing.rule_subjects import Operation
from fedcore.testing.trial_process import OperandsRefused, run_trial


@attrs.frozen
class Doubling:
    def run(self, arrays):
        return [2 * a for a in arrays]


@attrs.frozen
class Ending:
    """Ends the process unless the file is there, and writes it."""

    file: Path | None = None

    def run(self, arrays):
        if self.file is None or not self.file.exists():
            if self.file is not None:
                self.file.touch()
            os.abort()
        return list(arrays)


def test_a_trial_that_ends_its_process_is_refused_and_others_run_after_it():
    with pytest.raises(OperandsRefused, match="TensorFlow ends the process"):
        run_trial(Ending(), [])
    np.testing.assert_array_equal(run_trial(Doubling(), [np.arange(3)]), [[0, 2, 4]])


def test_a_trial_runs_again_where_an_earlier_one_may_have_ended_the_process(tmp_path):
    np.testing.assert_array_equal(run_trial(Ending(tmp_path / "written"), [np.arange(3)]), [[0, 1, 2]])


def test_operands_that_do_not_fit_are_refused_in_the_words_of_tensorflow():
    add = Operation("AddV2", {"T": tf.float32})
    with pytest.raises(OperandsRefused, match="Dimensions must be equal, but are 2 and 3"):
        add.alone([np.ones(2, np.float32), np.ones(3, np.float32)])


def test_an_operation_whose_kernel_ends_the_process_is_refused():
    attributes = {"T": tf.float32, "data_format": b"NHWC", "strides": [1, 1], "padding": b"VALID"}
    attributes |= {"explicit_paddings": [], "dilations": [], "batch_dims": 1, "groups": 1}
    convolution = Operation("Conv", attributes)
    with pytest.raises(OperandsRefused):
        convolution.alone([np.ones([2], np.float32), np.ones([2], np.float32)])
