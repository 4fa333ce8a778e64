"""`ClientDataset`: a client's examples as columns, with the interface of `tf.data.Dataset`.

The type of elements decides how they are stored. Stages over ragged ones run client by client.
"""

import functools
import operator
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, SupportsIndex, TypeAlias

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data.function_equivalence import equivalence_key, values_held
from fedcore.data.tf_data_draws import has_seeds_of_its_own
from fedcore.errors import FedcoreError, TracingError
from fedcore.graphs import private_api
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import graph_callable
from fedcore.graphs.frontend.function_tracing import trace_function
from fedcore.graphs.graphdef.analysis.side_effects import TiedToProcess
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.reading_order import WHOLE_DATASET
from fedcore.graphs.sequences.steps import INFINITE, Step
from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.values import flatten, leaves_of, to_python, unflatten
from fedcore.ir.locations import describe
from fedcore.types import TensorType, Type, fields_of, make_container, not_dense, tensor_leaves, to_type
from fedcore.types.immutable_arrays import frozen, immutable
from fedcore.types.python_values import as_array
from fedcore.types.ragged_rows import RaggedRows


class ClientDataset(private_api.LazyDataset):
    """One client's examples: columns (for each leaf an array with one row for each example), and steps over them.

    `map`, `filter`, `shuffle`, `repeat`, `batch`, `take`, `skip`, `prefetch` and `cache` extend the steps and create no
    `tf.data` iterator. All other methods of `tf.data.Dataset` create the equivalent real dataset. A map with Python, a
    filter over batches, and a batch of batches create it too.

    Every call of a computation reads a dataset from its beginning, as the first `for` loop over it does.

    Guarantees:
      - Immutable: a step returns a new dataset over the same columns.
      - A map's function is traced once for all clients whose elements have one type, and again when what it refers to
        has changed. Decision 0314.

    Example:
        >>> client = fc.data.ClientDataset.from_columns({'x': images, 'y': labels}).repeat(5).shuffle(100).batch(20)
    """

    def __init__(self, columns: Columns, before: "ClientDataset | None" = None) -> None:
        """A dataset over columns.

        Args:
            before: the dataset without its last step, if a step shuffles. It is kept so that real datasets after one
                shuffle share this shuffle's seeds.
        """
        super().__init__()
        self._columns = columns
        self._before = before
        self._cached_real: tf.data.Dataset | None = None

    def __reduce__(self) -> tuple[type["ClientDataset"], tuple[Columns]]:
        return ClientDataset, (self._columns,)

    @classmethod
    def from_columns(cls, columns: object) -> "ClientDataset":
        """A dataset whose examples are the rows of arrays of equal length.

        Args:
            columns: arrays in nested dicts, tuples or lists. An array that can be written to is copied, so a later
                change of it does not change the dataset; `array.setflags(write=False)` saves the copy. Rows of several
                lengths are a `RaggedRows`.
        Raises:
            FedcoreError: the arrays differ in length, or are not arrays with rows.
        """
        leaves: list = []
        element = _element_of(_row_form(columns, leaves))
        if element is None or len({len(leaf) for leaf in leaves}) != 1:
            rows = ", ".join(_rows_of(leaf) for leaf in leaves[:8]) or "no columns"
            raise FedcoreError(f"columns have one row per example, all equally many; these are {rows}")
        if any(isinstance(leaf, RaggedRows) for leaf in leaves):
            return cls(_ragged_columns(element, leaves))
        return cls(Columns(element, leaves))

    @property
    def columns(self) -> Columns:
        """The sequence in the runtime's form."""
        return self._columns

    @property
    def stored_rows(self) -> Any:
        """The columns, as arrays in the structure of an example; None if the dataset has steps, groups, or examples of
        several shapes with more than one dimension."""
        columns = self._columns
        if columns.steps or columns.groups is not None:
            return None
        leaves: list | None = [np.asarray(array) for array in columns.arrays]
        if columns.ragged:
            leaves = _leaves_of_ragged(columns)
        return None if leaves is None else to_python(unflatten(leaves, columns.element), columns.element)

    @property
    def element_type(self) -> Type:
        return self._columns.layout.element_type()

    @property
    def element_spec(self) -> Any:
        return element_spec(self.element_type)

    # The steps.

    def repeat(self, count: int | None = None, name: str | None = None) -> "ClientDataset":
        """Repeats the elements `count` times; without a count, endlessly."""
        return self._step(_plain_step("repeat", INFINITE if count is None else int(count)))

    def shuffle(
        self,
        buffer_size: int | None = None,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = True,
        name: str | None = None,
    ) -> "ClientDataset":
        """Shuffles the elements: each comes from a uniform place of a buffer, which the next element then takes.

        With a seed, the order is the order of `tf.data`, independent of the call's seed. As in TensorFlow, it also
        depends on the global seed (`tf.random.set_seed`).

        Without a seed, the order depends on the call's seed and the client, not on the global seed.

        With `reshuffle_each_iteration=False` and no seed, the order depends on the data only. It is equal in all
        repetitions and calls, so `take(n)` and `skip(n)` of one dataset split it for good.

        Args:
            buffer_size: the number of elements from which the next element is sampled. Default: all.
            reshuffle_each_iteration: False gives all repetitions one order.
        Raises:
            FedcoreError: the buffer size is not positive, or the seed is no integer.
        """
        seeds = None if seed is None else shuffle_seeds(seed)
        return self.shuffled(_buffer_size(buffer_size), seeds, reshuffles=reshuffle_each_iteration is not False)

    def shuffled(self, size: int, seeds: tuple[int, int] | None, *, reshuffles: bool) -> "ClientDataset":
        """The shuffled dataset.

        Args:
            size: size of the buffer; 0 for all elements.
            seeds: the two seeds of a TensorFlow shuffle; None if the call's seed decides the order.
            reshuffles: whether every repetition has another order.
        """
        return self._step(_plain_step("shuffle", size, reshuffles=reshuffles, seeds=seeds))

    def take(self, count: int, name: str | None = None) -> "ClientDataset":
        return self._step(_plain_step("take", int(count)))

    def skip(self, count: int, name: str | None = None) -> "ClientDataset":
        return self._step(_plain_step("skip", int(count)))

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> "ClientDataset":
        """Batches `batch_size` consecutive elements; the last batch may be smaller."""
        if self._columns.layout.batched:
            return self._real().batch(batch_size, drop_remainder)
        if int(batch_size) < 1:
            raise FedcoreError(f"a batch has at least one element, not {batch_size}")
        return self._step(_plain_step("batch", int(batch_size), drop_remainder=bool(drop_remainder)))

    def map(
        self,
        map_func: Callable,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Applies `map_func` to every element. The function is traced once for each element type.

        Random operations without a seed of their own draw anew for each element that is made, in each repetition and
        call, by the call's seed and the client. A function that TensorFlow cannot run elsewhere (one with Python, or
        with variables made outside), and one with seeded random operations, is left to `tf.data`.
        """
        graph = traced_map(map_func, self.element_type)
        return self._real().map(map_func) if graph is None else self._step(Step("map", graph=graph))

    def filter(self, predicate: Callable, name: str | None = None) -> Any:
        """The elements for which `predicate` holds; it is evaluated now, once for each row of the columns."""
        graph = traced_map(predicate, self.element_type)
        columns = self._columns
        if graph is None or graph.seeded or columns.draws or columns.layout.batched or columns.is_endless:
            return self._real().filter(predicate)
        if graph.type.result != TensorType("bool"):
            raise FedcoreError(f"the predicate of a filter returns one bool, not {graph.type.result}")
        return self._step(Step("filter", graph=graph, mask=_row_mask(columns, graph)))

    def prefetch(self, buffer_size: int | None = None, name: str | None = None) -> "ClientDataset":
        steps = self._columns.steps
        # TensorFlow fuses a shuffle with a repeat directly after it; a prefetch between them prevents the fusion.
        return self._step(_plain_step("prefetch")) if steps and steps[-1].seeds is not None else self

    def cache(self, filename: str = "", name: str | None = None) -> Any:
        """Fixes the elements to those of the first reading; without a seed, they depend on the data only."""
        if filename:
            return self._real().cache(filename)
        varies = self._columns.draws or any(step.kind == "shuffle" for step in self._columns.steps)
        return self._step(_plain_step("cache")) if varies else self

    def _step(self, step: Step) -> "ClientDataset":
        """The dataset with a further step."""
        shuffles = step.kind == "shuffle" or self._before is not None
        return ClientDataset(self._columns.then(step), self if shuffles else None)

    # The real dataset, for all other methods of tf.data.Dataset.

    def _real(self) -> tf.data.Dataset:
        """The equivalent real `tf.data.Dataset`.

        With a shuffle among the steps it is made once, from the real dataset of `_before`, so that all datasets after
        one shuffle share its seeds. In a graph it is made anew, since it belongs to the graph.
        """
        if self._before is not None and tf.executing_eagerly():
            if self._cached_real is None:
                self._cached_real = self._real_step(self._before._real(), len(self._columns.steps) - 1)
            return self._cached_real
        return functools.reduce(self._real_step, range(len(self._columns.steps)), _base(self._columns))

    def _real_step(self, dataset: tf.data.Dataset, position: int) -> tf.data.Dataset:
        """The real dataset with the step at a position added."""
        step = self._columns.steps[position]
        if step.fixes_order:
            step = attrs.evolve(step, seeds=self._columns.fixed_seeds(position))
        return _REAL[step.kind](dataset, step)

    def __iter__(self) -> Iterator:
        return iter(self._real())

    def __repr__(self) -> str:
        steps = "".join(f".{s.kind}" for s in self._columns.steps)
        return f"<ClientDataset {self.element_type}*{' ' + steps if steps else ''}>"

    __str__ = __repr__


def _buffer_size(size: SupportsIndex | tf.Tensor | None) -> int:
    """The size of a shuffle's buffer, as a step has it; 0 for all elements."""
    if size is None:
        return 0
    try:
        number = operator.index(size.numpy() if isinstance(size, tf.Tensor) else size)
    except (TypeError, AttributeError):
        raise FedcoreError(f"the size of a shuffle's buffer is an integer, not {size!r}") from None
    if number < 1 and number != WHOLE_DATASET:
        raise FedcoreError(f"the buffer of a shuffle holds at least one element, not {number}")
    return number


def shuffle_seeds(seed: SupportsIndex | tf.Tensor) -> tuple[int, int]:
    """TensorFlow's two seeds, from the seed of a shuffle and the global seed."""
    try:
        number = operator.index(seed.numpy() if isinstance(seed, tf.Tensor) else seed)
    except (TypeError, AttributeError):
        raise FedcoreError(f"the seed of a shuffle is an integer, not {seed!r}") from None
    first, second = tf.compat.v1.get_seed(number)
    return int(first), int(second)


_plain_step = functools.lru_cache(maxsize=1024)(Step)
"""A step without a function. Cached, so that the pipelines of all clients share its object."""


def _ragged_columns(element: Type, leaves: list) -> Columns:
    """Columns of examples that differ in shape, from dense leaves and `RaggedRows`."""
    values, shapes = [], []
    for leaf in leaves:
        if isinstance(leaf, RaggedRows):
            values.append(leaf.values)
            shapes.append(leaf.lengths[:, np.newaxis])
        else:
            array = np.asarray(leaf)
            values.append(array.reshape(-1))
            shapes.append(np.tile(np.array(array.shape[1:], np.int64), (len(array), 1)))
    return Columns.from_elements(element, values, shapes, groups=False)


def _leaves_of_ragged(columns: Columns) -> list | None:
    """The leaves that `_ragged_columns` takes; None if rows of several shapes have more than one dimension."""
    leaves: list = []
    types = tensor_leaves(columns.element)
    for number, type_ in enumerate(types):
        values, shapes = (np.asarray(columns.arrays[i]) for i in (number, number + len(types)))
        if type_.shape is not None and None not in type_.shape:
            leaves.append(values.reshape(len(shapes), *type_.sizes))
        elif type_.rank == 1:
            leaves.append(RaggedRows(values, shapes[:, 0]))
        else:
            return None
    return leaves


def _as_column(x: object) -> np.ndarray | tf.Tensor | RaggedRows:
    """A column of `from_columns` that nobody can write to: a tensor or `RaggedRows` as it is, else an array.

    Raises:
        FedcoreError: it is sparse or ragged, or no tensor has its values.
    """
    if isinstance(x, tf.Tensor | RaggedRows):
        return x
    problem = not_dense(x)
    if problem is not None:
        raise FedcoreError(f"columns hold dense rows; {problem}")
    try:
        array = as_array(x)
    except ValueError as error:
        raise FedcoreError(f"a column is no tensor: {error}") from None
    if array.dtype.kind == "O" and array.size and not isinstance(array.flat[0], bytes):
        raise FedcoreError(f"a column is no tensor: no integer dtype holds {array.flat[0]}")
    return frozen(array) if isinstance(x, list | tuple) else immutable(array)  # a list's array is new: no copy


def _rows_of(column: np.ndarray | tf.Tensor) -> str:
    """The number of rows of a column, for a message."""
    return f"{len(column):,} rows" if column.shape else f"{str(column)[:40]!r}, which has no rows"


def _row_form(columns: object, leaves: list) -> tuple:
    """Hashable key for the row type of nested columns, for `_element_of`.

    Of a column (its dtype, the shape of a row), where the shape is None if it has no rows; of a container (its class,
    the names of its fields or None, the key of each part).

    Args:
        leaves: a list to which the columns are appended, in the order of the type.
    """
    if isinstance(columns, Mapping):
        return type(columns), tuple(columns), tuple(_row_form(c, leaves) for c in columns.values())
    if isinstance(columns, tuple | list):
        return type(columns), getattr(columns, "_fields", None), tuple(_row_form(c, leaves) for c in columns)
    fields = fields_of(columns)
    if fields is not None:
        return type(columns), tuple(fields), tuple(_row_form(c, leaves) for c in fields.values())
    column = _as_column(columns)
    leaves.append(column)
    return column.dtype, tuple(column.shape)[1:] if column.shape else None


@functools.lru_cache(maxsize=256)
def _element_of(form: tuple) -> Type | None:
    """The type of a row, from `_row_form`; None if a column has no rows."""
    if len(form) == 2:
        dtype, shape = form
        return None if shape is None else TensorType("str" if getattr(dtype, "hasobject", False) else dtype, shape)
    container, names, parts = form
    types = [_element_of(part) for part in parts]
    if any(t is None for t in types):
        return None
    if names is None:
        return to_type(container(types))
    return to_type(make_container(container, names, types))


_TracedMaps: TypeAlias = "weakref.WeakKeyDictionary[Callable, dict[Type, tuple[Hashable, TracedGraph | None]]]"
_traced_maps: _TracedMaps = weakref.WeakKeyDictionary()
"""Function -> by element type the values that it referred to (`values_held`), and its graph (`traced_map`)."""


def traced_map(fn: Callable, element: Type) -> TracedGraph | None:
    """The graph of a map's function for an element type, cached while the function lives and refers to equal values;
    None if only `tf.data` can run the function as TensorFlow means it.

    Functions with equal equivalence keys share a graph: preprocessing code often creates a new function for each
    client.
    """
    graphs = _traced_maps.setdefault(fn, {})
    held, graph = graphs.get(element, (None, None))
    if held is None or held != values_held(fn):
        key = equivalence_key(fn)
        graph = _trace(fn, element) if key is None else _traced_once(_Function(fn, key), element)
        graphs[element] = values_held(fn), graph
    return graph


@attrs.frozen(cache_hash=True)
class _Function:
    """A function that is compared by its equivalence key, so that a cache holds equivalent functions once."""

    function: Callable = attrs.field(eq=False)
    key: Hashable


@functools.lru_cache(maxsize=256)
def _traced_once(function: _Function, element: Type) -> TracedGraph | None:
    """The graph of a function, which equivalent ones share."""
    return _trace(function.function, element)


def _trace(fn: Callable, element: Type) -> TracedGraph | None:
    """The graph of a map's function; None if it uses resources of this process, or has random seeds of its own.

    Raises:
        TracingError: the function returns a sequence.
    """
    try:
        traced = trace_function(fn, element, as_map=True)
    except TiedToProcess:
        return None
    if traced.returns is not None:
        raise TracingError(f"{describe(fn)} returns {traced.returns}; a function of a map returns tensors")
    return None if traced.seeded and has_seeds_of_its_own(fn, element_spec(element)) else traced


def _row_mask(columns: Columns, predicate: TracedGraph) -> np.ndarray:
    """bool [rows]: whether the predicate holds for each row of unbatched columns, after the maps of the layout."""
    if not columns.row_count:
        return np.zeros([0], bool)
    tensors = map(tf.convert_to_tensor, columns.arrays)
    return _mask(columns.layout, predicate)(tf.range(columns.row_count, dtype=tf.int64), *tensors).numpy()


@functools.lru_cache(maxsize=128)
def _mask(layout: Layout, predicate: TracedGraph) -> Callable:
    """A function (row numbers, *columns) -> bool [rows], traced once for all clients of a layout."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64), *layout.column_specs()])
    def mask(rows: tf.Tensor, *columns: tf.Tensor) -> tf.Tensor:
        call = graph_callable(predicate.with_name("row"), predicate.data)
        return tf.map_fn(lambda row: call(layout.example(list(columns), row)), rows, fn_output_signature=tf.bool)

    return mask


def _base(columns: Columns) -> tf.data.Dataset:
    """A `tf.data.Dataset` of the stored elements, before any step: examples, or the batches that `groups` make."""
    element, groups = columns.element, columns.groups
    if columns.ragged:
        tensors = [tf.convert_to_tensor(array) for array in columns.arrays]
        read_row = _row_reader(Layout(element, ragged=True))
        rows = tf.data.Dataset.range(columns.row_count)
        return rows.map(lambda row: to_python(unflatten(read_row(row, *tensors), element), element))
    if groups is None:
        return tf.data.Dataset.from_tensor_slices(to_python(unflatten(list(columns.arrays), element), element))
    arrays = [tf.convert_to_tensor(array) for array in columns.arrays]
    rows = tf.data.Dataset.from_tensor_slices((groups[:-1], groups[1:]))
    return rows.map(lambda start, stop: to_python(unflatten([array[start:stop] for array in arrays], element), element))


@functools.lru_cache(maxsize=128)
def _row_reader(layout: Layout) -> Callable:
    """A function (row, columns) -> leaves of the example in the row, traced once for all clients of a layout."""
    specs = [tf.TensorSpec([], tf.int64), *layout.column_specs()]

    @tf.function(autograph=False, input_signature=specs)
    def read_row(row: tf.Tensor, *columns: tf.Tensor) -> list[tf.Tensor]:
        return flatten(layout.example(list(columns), row))

    return read_row.get_concrete_function()


def _real_map(dataset: tf.data.Dataset, step: Step, *, filters: bool = False) -> tf.data.Dataset:
    """A `map` or `filter` of the real dataset by the step's traced graph; random numbers are drawn anew each time."""
    graph = step.traced
    call = graph_callable(graph.with_name("map"), graph.data)
    element, result = graph.parameter, graph.type.result

    def apply(*parts: object) -> Any:
        value = parts if len(parts) > 1 else parts[0]
        seed = tf.random.uniform([], tf.int64.min, tf.int64.max, tf.int64) if graph.seeded else None
        return to_python(call(unflatten(leaves_of(value, element), element), seed=seed), result)

    return dataset.filter(apply) if filters else dataset.map(apply)


def _real_shuffle(dataset: tf.data.Dataset, step: Step) -> tf.data.Dataset:
    """A `shuffle` of the real dataset with the step's seeds; the buffer holds all elements if the step has no size."""
    cardinality = int(dataset.cardinality())  # unknown behind a filter
    size = step.number or (WHOLE_DATASET if cardinality == tf.data.UNKNOWN_CARDINALITY else max(1, cardinality))
    if step.seeds is None:
        return dataset.shuffle(size, reshuffle_each_iteration=step.reshuffles)
    if step.seeds == shuffle_seeds(step.seeds[1]):
        return dataset.shuffle(size, seed=step.seeds[1], reshuffle_each_iteration=step.reshuffles)
    variant = tf.raw_ops.ShuffleDatasetV3(  # the dataset was created under another global seed
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=size,
        seed=step.seeds[0],
        seed2=step.seeds[1],
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=[s.dtype for s in tf.nest.flatten(dataset.element_spec)],
        output_shapes=[s.shape for s in tf.nest.flatten(dataset.element_spec)],
        reshuffle_each_iteration=step.reshuffles,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


_REAL: dict[str, Callable[[tf.data.Dataset, Step], tf.data.Dataset]] = {
    "repeat": lambda dataset, step: dataset.repeat(step.number),
    "shuffle": _real_shuffle,
    "take": lambda dataset, step: dataset.take(step.number),
    "skip": lambda dataset, step: dataset.skip(step.number),
    "batch": lambda dataset, step: dataset.batch(step.number, drop_remainder=step.drop_remainder),
    "map": _real_map,
    "filter": lambda dataset, step: _real_map(dataset, step, filters=True),
    "cache": lambda dataset, step: dataset.cache(),
    "prefetch": lambda dataset, step: dataset.prefetch(1),
}
