"""What a `T*` parameter is while the body of a tf_computation is traced: a dataset's look-alike.

It is no `tf.data.Dataset`: AutoGraph takes the first class of its registry that an object is an instance of, and
the handler of real datasets stands there already. So `for x in ds` becomes a while loop that draws by index.
"""

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.operators import control_flow, py_builtins  # where `for` and `len` are looked up

from fedcore.errors import TracingError, brief
from fedcore.graphs.values import to_python
from fedcore.types import Type, to_type

Convert = Callable[[Callable], Callable]

_MOST_NEXTS = 10_000
_UNREADABLE = (
    "a sequence is iterated in Python code whose source cannot be read, so that its loop cannot become a part of the "
    "graph; use .reduce(), or put the function into a file"
)


class LookAlike:
    """A sequence as the user's function sees it: `for`, `iter`, `reduce`, `map`, `take`, `batch` and the like.

    Args:
        count: int64 scalar.
        at: index (int64 scalar) -> element in the user's containers.
        element_spec: of tensors in the same containers.
        convert: makes Python control flow in functions given to `map` and `reduce` part of the graph.
    """

    # No attrs class: a tf.function that is given one would take it apart.

    def __init__(self, count: tf.Tensor, at: Callable, element_spec, convert: Convert):
        self.count = count
        self.at = at
        self.element_spec = element_spec
        self.convert = convert

    @classmethod
    def of(cls, sequence, element: Type, specs, convert: Convert) -> "LookAlike":
        """The look-alike of a sequence inside a graph (`count`, and `element`: index -> nested tuple)."""
        return cls(
            sequence.count, lambda i: to_python(sequence.element(i), element), to_python(specs, element), convert
        )

    def __iter__(self) -> "LookAlikeIterator":
        if ag_ctx.control_status_ctx().status is not ag_ctx.Status.ENABLED:
            raise TracingError(_UNREADABLE)
        return LookAlikeIterator(self, tf.Variable(tf.constant(0, tf.int64), trainable=False))

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
        fn = self.convert(reduce_func)
        state = tf.nest.map_structure(tf.convert_to_tensor, initial_state)

        def body(i, state):
            after = fn(state, self.at(i))
            tf.nest.assert_same_structure(state, after, check_types=False)
            return i + 1, tf.nest.pack_sequence_as(state, tf.nest.flatten(after))

        shapes = self._shapes_of_state(fn, state)
        first = tf.constant(0, tf.int64)
        invariants = (first.shape, shapes)
        _, out = tf.while_loop(lambda i, _: i < self.count, body, (first, state), shape_invariants=invariants)
        return out

    def _shapes_of_state(self, fn: Callable, state):
        """The shapes that hold before and after every step."""
        while True:
            specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, state)
            step = tf.function(lambda i, state: fn(state, self.at(i)), autograph=False)
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

    def map(self, map_func, num_parallel_calls=None, deterministic=None, name=None, **options) -> "LookAlike":
        """Applies a function to elements as they are drawn; a tuple is spread over its parameters."""
        fn = self.convert(map_func)

        def at(i):
            element = self.at(i)
            return fn(*element) if isinstance(element, tuple) else fn(element)

        specs = tf.function(at, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64)).structured_outputs
        return self._with(at=at, element_spec=tf.nest.map_structure(tf.TensorSpec.from_tensor, specs))

    def enumerate(self, start=0, name=None) -> "LookAlike":
        spec = (tf.TensorSpec([], tf.int64), self.element_spec)
        return self._with(at=lambda i: (i + tf.cast(start, tf.int64), self.at(i)), element_spec=spec)

    def take(self, count, name=None) -> "LookAlike":
        wanted = tf.cast(count, tf.int64)
        return self._with(count=tf.where(wanted < 0, self.count, tf.minimum(wanted, self.count)))

    def skip(self, count, name=None) -> "LookAlike":
        wanted = tf.cast(count, tf.int64)
        left = tf.where(wanted < 0, tf.zeros_like(wanted), tf.maximum(self.count - wanted, 0))
        return self._with(count=left, at=lambda i: self.at(i + wanted))

    def repeat(self, count=None, name=None) -> "LookAlike":
        if count is None:
            raise TracingError("a sequence inside a tf_computation is repeated a number of times: repeat(n)")
        times = tf.cast(count, tf.int64)
        return self._with(count=self.count * times, at=lambda i: self.at(i % tf.maximum(self.count, 1)))

    def shuffle(self, buffer_size=None, seed=None, reshuffle_each_iteration=True, name=None) -> "LookAlike":
        """A uniform permutation of all elements, drawn where this stands."""
        order = tf.random.shuffle(tf.range(self.count), seed=seed)
        return self._with(at=lambda i: self.at(order[i]))

    def batch(self, batch_size, drop_remainder=False, num_parallel_calls=None, deterministic=None, name=None):
        """Groups elements in a row; the last group may be smaller."""
        size = tf.cast(batch_size, tf.int64)
        count = self.count // size if drop_remainder else -(-self.count // size)

        def at(i):
            indices = tf.range(i * size, tf.minimum((i + 1) * size, self.count))
            return tf.map_fn(self.at, indices, fn_output_signature=self.element_spec)

        def grouped(spec):
            return tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype)

        return self._with(count=count, at=at, element_spec=tf.nest.map_structure(grouped, self.element_spec))

    def prefetch(self, buffer_size=None, name=None) -> "LookAlike":
        return self

    def cache(self, filename="", name=None) -> "LookAlike":
        return self

    def _with(self, **changes) -> "LookAlike":
        return LookAlike(**{**vars(self), **changes})


class LookAlikeIterator:
    """`iter` of a look-alike: its place is a variable, so that it goes on where it stood, in loops too."""

    def __init__(self, sequence: LookAlike, place: tf.Variable):
        self.sequence = sequence
        self.place = place
        self.drawn = 0

    def __iter__(self) -> "LookAlikeIterator":
        return self

    def __next__(self):
        self.drawn += 1
        if self.drawn > _MOST_NEXTS:  # a `for` that AutoGraph has not seen would never end
            raise TracingError(_UNREADABLE)
        index = self.place.read_value()
        past_end = tf.debugging.Assert(index < self.sequence.count, ["next() after the end of a sequence", index])
        with tf.control_dependencies([past_end] if past_end is not None else []):
            index = tf.identity(index)
        self.place.assign_add(1)
        return self.sequence.at(index)

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
        drawn = tf.cond(more, lambda: self.sequence.at(index), lambda: other)
        self.place.assign_add(tf.cast(more, tf.int64))
        return drawn


def _for(iterated, extra_test, body, get_state, set_state, symbol_names, opts) -> None:
    """AutoGraph's `for` over a look-alike: a while loop whose first state is the index."""
    sequence = iterated
    first = tf.constant(0, tf.int64)
    if isinstance(iterated, LookAlikeIterator):
        sequence, first = iterated.sequence, iterated.place.read_value()
        iterated.place.assign(sequence.count)
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
        body(sequence.at(index))
        index += 1

    control_flow._tf_while_stmt(test, step, whole_state, set_whole_state, ("<index>", *symbol_names), opts)


def _next(iterator, *default):
    """`next` of converted code: ours for our iterators, Python's for all others."""
    if isinstance(iterator, LookAlikeIterator) and default:
        return iterator.next_or(*default)
    return next(iterator, *default)


def _enumerated(sequence: LookAlike, start=0):
    return sequence.enumerate(start)


control_flow.for_loop_registry.register(LookAlike, _for)
control_flow.for_loop_registry.register(LookAlikeIterator, _for)
py_builtins.enumerate_registry.register(LookAlike, _enumerated)
py_builtins.len_registry.register(LookAlike, LookAlike.cardinality)
# TensorFlow has a registry for `next`, and does not convert the call that would look there.
if next not in py_builtins.SUPPORTED_BUILTINS:
    py_builtins.SUPPORTED_BUILTINS += (next,)
    py_builtins.BUILTIN_FUNCTIONS_MAP["next"] = _next
