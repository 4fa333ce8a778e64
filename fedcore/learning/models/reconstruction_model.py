"""Models with weights that never leave a client: `ReconstructionModel`."""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from fedcore.errors import InvalidValue, TracingError, brief
from fedcore.graphs.sequences.symbolic_dataset import Dataset
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.functional_model import checked_batch_type
from fedcore.learning.models.model_weights import ModelWeights, averaged_weights
from fedcore.scalars import whole_number
from fedcore.types import to_type


class ReconstructionBatchOutput(NamedTuple):
    """The result of one forward pass; the algorithm computes the loss of it.

    Types: `<predictions=…,labels=…,num_examples=int>`.

    Example:
        >>> fc.learning.models.ReconstructionBatchOutput(tf.ones([2, 1]), tf.zeros([2, 1]), 2).num_examples
        2
    """

    predictions: Any
    labels: Any
    num_examples: Any


class ReconstructionModel(abc.ABC):
    """A model whose weights are global (the server holds them) or local (a client trains them anew in every round).

    A `model_fn` of `fc.learning.algorithms.build_fed_recon` returns one: `from_keras_model_and_layers` makes it of a
    Keras model; a class of one's own makes all its variables in `__init__`.

    Types, for batches B, as `input_spec` says:
        forward_pass  (<B,training> -> ReconstructionBatchOutput)

    Raises:
        TracingError: when a process is built, `model_fn` did not make all variables of the model.
    Example:
        >>> def make():
        ...     shared, own = keras.layers.Dense(4), keras.layers.Dense(1)
        ...     return fc.learning.models.ReconstructionModel.from_keras_model_and_layers(
        ...         keras.Sequential([keras.Input((2,)), shared, own]),
        ...         global_layers=[shared], local_layers=[own], input_spec=spec)
        >>> fc.learning.models.ReconstructionModel.has_only_global_variables(make())
        False
    """

    @property
    @abc.abstractmethod
    def global_trainable_variables(self) -> Sequence:
        """The variables that clients move after the reconstruction; the server adds their mean change."""

    @property
    @abc.abstractmethod
    def global_non_trainable_variables(self) -> Sequence:
        """The variables without gradients; the server adds the mean change of those that forward passes assign."""

    @property
    @abc.abstractmethod
    def local_trainable_variables(self) -> Sequence:
        """The variables that the reconstruction trains, from the initial values, with the global variables frozen."""

    @property
    @abc.abstractmethod
    def local_non_trainable_variables(self) -> Sequence:
        """The variables that forward passes move at the client; no client sends them."""

    @property
    @abc.abstractmethod
    def input_spec(self) -> Any:
        """The type of a batch: TensorSpecs, as `dataset.element_spec`."""

    @abc.abstractmethod
    def forward_pass(self, batch_input: TensorStructure, training: bool = True) -> ReconstructionBatchOutput:
        """The predictions and labels of a batch."""

    @classmethod
    def get_global_variables(cls, model: "ReconstructionModel") -> ModelWeights:
        """The variables that the server holds."""
        return ModelWeights(model.global_trainable_variables, model.global_non_trainable_variables)

    @classmethod
    def get_local_variables(cls, model: "ReconstructionModel") -> ModelWeights:
        """The variables that stay at the clients."""
        return ModelWeights(model.local_trainable_variables, model.local_non_trainable_variables)

    @classmethod
    def has_only_global_variables(cls, model: "ReconstructionModel") -> bool:
        """Whether there are no local variables; without trainable ones there is no reconstruction."""
        return not (model.local_trainable_variables or model.local_non_trainable_variables)

    @classmethod
    def simple_dataset_split_fn(cls, client_dataset: Dataset) -> tuple[Dataset, Dataset]:
        """All batches for the reconstruction, and all of them again after it."""
        return client_dataset, client_dataset

    @classmethod
    def build_dataset_split_fn(
        cls,
        recon_epochs: int = 1,
        recon_steps_max: int | None = None,
        post_recon_epochs: int = 1,
        post_recon_steps_max: int | None = None,
        split_dataset: bool = False,
    ) -> Callable[[Dataset], tuple[Dataset, Dataset]]:
        """Builds a function from a client's batches to those for the reconstruction and those for after it.

        Args:
            recon_epochs, post_recon_epochs: how often each part is run through.
            recon_steps_max, post_recon_steps_max: the most batches of all epochs together. Default: all.
            split_dataset: whether the even batches (0, 2, …) are for the reconstruction and the odd ones for after it.
                The client's batches must come in the same order each time. Default: each part has all batches.
        Returns:
            The function; in an evaluation "after the reconstruction" is where the metrics are computed.
        Raises:
            InvalidValue: a number is no whole one, epochs are less than 1, or steps less than 0.
        Example:
            >>> split = fc.learning.models.ReconstructionModel.build_dataset_split_fn(
            ...     recon_epochs=2, split_dataset=True)
            >>> [list(part.as_numpy_iterator()) for part in split(tf.data.Dataset.range(3))]
            [[np.int64(0), np.int64(2), np.int64(0), np.int64(2)], [np.int64(1)]]
        """
        epochs = [
            whole_number(name, value, at_least=1)
            for name, value in (("recon_epochs", recon_epochs), ("post_recon_epochs", post_recon_epochs))
        ]
        # take(-1) keeps every batch.
        most = [
            -1 if value is None else whole_number(name, value, at_least=0)
            for name, value in (("recon_steps_max", recon_steps_max), ("post_recon_steps_max", post_recon_steps_max))
        ]

        def every_second(batches: Dataset, first: int) -> Dataset:
            return batches.enumerate().filter(lambda i, _: i % 2 == first).map(lambda _, batch: batch)

        def split(client_dataset: Dataset) -> tuple[Dataset, Dataset]:
            recon, post_recon = (
                (every_second(client_dataset, part) if split_dataset else client_dataset)
                .repeat(epochs[part])
                .take(most[part])
                for part in (0, 1)
            )
            return recon, post_recon

        return split

    @classmethod
    def from_keras_model_and_layers(
        cls,
        keras_model: keras.Model,
        *,
        global_layers: Iterable,
        local_layers: Iterable,
        input_spec: TensorStructure,
    ) -> "ReconstructionModel":
        """A Keras model whose layers are global or local.

        Args:
            global_layers, local_layers: together all layers that have weights.
            input_spec: the type of a batch: (x, y) or a dict with these keys, of TensorSpecs.
        Raises:
            TracingError: it is no Keras model, or the batch is no such batch.
            InvalidValue: a weight is of no layer given, or of two, or of another model; or the model is compiled.
        Example: that of `ReconstructionModel`.
        """
        if isinstance(keras_model, keras.Model) and not keras_model.built:
            inputs = input_spec["x"] if isinstance(input_spec, Mapping) else input_spec[0]
            keras_model.build(tf.nest.map_structure(lambda spec: spec.shape, inputs))
        groups = [list(global_layers), list(local_layers)]
        global_trainable, local_trainable = ([v for layer in g for v in layer.trainable_variables] for g in groups)
        global_others, local_others = ([v for layer in g for v in layer.non_trainable_variables] for g in groups)
        return cls.from_keras_model_and_variables(
            keras_model,
            global_trainable_variables=global_trainable,
            global_non_trainable_variables=global_others,
            local_trainable_variables=local_trainable,
            local_non_trainable_variables=local_others,
            input_spec=input_spec,
        )

    @classmethod
    def from_keras_model_and_variables(
        cls,
        keras_model: keras.Model,
        *,
        global_trainable_variables: Iterable,
        global_non_trainable_variables: Iterable,
        local_trainable_variables: Iterable,
        local_non_trainable_variables: Iterable,
        input_spec: TensorStructure,
    ) -> "ReconstructionModel":
        """A Keras model whose variables are global or local.

        Args:
            global_trainable_variables, local_trainable_variables: together the model's trainable variables.
            global_non_trainable_variables, local_non_trainable_variables: together its other floats. The integers
                (states of seed generators) start anew with every batch, wherever they stand.
            input_spec: as for `from_keras_model_and_layers`.
        Raises:
            TracingError, InvalidValue: as for `from_keras_model_and_layers`.
        Example:
            >>> model = keras_model()
            >>> kernel, bias = model.trainable_variables
            >>> divided = fc.learning.models.ReconstructionModel.from_keras_model_and_variables(
            ...     model, global_trainable_variables=[kernel], local_trainable_variables=[bias],
            ...     global_non_trainable_variables=[], local_non_trainable_variables=[], input_spec=spec)
        """
        return KerasReconstructionModel(
            keras_model,
            {
                "global_trainable_variables": list(global_trainable_variables),
                "global_non_trainable_variables": list(global_non_trainable_variables),
                "local_trainable_variables": list(local_trainable_variables),
                "local_non_trainable_variables": list(local_non_trainable_variables),
            },
            input_spec,
        )


class KerasReconstructionModel(ReconstructionModel):
    """A model that `from_keras_model_and_variables` makes.

    Args:
        groups: the four lists of variables by the names of their properties.
    """

    def __init__(self, keras_model: keras.Model, groups: dict[str, list], input_spec: TensorStructure) -> None:
        if not isinstance(keras_model, keras.Model):
            raise TracingError(f"a ReconstructionModel is made of a Keras 3 model, not of {brief(keras_model)}")
        if keras_model.compiled:
            raise InvalidValue(
                f"the Keras model {keras_model.name} is compiled; its loss and optimizer would be left out: "
                "build_fed_recon takes loss_fn, metrics_fn and the optimizers"
            )
        checked_batch_type(to_type(input_spec))
        self.keras_model = keras_model
        self._input_spec = input_spec
        weights = {id(v) for v in (*keras_model.trainable_variables, *averaged_weights(keras_model))}
        others = {id(v) for v in keras_model.non_trainable_variables} - weights  # such as states of seed generators
        self._groups = {name: [v for v in group if id(v) not in others] for name, group in groups.items()}
        _check_partition(keras_model, self._groups)

    @property
    def global_trainable_variables(self) -> list:
        return self._groups["global_trainable_variables"]

    @property
    def global_non_trainable_variables(self) -> list:
        return self._groups["global_non_trainable_variables"]

    @property
    def local_trainable_variables(self) -> list:
        return self._groups["local_trainable_variables"]

    @property
    def local_non_trainable_variables(self) -> list:
        return self._groups["local_non_trainable_variables"]

    @property
    def input_spec(self) -> Any:
        return self._input_spec

    def forward_pass(self, batch_input: TensorStructure, training: bool = True) -> ReconstructionBatchOutput:
        x, y = (batch_input[n] for n in (("x", "y") if isinstance(batch_input, Mapping) else (0, 1)))
        predictions = self.keras_model(x, training=training)
        return ReconstructionBatchOutput(predictions, y, tf.shape(tf.nest.flatten(x)[0])[0])


def _check_partition(model: keras.Model, groups: dict[str, list]) -> None:
    """Raises InvalidValue unless each weight of the model is in one group, and nothing else is."""
    homes: dict[int, list[str]] = {}  # by the identity of a variable, the names of its groups
    paths: dict[int, str] = {}
    for name, group in groups.items():
        for variable in group:
            homes.setdefault(id(variable), []).append(name)
            paths[id(variable)] = variable.path
    weights = {id(v): v.path for v in (*model.trainable_variables, *averaged_weights(model))}
    wrong = [f"{paths[key]} is in {' and in '.join(names)}" for key, names in homes.items() if len(names) > 1]
    wrong += [f"{path} is neither global nor local" for key, path in weights.items() if key not in homes]
    wrong += [f"{path} is no weight of {model.name}" for key, path in paths.items() if key not in weights]
    if wrong:
        raise InvalidValue(f"each weight of {model.name} is either global or local, but {'; '.join(wrong)}")
