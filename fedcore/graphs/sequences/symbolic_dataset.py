"""What a `T*` parameter is while the body of a tf_computation is traced: a dataset's look-alike.

It is no `tf.data.Dataset`: AutoGraph takes the first class of its registry that an object is an instance of, and
the handler of real datasets stands there already. So `for x in ds` becomes a while loop that draws by index.
"""

import inspect
from collections.abc import Callable

import tensorflow as tf

from fedcore.errors import TracingError, brief
from fedcore.graphs import private_api
from fedcore.graphs.sequences.reading_order import UNKNOWN
from fedcore.graphs.tensors.values import to_python
from fedcore.types import Type, to_type

Convert = Callable[[Callable], Callable]

_MOST_NEXTS = 10_000
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
"""Methods of `tf.data.Dataset` that mean nothing inside a graph, and what to do."""


class SymbolicDataset:
    """A sequence as the user's function sees it: `for`, `iter`, `reduce`, `map`, `take`, `batch` and the like.

    All other methods of `tf.data.Dataset`, and a shuffle with a seed, make a real dataset inside the graph.

    Args:
        count: int64 scalar.
        at: index (int64 scalar), and what was samples -> element in the user's containers.
        element_spec: of tensors in the same containers.
        convert: makes Python control flow in functions given to `map` and `reduce` part of the graph.
        draw: gives the orders of one iteration. Default: nothing is samples.
        sample_specs: of what it gives.
        as_real: the same as a real dataset, where something is samples.
    """

    # No attrs class: a tf.function that is given one would take it apart.

    def __init__(
        self,
        count: tf.Tensor,
        element_at: Callable,
        element_spec,
        convert: Convert,
        sample: Callable[[], tuple] = tuple,
        sample_specs: tuple = (),
        as_real: Callable[[], tf.data.Dataset] | None = None,
    ):
        self.count = count
        self.element_at = element_at
        self.element_spec = element_spec
        self.convert = convert
        self.sample = sample
        self.sample_specs = sample_specs
        self.as_real = as_real

    @classmethod
    def of(cls, sequence, element: Type, specs, convert: Convert) -> "SymbolicDataset":
        """The look-alike of a sequence inside a graph (`count`, and `element`: index -> nested tuple)."""
        return cls(
            sequence.count, lambda i, _: to_python(sequence.element(i), element), to_python(specs, element), convert
        )

    def sampled(self) -> "SymbolicDataset":
        """One iteration: every shuffle has its order."""
        if not self.sample_specs:
            return self
        samples = self.sample()
        return SymbolicDataset(self.count, lambda i, _: self.element_at(i, samples), self.element_spec, self.convert)

    def element(self, index: tf.Tensor):
        """The element at a place of an iteration; see `samples`."""
        return self.element_at(index, ())

    def real(self) -> tf.data.Dataset:
        """The same as a dataset of `tf.data` in the graph."""
        if self.as_real is not None:
            return self.as_real()
        return tf.data.Dataset.range(self.count).map(self.element)

    @property
    def _variant_tensor(self) -> tf.Tensor:  # where a real dataset takes another one, as in `concatenate`
        return self.real()._variant_tensor

    def __getattr__(self, name: str):
        if name.startswith("_") or not hasattr(tf.data.Dataset, name):
            raise AttributeError(f"a sequence inside a graph has no {name!r}, nor has tf.data.Dataset")
        if name in _REFUSED:
            raise TracingError(f"a sequence inside a graph has no .{name}(): {_REFUSED[name]}")

        def method(*arguments, **keywords):
            given = [self._given(x) for x in arguments]
            return getattr(self.real(), name)(*given, **{k: self._given(x) for k, x in keywords.items()})

        return method

    def _given(self, argument):
        """An argument of a real dataset's method."""
        if isinstance(argument, SymbolicDataset):
            return argument.real()
        if isinstance(argument, list | tuple | dict):
            return tf.nest.map_structure(self._given, argument)
        return self.convert(argument) if inspect.isfunction(argument) else argument

    def apply(self, transformation_func: Callable):
        return transformation_func(self)

    def __iter__(self) -> "SymbolicIterator":
        if not private_api.is_autograph_on():
            raise TracingError(_UNREADABLE)
        return SymbolicIterator(self.sampled(), tf.Variable(tf.constant(0, tf.int64), trainable=False))

    def __len__(self):
        raise TracingError(
            "how many elements a sequence has is not known while it is traced; .cardinality() is a tensor"
        )

    def __getitem__(self, index):
        raise TracingError("the elements of a sequence have no index: .skip(n).take(1) is a sequence of the one at n")

    def cardinality(self) -> tf.Tensor:
        return self.count

    def reduce(self, initial_state, reduce_func, name=None):
        """Folds the elements in order; a size that changes on the way becomes unknown, as in `tf.data`."""
        fn, one = self.convert(reduce_func), self.sampled()
        state = tf.nest.map_structure(tf.convert_to_tensor, initial_state)

        def body(i, state):
            after = fn(state, one.element(i))
            tf.nest.assert_same_structure(state, after, check_types=False)
            return i + 1, tf.nest.pack_sequence_as(state, tf.nest.flatten(after))

        shapes = one._shapes_of_state(fn, state)
        first = tf.constant(0, tf.int64)
        invariants = (first.shape, shapes)
        _, out = tf.while_loop(lambda i, _: i < self.count, body, (first, state), shape_invariants=invariants)
        return out

    def _shapes_of_state(self, fn: Callable, state):
        """The shapes that hold before and after every step."""
        while True:
            specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, state)
            step = tf.function(lambda i, state: fn(state, self.element(i)), autograph=False)
            after = step.get_concrete_function(tf.TensorSpec([], tf.int64), specs).structured_outputs
            tf.nest.assert_same_structure(state, after, check_types=False)
            shapes = [
                a.shape.most_specific_compatible_shape(b.shape)
                for a, b in zip(tf.nest.flatten(state), tf.nest.flatten(after), strict=True)
            ]
            if shapes == [t.shape for t in tf.nest.flatten(state)]:
                return tf.nest.pack_sequence_as(state, shapes)
            tensors = zip(tf.nest.flatten(state), shapes, strict=True)
            relaxed = [tf.compat.v1.placeholder_with_default(t, shape) for t, shape in tensors]
            state = tf.nest.pack_sequence_as(state, relaxed)

    def map(self, map_func, num_parallel_calls=None, deterministic=None, name=None, **options) -> "SymbolicDataset":
        """Applies a function to elements as they are samples; a tuple is spread over its parameters."""
        fn = self.convert(map_func)

        def element_at(i, samples):
            element = self.element_at(i, samples)
            return fn(*element) if type(element) is tuple else fn(element)  # as tf.data: no named tuple

        traced = tf.function(element_at, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int64), self.sample_specs
        )
        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, traced.structured_outputs)
        return self._with(lambda d: d.map(fn), element_at=element_at, element_spec=specs)

    def enumerate(self, start=0, name=None) -> "SymbolicDataset":
        spec = (tf.TensorSpec([], tf.int64), self.element_spec)

        def element_at(i, samples):
            return i + tf.cast(start, tf.int64), self.element_at(i, samples)

        return self._with(lambda d: d.enumerate(start), element_at=element_at, element_spec=spec)

    def take(self, count, name=None) -> "SymbolicDataset":
        wanted = tf.cast(count, tf.int64)
        left = tf.where(wanted < 0, self.count, tf.minimum(wanted, self.count))
        return self._with(lambda d: d.take(count), count=left)

    def skip(self, count, name=None) -> "SymbolicDataset":
        wanted = tf.cast(count, tf.int64)
        left = tf.where(wanted < 0, tf.zeros_like(wanted), tf.maximum(self.count - wanted, 0))
        return self._with(
            lambda d: d.skip(count), count=left, element_at=lambda i, samples: self.element_at(i + wanted, samples)
        )

    def repeat(self, count=None, name=None) -> "SymbolicDataset":
        """Goes through the elements `count` times; a shuffle that reshuffles has an order for each of them."""
        static = -1 if count is None else tf.get_static_value(count)
        if static is not None and static < 0:
            raise TracingError("a sequence inside a tf_computation is repeated a number of times: repeat(n)")
        times, once = tf.cast(count, tf.int64), tf.maximum(self.count, 1)
        if not self.sample_specs:
            return self._with(None, count=self.count * times, element_at=lambda i, _: self.element_at(i % once, ()))

        def sample():
            epochs = tf.range(tf.maximum(times, 1))
            return tf.map_fn(lambda _: self.sample(), epochs, fn_output_signature=self.sample_specs)

        def element_at(i, samples):
            return self.element_at(i % once, tuple(orders[i // once] for orders in samples))

        specs = tuple(tf.TensorSpec([None, *s.shape], s.dtype) for s in self.sample_specs)
        return self._with(
            lambda d: d.repeat(count),
            count=self.count * times,
            element_at=element_at,
            sample=sample,
            sample_specs=specs,
        )

    def shuffle(self, buffer_size=None, seed=None, reshuffle_each_iteration=True, name=None):
        """Changes the order of the elements.

        With a seed as `tf.data` does, by a real dataset in the graph. Without a seed the call's decides: a uniform
        permutation of all elements, samples anew for each iteration, or here without `reshuffle_each_iteration`.
        """
        size = tf.maximum(self.count, 1) if buffer_size is None else buffer_size
        static = tf.get_static_value(size)
        if static is not None and static < 1 and static != UNKNOWN:
            raise TracingError(f"the buffer of a shuffle holds at least one element, not {static}")
        if seed is not None:
            return self.real().shuffle(size, seed=seed, reshuffle_each_iteration=reshuffle_each_iteration)
        if reshuffle_each_iteration is False:
            order = tf.random.shuffle(tf.range(self.count))
            # What is samples anew before it is samples anew after it, too.
            return self._with(
                lambda d: d.shuffle(size), element_at=lambda i, samples: self.element_at(order[i], samples)
            )
        return self._with(
            None,
            element_at=lambda i, samples: self.element_at(samples[0][i], samples[1:]),
            sample=lambda: (tf.random.shuffle(tf.range(self.count)), *self.sample()),
            sample_specs=(tf.TensorSpec([None], tf.int64), *self.sample_specs),
            as_real=lambda: self.real().shuffle(size),
        )

    def batch(self, batch_size, drop_remainder=False, num_parallel_calls=None, deterministic=None, name=None):
        """Groups elements in a row; the last group may be smaller."""
        static = tf.get_static_value(batch_size)
        if static is not None and static < 1:
            raise TracingError(f"a batch has at least one element, not {static}")
        size = tf.cast(batch_size, tf.int64)
        count = self.count // size if drop_remainder else -(-self.count // size)

        def element_at(i, samples):
            indices = tf.range(i * size, tf.minimum((i + 1) * size, self.count))
            return tf.map_fn(lambda k: self.element_at(k, samples), indices, fn_output_signature=self.element_spec)

        def grouped(spec):
            return tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype)

        specs = tf.nest.map_structure(grouped, self.element_spec)
        return self._with(
            lambda d: d.batch(batch_size, drop_remainder), count=count, element_at=element_at, element_spec=specs
        )

    def prefetch(self, buffer_size=None, name=None) -> "SymbolicDataset":
        return self

    def cache(self, filename="", name=None) -> "SymbolicDataset":
        """Keeps the order of the elements, where that is samples."""
        if filename:
            raise TracingError("a sequence inside a graph is not cached in a file: .cache() keeps it in memory")
        return self.sampled()

    def _with(self, step: Callable[[tf.data.Dataset], tf.data.Dataset] | None, **changes) -> "SymbolicDataset":
        """One step further.

        Args:
            step: over the real dataset, where something is samples.
        """
        if self.as_real is not None and step is not None:
            changes["as_real"] = lambda: step(self.real())
        return SymbolicDataset(**{**vars(self), **changes})


class SymbolicIterator:
    """`iter` of a look-alike: its place is a variable, so that it goes on where it stood, in loops too."""

    def __init__(self, sequence: SymbolicDataset, place: tf.Variable):
        self.sequence = sequence
        self.place = place
        self.calls = 0

    def __iter__(self) -> "SymbolicIterator":
        return self

    def __next__(self):
        self.calls += 1
        if self.calls > _MOST_NEXTS:  # a `for` that AutoGraph has not seen would never end
            raise TracingError(_UNREADABLE)
        index = self.place.read_value()
        past_end = tf.debugging.Assert(index < self.sequence.count, ["next() after the end of a sequence", index])
        with tf.control_dependencies([past_end] if past_end is not None else []):
            index = tf.identity(index)
        self.place.assign_add(1)
        return self.sequence.element(index)

    def next_or(self, default):
        """The next element, or `default` after the last one, again and again."""
        specs = self.sequence.element_spec
        try:
            tf.nest.assert_same_structure(specs, default, check_types=False)
            leaves = zip(tf.nest.flatten(default), tf.nest.flatten(specs), strict=True)
            other = tf.nest.pack_sequence_as(specs, [tf.convert_to_tensor(x, spec.dtype) for x, spec in leaves])
        except (TypeError, ValueError) as error:
            wanted = to_type(specs)
            raise TracingError(
                f"next(iterator, {brief(default)}): in a graph the default is of the type of the elements, {wanted}: "
                f"{error}"
            ) from None
        index = self.place.read_value()
        more = index < self.sequence.count
        samples = tf.cond(more, lambda: self.sequence.element(index), lambda: other)
        self.place.assign_add(tf.cast(more, tf.int64))
        return samples


def _for(iterated, extra_test, body, get_state, set_state, symbol_names, opts) -> None:
    """AutoGraph's `for` over a look-alike: a while loop whose first state is the index."""
    first = tf.constant(0, tf.int64)
    if isinstance(iterated, SymbolicIterator):
        sequence, first = iterated.sequence, iterated.place.read_value()
        iterated.place.assign(sequence.count)
    else:
        sequence = iterated.sampled()
    index = first

    def whole_state():
        return (index, *get_state())

    def set_whole_state(state):
        nonlocal index
        index, *rest = state
        set_state(rest)

    def test():
        more = index < sequence.count
        return more if extra_test is None else tf.cond(more, extra_test, lambda: False)

    def step():
        nonlocal index
        body(sequence.element(index))
        index += 1

    private_api.while_statement()(test, step, whole_state, set_whole_state, ("<index>", *symbol_names), opts)


def next_element(iterator, *default):
    """`next` of converted code: ours for our iterators, Python's for all others."""
    if isinstance(iterator, SymbolicIterator) and default:
        return iterator.next_or(*default)
    return next(iterator, *default)


def _enumerated(sequence: SymbolicDataset, start=0):
    return sequence.enumerate(start)


private_api.register_for(SymbolicDataset, _for)
private_api.register_for(SymbolicIterator, _for)
private_api.register_builtins(SymbolicDataset, length=SymbolicDataset.cardinality, enumerated=_enumerated)
private_api.replace_next(next_element)
