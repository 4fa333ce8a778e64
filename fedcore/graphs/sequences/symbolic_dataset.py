"""The stand-in for a `T*` parameter while the body of a tf_computation is traced.

It has the methods of `tf.data.Dataset` but is no subclass, since AutoGraph's registry of `for` loops uses the first
class that matches an object, and `tf.data.Dataset` is registered first. `for x in ds` becomes a while loop over an
index, and each element is computed from its index.
"""

import functools
import inspect
import itertools
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Never, TypeAlias

import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError, brief
from fedcore.graphs import private_api
from fedcore.graphs.graphdef.analysis.side_effects import is_stateful
from fedcore.graphs.graphdef.form.function_calls import operations_in
from fedcore.graphs.graphdef.form.sequence_operands import IndexedSequence
from fedcore.graphs.sequences.reading_order import WHOLE_DATASET
from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.values import to_python
from fedcore.types import Type, to_type

Convert = Callable[[Callable], Callable]
"""AutoGraph's conversion of a function."""

Structure: TypeAlias = Any
"""Tensors, or TensorSpecs, in the user's containers."""

Number: TypeAlias = int | tf.Tensor
"""A number that the user gives, known while the body is traced or not."""

_MOST_NEXTS = 10_000
"""Calls of `next` while a body is traced, after which its loop is taken to be one that never ends."""

_UNREADABLE = (
    "a sequence is iterated in Python code whose source cannot be read, so that its loop cannot become a part of the "
    "graph; use .reduce(), or put the function into a file"
)

_REFUSED = {
    "as_numpy_iterator": "there are no numpy arrays while a graph is traced; use a for loop or .reduce()",
    "rejection_resample": "what it draws follows no seed of the call; use .filter() with a seed of your own",
    "save": "a graph writes no files; return the sequence, and save it outside",
    "snapshot": "a graph writes no files; .cache() keeps the elements in memory",
    "options": "they are those of a dataset outside; leave it out",
    "with_options": "they are those of a dataset outside; leave it out",
    "ragged_batch": "a ragged tensor is no value of a computation; use .padded_batch(n)",
    "sparse_batch": "a sparse tensor is no value of a computation; use .padded_batch(n)",
    "sample_from_datasets": "what it draws follows no seed of the call; use .choose_from_datasets()",
    **dict.fromkeys(
        ("from_tensors", "from_tensor_slices", "from_generator", "range", "counter", "list_files", "load", "random"),
        "it makes a dataset of something else; call that of tf.data.Dataset",
    ),
}
"""Methods of `tf.data.Dataset` without a meaning inside a graph -> the reason and an alternative."""


class SymbolicDataset:
    """A sequence in the user's function, with `for`, `iter`, `reduce`, `map`, `take`, `batch` and the like.

    Every other method of `tf.data.Dataset`, and a shuffle with a seed, creates a real dataset inside the graph.

    A shuffle without a seed has a new permutation in each iteration. The permutations of one iteration over the dataset
    are its `samples`: a tuple of tensors, one for each such shuffle, the last shuffle first.

    Example: `ds.shuffle(n).batch(2)` over 5 elements has count 3 and one sample of shape [5]; its element at index 1 is
    the elements at positions samples[0][2] and samples[0][3] of `ds`.

    Args:
        count: int64 scalar.
        element_at: index (int64 scalar), samples -> element in the user's containers.
        element_spec: the TensorSpecs of an element, in the same containers.
        convert: AutoGraph's conversion of functions for `map` and `reduce`.
        sample: computes the samples of one iteration. Default: no samples.
        sample_specs: the TensorSpecs of the samples.
        as_real: creates the equivalent real dataset; needed where there are samples.
        draws: whether a map draws random numbers or reads a variable, so that an element differs at each access.
    """

    # No attrs class, since tf.function flattens attrs objects among its arguments.

    def __init__(
        self,
        count: tf.Tensor,
        element_at: Callable,
        element_spec: Structure,
        convert: Convert,
        sample: Callable[[], tuple] = tuple,
        sample_specs: tuple = (),
        as_real: Callable[[], tf.data.Dataset] | None = None,
        draws: bool = False,
    ) -> None:
        self.count = count
        self.element_at = element_at
        self.element_spec = element_spec
        self.convert = convert
        self.sample = sample
        self.sample_specs = sample_specs
        self.as_real = as_real
        self.draws = draws

    @classmethod
    def of(cls, sequence: IndexedSequence, element: Type, convert: Convert) -> "SymbolicDataset":
        """The stand-in for a sequence inside a graph (`count`, and `element`: index -> nested tuple)."""
        return cls(sequence.count, lambda i, _: to_python(sequence.element(i), element), element_spec(element), convert)

    def with_samples(self) -> "SymbolicDataset":
        """The dataset of one iteration, with fixed samples."""
        if not self.sample_specs:
            return self
        samples = self.sample()
        return self._without_samples(lambda i, _: self.element_at(i, samples), draws=self.draws)

    def _without_samples(self, element_at: Callable, *, draws: bool) -> "SymbolicDataset":
        """The dataset with other elements of the same type, which need no samples."""
        return SymbolicDataset(self.count, element_at, self.element_spec, self.convert, draws=draws)

    def element(self, index: tf.Tensor) -> Structure:
        """The element at an index; only for a dataset without samples, see `with_samples`."""
        return self.element_at(index, ())

    def real(self) -> tf.data.Dataset:
        """The equivalent `tf.data.Dataset`, created in the graph."""
        if self.as_real is not None:
            return self.as_real()
        return tf.data.Dataset.range(self.count).map(self.element)

    @property
    def _variant_tensor(self) -> tf.Tensor:  # where a real dataset takes another one, as in `concatenate`
        return self.real()._variant_tensor

    def __getattr__(self, name: str) -> Callable:
        """A method of the real dataset, for the methods of `tf.data.Dataset` that this class does not have.

        Raises:
            TracingError: the method has no meaning inside a graph; the message says why, and what to use.
        """
        if name.startswith("_") or not hasattr(tf.data.Dataset, name):
            raise AttributeError(f"a sequence inside a graph has no {name!r}, nor has tf.data.Dataset")
        if name in _REFUSED:
            raise TracingError(f"a sequence inside a graph has no .{name}(): {_REFUSED[name]}")

        def method(*arguments: Any, **keywords: Any) -> Any:
            positional = [self._as_argument(x) for x in arguments]
            return getattr(self.real(), name)(*positional, **{k: self._as_argument(x) for k, x in keywords.items()})

        return method

    def _as_argument(self, argument: Any) -> Any:
        """An argument for a method of a real dataset: symbolic datasets made real, functions converted by AutoGraph."""
        if isinstance(argument, SymbolicDataset):
            return argument.real()
        if isinstance(argument, list | tuple | dict):
            return tf.nest.map_structure(self._as_argument, argument)
        return self.convert(argument) if inspect.isfunction(argument) else argument

    def apply(self, transformation_func: Callable) -> Any:
        return transformation_func(self)

    def __iter__(self) -> "SymbolicIterator":
        if not private_api.is_autograph_on():
            raise TracingError(_UNREADABLE)
        return SymbolicIterator(self.with_samples(), tf.Variable(tf.constant(0, tf.int64), trainable=False))

    def __len__(self) -> Never:
        raise TracingError(
            "how many elements a sequence has is not known while it is traced; .cardinality() is a tensor"
        )

    def __getitem__(self, index: object) -> Never:
        raise TracingError("the elements of a sequence have no index: .skip(n).take(1) is a sequence of the one at n")

    def cardinality(self) -> tf.Tensor:
        return self.count

    def reduce(self, initial_state: Structure, reduce_func: Callable, name: str | None = None) -> Structure:
        """Folds the elements in order. A dimension of the state that changes becomes unknown, as in `tf.data`."""
        fn, dataset = self.convert(reduce_func), self.with_samples()
        # Below, `flat` has the tensors of a state, and `state` the structure that it has.
        state = tf.nest.map_structure(tf.convert_to_tensor, initial_state, expand_composites=True)

        def body(i: tf.Tensor, flat: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            return i + 1, _flat_like(state, fn(_packed_like(state, flat), dataset.element(i)))

        shapes = dataset._shapes_of_state(fn, state)
        first = tf.constant(0, tf.int64)
        _, out = tf.while_loop(
            lambda i, _: i < self.count, body, (first, _flat(state)), shape_invariants=(first.shape, shapes)
        )
        return _packed_like(state, out)

    def _shapes_of_state(self, fn: Callable, state: Structure) -> list[tf.TensorShape]:
        """The shapes that the state's tensors have in all iterations of `reduce`: the fixed point of a step.

        Args:
            fn: (state, element) -> state.
        """
        flat = _flat(state)
        while True:
            step = tf.function(
                lambda i, flat: _flat_like(state, fn(_packed_like(state, flat), self.element(i))), autograph=False
            )
            specs = [tf.TensorSpec.from_tensor(t) for t in flat]
            outputs = step.get_concrete_function(tf.TensorSpec([], tf.int64), specs).structured_outputs
            shapes = [a.shape.most_specific_compatible_shape(b.shape) for a, b in zip(flat, outputs, strict=True)]
            if shapes == [t.shape for t in flat]:
                return shapes
            pairs = zip(flat, shapes, strict=True)
            flat = [tf.compat.v1.placeholder_with_default(t, shape) for t, shape in pairs]

    def map(
        self,
        map_func: Callable,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
        **options: Any,
    ) -> "SymbolicDataset":
        """Applies a function to each element when it is accessed; a tuple is spread over its parameters."""
        fn = self.convert(map_func)

        def element_at(i: tf.Tensor, samples: tuple) -> Structure:
            return mapped_element(fn, self.element_at(i, samples))

        traced = tf.function(element_at, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int64), self.sample_specs
        )
        specs = tf.nest.map_structure(tf.type_spec_from_value, traced.structured_outputs)
        draws = self.draws or any(map(is_stateful, operations_in(traced.graph.as_graph_def())))
        return self._with(lambda d: d.map(fn), element_at=element_at, element_spec=specs, draws=draws)

    def enumerate(self, start: Number = 0, name: str | None = None) -> "SymbolicDataset":
        """Pairs of a number, from `start` on, and an element."""
        spec = (tf.TensorSpec([], tf.int64), self.element_spec)

        def element_at(i: tf.Tensor, samples: tuple) -> tuple[tf.Tensor, Structure]:
            return i + tf.cast(start, tf.int64), self.element_at(i, samples)

        return self._with(lambda d: d.enumerate(start), element_at=element_at, element_spec=spec)

    def take(self, count: Number, name: str | None = None) -> "SymbolicDataset":
        """The first `count` elements; all for a negative number, as in `tf.data`."""
        limit = tf.cast(count, tf.int64)
        left = tf.where(limit < 0, self.count, tf.minimum(limit, self.count))
        return self._with(lambda d: d.take(count), count=left)

    def skip(self, count: Number, name: str | None = None) -> "SymbolicDataset":
        """The elements behind the first `count`; none for a negative number, as in `tf.data`."""
        offset = tf.cast(count, tf.int64)
        left = tf.where(offset < 0, tf.zeros_like(offset), tf.maximum(self.count - offset, 0))
        return self._with(
            lambda d: d.skip(count), count=left, element_at=lambda i, samples: self.element_at(i + offset, samples)
        )

    def repeat(self, count: Number | None = None, name: str | None = None) -> "SymbolicDataset":
        """Repeats the elements `count` times; a shuffle that reshuffles has a permutation for each repetition."""
        static_count = -1 if count is None else tf.get_static_value(count)
        if static_count is not None and static_count < 0:
            raise TracingError("a sequence inside a tf_computation is repeated a number of times: repeat(n)")
        times, once = tf.cast(count, tf.int64), tf.maximum(self.count, 1)
        if not self.sample_specs:
            return self._with(None, count=self.count * times, element_at=lambda i, _: self.element_at(i % once, ()))

        def sample() -> tuple:
            epochs = tf.range(tf.maximum(times, 1))
            return tf.map_fn(lambda _: self.sample(), epochs, fn_output_signature=self.sample_specs)

        def element_at(i: tf.Tensor, samples: tuple) -> Structure:
            return self.element_at(i % once, tuple(orders[i // once] for orders in samples))

        specs = tuple(tf.TensorSpec([None, *s.shape], s.dtype) for s in self.sample_specs)
        return self._with(
            lambda d: d.repeat(count),
            count=self.count * times,
            element_at=element_at,
            sample=sample,
            sample_specs=specs,
        )

    def shuffle(
        self,
        buffer_size: Number | None = None,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = True,
        name: str | None = None,
    ) -> "SymbolicDataset | tf.data.Dataset":
        """Shuffles the elements.

        With a seed: the order of `tf.data`, by a real dataset in the graph. Without a seed: an order by the call's
        seed, with the distribution of `tf.data`'s. It is new in each iteration, or fixed with
        `reshuffle_each_iteration=False`.
        """
        size = tf.maximum(self.count, 1) if buffer_size is None else buffer_size
        static_size = WHOLE_DATASET if buffer_size is None else tf.get_static_value(size)
        if static_size is not None and static_size < 1 and static_size != WHOLE_DATASET:
            raise TracingError(f"the buffer of a shuffle holds at least one element, not {static_size}")
        if seed is not None:
            return self.real().shuffle(size, seed=seed, reshuffle_each_iteration=reshuffle_each_iteration)
        if reshuffle_each_iteration is False:
            order = _shuffled_order(self.count, size, static_size)
            # Samples of the steps before still change with each iteration.
            return self._with(
                lambda d: d.shuffle(size), element_at=lambda i, samples: self.element_at(order[i], samples)
            )
        return self._with(
            None,
            element_at=lambda i, samples: self.element_at(samples[0][i], samples[1:]),
            sample=lambda: (_shuffled_order(self.count, size, static_size), *self.sample()),
            sample_specs=(tf.TensorSpec([None], tf.int64), *self.sample_specs),
            as_real=lambda: self.real().shuffle(size),
        )

    def batch(
        self,
        batch_size: Number,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> "SymbolicDataset":
        """Batches consecutive elements; the last batch may be smaller."""
        static_size = tf.get_static_value(batch_size)
        if static_size is not None and static_size < 1:
            raise TracingError(f"a batch has at least one element, not {static_size}")
        size = tf.cast(batch_size, tf.int64)
        count = self.count // size if drop_remainder else -(-self.count // size)

        def element_at(i: tf.Tensor, samples: tuple) -> Structure:
            indices = tf.range(i * size, tf.minimum((i + 1) * size, self.count))
            return tf.map_fn(lambda k: self.element_at(k, samples), indices, fn_output_signature=self.element_spec)

        def batch_spec(spec: tf.TensorSpec) -> tf.TensorSpec:
            return tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype)

        specs = tf.nest.map_structure(batch_spec, self.element_spec)
        return self._with(
            lambda d: d.batch(batch_size, drop_remainder), count=count, element_at=element_at, element_spec=specs
        )

    def prefetch(self, buffer_size: Number | None = None, name: str | None = None) -> "SymbolicDataset":
        """The dataset itself, whose elements are computed when they are accessed."""
        return self

    def cache(self, filename: str = "", name: str | None = None) -> "SymbolicDataset":
        """Fixes the samples, so that all iterations have one order; stores elements that differ at each access."""
        if filename:
            raise TracingError("a sequence inside a graph is not cached in a file: .cache() keeps it in memory")
        dataset = self.with_samples()
        return dataset._stored() if self.draws else dataset

    def _stored(self) -> "SymbolicDataset":
        """The dataset whose elements are computed once, now, and read from arrays."""
        specs = _flat(self.element_spec)
        size = tf.cast(self.count, tf.int32)
        arrays = [tf.TensorArray(s.dtype, size, element_shape=s.shape, infer_shape=False) for s in specs]

        def body(i: tf.Tensor, arrays: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
            tensors = _flat(self.element(tf.cast(i, tf.int64)))
            return i + 1, [array.write(i, tensor) for array, tensor in zip(arrays, tensors, strict=True)]

        _, arrays = tf.while_loop(lambda i, _: i < size, body, (tf.constant(0), arrays))

        def element_at(i: tf.Tensor, _: tuple) -> Structure:
            return _packed_like(self.element_spec, [array.read(tf.cast(i, tf.int32)) for array in arrays])

        return self._without_samples(element_at, draws=False)

    def _with(self, step: Callable[[tf.data.Dataset], tf.data.Dataset] | None, **changes: Any) -> "SymbolicDataset":
        """A copy with changed attributes.

        Args:
            step: the corresponding step on the real dataset; None if `changes` has `as_real`, or if the dataset has no
                samples, so that `real` computes its elements.
        """
        if self.as_real is not None and step is not None:
            changes["as_real"] = lambda: step(self.real())
        return SymbolicDataset(**{**vars(self), **changes})


Dataset: TypeAlias = tf.data.Dataset | SymbolicDataset
"""A `tf.data.Dataset`, or a parameter `T*` inside a `fc.tf_computation`."""


def mapped_element(fn: Callable, element: Structure) -> Structure:
    """The element that a map of `tf.data` makes of an element.

    A tuple, but no named tuple, is spread over the parameters of the function. A list that the function returns is a
    tuple; each list within the result, and each number and array, is one tensor.
    """
    result = fn(*element) if type(element) is tuple else fn(element)
    return private_api.map_element(_as_tensor, tuple(result) if isinstance(result, list) else result)


def _as_tensor(leaf: Any) -> Any:
    """A Python or numpy value as a tensor; anything else as it is."""
    is_value = isinstance(leaf, list | str | bytes | numbers.Number | np.ndarray | np.generic)
    return tf.convert_to_tensor(leaf) if is_value else leaf


def _shuffled_order(count: tf.Tensor, size: Number, static_size: int | None) -> tf.Tensor:
    """A random order of `count` elements (int64), distributed as that of a shuffle with a buffer; see
    `buffered_shuffle.py`.

    Args:
        size: elements that the buffer holds.
        static_size: the size if it is known while the body is traced, else None; WHOLE_DATASET: the buffer holds all.
    """
    if static_size == WHOLE_DATASET:
        return tf.random.shuffle(tf.range(count))
    if static_size == 1:
        return tf.range(count)
    size = tf.cast(size, tf.int64)

    def sample_order() -> tf.Tensor:
        """The order where the buffer holds only a part of the elements.

        Read k takes a random slot. The slot holds element size + j, where j is the last read before k that took it and
        refilled it so, or else its first element. What is left in the buffer comes last, in a random order.
        """
        reads = count - size
        slots = tf.random.uniform([reads], 0, size, tf.int64)
        by_slot = tf.argsort(slots, stable=True)
        sorted_slots = tf.gather(slots, by_slot)
        is_same = tf.equal(sorted_slots[1:], sorted_slots[:-1])
        places = tf.cast(by_slot, tf.int64)[:, tf.newaxis]
        later, earlier = tf.boolean_mask(places[1:], is_same), tf.boolean_mask(places[:-1, 0], is_same)
        order = tf.tensor_scatter_nd_update(slots, later, size + earlier)
        last = tf.concat([~is_same, [True]], 0)
        last_slots = tf.boolean_mask(sorted_slots, last)[:, tf.newaxis]
        buffer = tf.tensor_scatter_nd_update(tf.range(size), last_slots, size + tf.boolean_mask(places[:, 0], last))
        return tf.concat([order, tf.random.shuffle(buffer)], 0)

    return tf.cond(size >= count, lambda: tf.random.shuffle(tf.range(count)), sample_order)


def _flat(state: Structure) -> list[tf.Tensor]:
    """The tensors of a state; a sparse tensor has three."""
    return tf.nest.flatten(state, expand_composites=True)


def _flat_like(state: Structure, next_state: Structure) -> list[tf.Tensor]:
    """The tensors of `next_state`.

    Raises:
        ValueError: it has another structure than `state`.
    """
    tf.nest.assert_same_structure(state, next_state, check_types=False, expand_composites=True)
    return _flat(next_state)


def _packed_like(state: Structure, flat: list) -> Structure:
    """The inverse of `_flat`: the tensors in the structure of `state`."""
    return tf.nest.pack_sequence_as(state, flat, expand_composites=True)


class _Optional:
    """The element at an index if there is one, as a `tf.experimental.Optional`."""

    def __init__(self, sequence: SymbolicDataset, index: tf.Tensor) -> None:
        self._sequence = sequence
        self._index = index

    def has_value(self) -> tf.Tensor:
        return self._index < self._sequence.count

    def get_value(self) -> Structure:
        return self._sequence.element(self._index)


class SymbolicIterator:
    """`iter` of a symbolic dataset. Its position is a variable, so that loops in the graph continue from it.

    Args:
        sequence: without samples.
        position: int64 scalar, the index of the next element.
    """

    def __init__(self, sequence: SymbolicDataset, position: tf.Variable) -> None:
        self.sequence = sequence
        self.position = position
        self.calls = 0

    def __iter__(self) -> "SymbolicIterator":
        return self

    def __next__(self) -> Structure:
        self.calls += 1
        if self.calls > _MOST_NEXTS:  # a `for` that AutoGraph has not seen would never end
            raise TracingError(_UNREADABLE)
        index = self.position.read_value()
        past_end = tf.debugging.Assert(index < self.sequence.count, ["next() after the end of a sequence", index])
        with tf.control_dependencies([past_end] if past_end is not None else []):
            index = tf.identity(index)
        self.position.assign_add(1)
        return self.sequence.element(index)

    def get_next(self) -> Structure:
        return next(self)

    def get_next_as_optional(self) -> _Optional:
        index = self.position.read_value()
        self.position.assign_add(tf.cast(index < self.sequence.count, tf.int64))
        return _Optional(self.sequence, index)

    def next_or(self, default: Structure) -> Structure:
        """The next element; `default` in every call after the last one."""
        specs = self.sequence.element_spec
        try:
            tf.nest.assert_same_structure(specs, default, check_types=False)
            leaves = zip(tf.nest.flatten(default), tf.nest.flatten(specs), strict=True)
            fallback = tf.nest.pack_sequence_as(specs, [tf.convert_to_tensor(x, spec.dtype) for x, spec in leaves])
        except (TypeError, ValueError) as error:
            expected = to_type(specs)
            raise TracingError(
                f"next(iterator, {brief(default)}): in a graph the default is of the type of the elements, {expected}: "
                f"{error}"
            ) from None
        index = self.position.read_value()
        has_next = index < self.sequence.count
        element = tf.cond(has_next, lambda: self.sequence.element(index), lambda: fallback)
        self.position.assign_add(tf.cast(has_next, tf.int64))
        return element


def _for(
    iterated: SymbolicDataset | SymbolicIterator,
    extra_test: Callable[[], tf.Tensor] | None,
    body: Callable[[Structure], None],
    get_state: Callable[[], tuple],
    set_state: Callable[[Sequence], None],
    symbol_names: tuple[str, ...],
    opts: dict[str, Any],
) -> None:
    """AutoGraph's `for` over a symbolic dataset or iterator: a while loop whose first loop variable is the index.

    The other parameters are those with which AutoGraph calls the `for` of any type.

    Args:
        extra_test: whether the loop goes on, where the body has a `break` or a `return`; else None.
        get_state, set_state: read and write the user's variables that the body changes.
        symbol_names: of these variables.
    """
    first = tf.constant(0, tf.int64)
    if isinstance(iterated, SymbolicIterator):
        sequence, first = iterated.sequence, iterated.position.read_value()
        iterated.position.assign(sequence.count)
    else:
        sequence = iterated.with_samples()
    index = first

    def whole_state() -> tuple:
        return (index, *get_state())

    def set_whole_state(state: tuple) -> None:
        nonlocal index
        index, *user_state = state
        set_state(user_state)

    def test() -> tf.Tensor:
        has_next = index < sequence.count
        return has_next if extra_test is None else tf.cond(has_next, extra_test, lambda: False)

    def step() -> None:
        nonlocal index
        body(sequence.element(index))
        index += 1

    private_api.while_statement()(test, step, whole_state, set_whole_state, ("<index>", *symbol_names), opts)


def next_element(iterator: Iterator, *default: Any) -> Any:
    """`next` in converted code: that of symbolic iterators, and Python's for others."""
    if isinstance(iterator, SymbolicIterator) and default:
        return iterator.next_or(*default)
    return next(iterator, *default)


def _enumerate(sequence: SymbolicDataset, start: Number = 0) -> SymbolicDataset:
    return sequence.enumerate(start)


private_api.register_for(SymbolicDataset, _for)
private_api.register_for(SymbolicIterator, _for)
private_api.register_builtins(SymbolicDataset, length=SymbolicDataset.cardinality, enumerated=_enumerate)
private_api.replace_next(next_element)


def _zip_sequences(zip_datasets: Callable) -> Callable:
    """`tf.data.Dataset.zip` that takes `SymbolicDataset`s too. With a real dataset among the parts the zip is real."""

    @functools.wraps(zip_datasets)
    def call(*args: Structure, datasets: Structure = None, name: str | None = None) -> Any:
        # TensorFlow takes zip(datasets=(a, b)), zip((a, b)) and zip(a, b).
        structure = datasets if not args else args[0] if len(args) == 1 and datasets is None else args
        parts = tf.nest.flatten(structure)
        if not any(isinstance(part, SymbolicDataset) for part in parts):
            return zip_datasets(*args, datasets=datasets, name=name)

        def real() -> tf.data.Dataset:
            return zip_datasets(tf.nest.map_structure(_as_real, structure))

        return _zipped(structure, parts, real) if all(isinstance(p, SymbolicDataset) for p in parts) else real()

    return call


def _as_real(dataset: Any) -> Any:
    return dataset.real() if isinstance(dataset, SymbolicDataset) else dataset


def _zipped(structure: Structure, parts: "list[SymbolicDataset]", real: Callable) -> SymbolicDataset:
    """The sequence whose elements are one element of each part, in this structure; as long as the shortest.

    Args:
        structure: the user's containers, with the parts as leaves.
        parts: the leaves.
        real: makes the equivalent real dataset.
    """
    ends = list(itertools.accumulate(len(part.sample_specs) for part in parts))

    def element_at(index: tf.Tensor, samples: tuple) -> Structure:
        starts = [0, *ends[:-1]]
        elements = [p.element_at(index, samples[i:k]) for p, i, k in zip(parts, starts, ends, strict=True)]
        return tf.nest.pack_sequence_as(structure, elements)

    return SymbolicDataset(
        functools.reduce(tf.minimum, (part.count for part in parts)),
        element_at,
        tf.nest.pack_sequence_as(structure, [part.element_spec for part in parts]),
        parts[0].convert,
        lambda: tuple(itertools.chain.from_iterable(part.sample() for part in parts)),
        tuple(itertools.chain.from_iterable(part.sample_specs for part in parts)),
        real,
        draws=any(part.draws for part in parts),
    )


private_api.replace_dataset_zip(_zip_sequences)
