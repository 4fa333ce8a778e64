"""The parts of a baseline task."""

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import tensorflow as tf

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.scalars import whole_number
from fedcore.simulation import build_uniform_sampling_fn
from fedcore.simulation.datasets import ClientData

Data: TypeAlias = ClientData | tf.data.Dataset
Preprocess: TypeAlias = Callable[[tf.data.Dataset], tf.data.Dataset]


def _check_at_least_one(spec: object, field: "attrs.Attribute", value: object) -> None:
    if value is not None:
        whole_number(field.name, value, at_least=1)


@attrs.frozen(eq=False)
class ClientSpec:
    """How a client reads its data: shuffled, then repeated, then cut, then in batches.

    Args:
        num_epochs: passes over the data.
        batch_size: examples of a batch; the last one may be smaller.
        max_elements: examples of all passes. Default: all.
        shuffle_buffer_size: examples among which the next one is drawn; 1 does not shuffle. Default: the task's.
    Raises:
        FedcoreError: one of them is no whole number of at least 1.
    Example:
        >>> ClientSpec(num_epochs=2, batch_size=10).max_elements is None
        True
    """

    num_epochs: int = attrs.field(validator=_check_at_least_one)
    batch_size: int = attrs.field(validator=_check_at_least_one)
    max_elements: int | None = attrs.field(default=None, validator=_check_at_least_one)
    shuffle_buffer_size: int | None = attrs.field(default=None, validator=_check_at_least_one)

    def elements_of(
        self, dataset: tf.data.Dataset, shuffle_buffer_size: int, seed: int | None = None
    ) -> tf.data.Dataset:
        """The examples that the client reads, not yet in batches.

        Args:
            shuffle_buffer_size: of the task, where the spec has none.
            seed: of the shuffle. Default: the call's.
        """
        buffer = self.shuffle_buffer_size or shuffle_buffer_size
        if buffer > 1:
            dataset = dataset.shuffle(buffer, seed=seed)
        if self.num_epochs > 1:
            dataset = dataset.repeat(self.num_epochs)
        return dataset if self.max_elements is None else dataset.take(self.max_elements)


def evaluation_spec(spec: ClientSpec | None, batch_size: int) -> ClientSpec:
    """The spec for evaluation: by default one pass in order."""
    return spec or ClientSpec(num_epochs=1, batch_size=batch_size, shuffle_buffer_size=1)


class BaselineTaskDatasets:
    """The data of a task, and its preprocessing.

    Args:
        train_data: client data.
        test_data: client data or a data set.
        validation_data: client data or a data set with the element type of `test_data`. Default: none.
        train_preprocess_fn, eval_preprocess_fn: data set -> data set. Default: the data as they are.
    Raises:
        FedcoreError: an argument is neither data nor a function, or test and validation data differ in element type.
    Example:
        >>> datasets = BaselineTaskDatasets(data, data, train_preprocess_fn=lambda dataset: dataset.batch(2))
        >>> len(datasets.sample_train_clients(num_clients=2, random_seed=1))
        2
    """

    def __init__(
        self,
        train_data: Any,
        test_data: Data,
        validation_data: Data | None = None,
        train_preprocess_fn: Preprocess | None = None,
        eval_preprocess_fn: Preprocess | None = None,
    ) -> None:
        if not isinstance(train_data, ClientData):
            raise TypeMismatch(f"train_data is client data, not {brief(train_data)}")
        for role, fn in {"train_preprocess_fn": train_preprocess_fn, "eval_preprocess_fn": eval_preprocess_fn}.items():
            if fn is not None and not callable(fn):
                raise InvalidValue(f"{role} is a function from a data set to a data set, not {brief(fn)}")
        test_type = _element_type("test_data", test_data)
        if validation_data is not None and _element_type("validation_data", validation_data) != test_type:
            raise InvalidValue(
                f"test_data and validation_data differ\n  test_data        has {test_type}\n"
                f"  validation_data  has {_element_type('validation_data', validation_data)}"
            )
        self.train_data = train_data
        self.test_data = test_data
        self.validation_data = validation_data
        self.train_preprocess_fn = train_preprocess_fn
        self.eval_preprocess_fn = eval_preprocess_fn
        self._preprocessed = train_data if train_preprocess_fn is None else train_data.preprocess(train_preprocess_fn)
        self.element_type_structure = self._preprocessed.element_type_structure

    def sample_train_clients(
        self, num_clients: int, replace: bool = False, random_seed: int | None = None
    ) -> list[tf.data.Dataset]:
        """The preprocessed data sets of training clients that are drawn uniformly.

        Args:
            replace: whether a client may be drawn twice.
            random_seed: seed of the draw. Default: another draw in each call.
        Raises:
            ValueError: there are fewer clients, and `replace` is False.
        """
        sample = build_uniform_sampling_fn(self._preprocessed.client_ids, replace, random_seed)
        return [self._preprocessed.create_tf_dataset_for_client(i) for i in sample(0, num_clients)]

    def get_centralized_test_data(self) -> tf.data.Dataset:
        """All test data in one data set, preprocessed for evaluation."""
        data = self.test_data
        together = data.create_tf_dataset_from_all_clients() if isinstance(data, ClientData) else data
        return together if self.eval_preprocess_fn is None else self.eval_preprocess_fn(together)

    def summary(self, print_fn: Callable[[str], Any] = print) -> None:
        """Prints a table of the splits, line by line, and which preprocessing there is."""
        rows = [("Split", "Dataset Type", "Number of Clients"), _describe("Train", self.train_data)]
        rows.append(_describe("Test", self.test_data))
        if self.validation_data is not None:
            rows.append(_describe("Validation", self.validation_data))
        widths = [max(map(len, column)) + 1 for column in zip(*rows, strict=True)]
        lines = ["".join(f"{cell:<{n}}|" for cell, n in zip(row, widths, strict=True)) for row in rows]
        whole = len(lines[0])
        for line in (lines[0], "=" * whole, *lines[1:], "_" * whole):
            print_fn(line)
        print_fn(f"Train Preprocess Function: {self.train_preprocess_fn is not None}")
        print_fn(f"Eval Preprocess Function: {self.eval_preprocess_fn is not None}")


@attrs.frozen(eq=False)
class BaselineTask:
    """A task: data, and a model for it.

    Args:
        datasets: a `BaselineTaskDatasets`.
        model_fn: () -> model of the batches that `datasets.element_type_structure` says, as algorithms take it.
    Raises:
        TypeMismatch: one of them is something else.
    Example:
        >>> task = fc.simulation.baselines.emnist.create_character_recognition_task(spec, use_synthetic_data=True)
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(task.model_fn, optimizer)
        >>> state, metrics = process.next(process.initialize(), task.datasets.sample_train_clients(2))
    """

    datasets: BaselineTaskDatasets = attrs.field()
    model_fn: Callable[[], Any] = attrs.field()

    @datasets.validator
    def _check_datasets(self, _: object, value: object) -> None:
        if not isinstance(value, BaselineTaskDatasets):
            raise TypeMismatch(f"datasets is a BaselineTaskDatasets, not {brief(value)}")

    @model_fn.validator
    def _check_model_fn(self, _: object, value: object) -> None:
        if not callable(value):
            raise TypeMismatch(f"model_fn is a function that makes a model, not {brief(value)}")


def _element_type(role: str, data: Any) -> TensorStructure:
    """The element spec of test or validation data.

    Raises:
        TypeMismatch: it is no data; the message calls it `role`.
    """
    if isinstance(data, ClientData):
        return data.element_type_structure
    if isinstance(data, tf.data.Dataset):
        return data.element_spec
    raise TypeMismatch(f"{role} is client data or a data set, not {brief(data)}")


def _describe(split: str, data: Data) -> tuple[str, str, str]:
    """The row of a split in the table of `summary`."""
    if isinstance(data, ClientData):
        return split, "Federated", str(len(data.client_ids))
    return split, "Centralized", "N/A"
