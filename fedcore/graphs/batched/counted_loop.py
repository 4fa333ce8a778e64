"""A counted loop, built of TensorFlow's own loop operations where it stands.

`tf.while_loop` makes a function of its body: each of its constants and whatever it computes of values from outside is
handled again in every turn, and those values go around with the state. Of a body built in place only what depends on
something that changes is in the loop; and totals that nothing else in it reads, as metrics are, go around as one.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.batched.client_select import chosen
from fedcore.graphs.capture.graph_import import called
from fedcore.graphs.graphdef.grappler import without_function_optimisation

AT_ONCE = 10
"""Turns that may overlap, as TensorFlow has it."""


def counted_loop(
    turn: Callable, times: tf.Tensor, start: Sequence[tf.Tensor], *, at_once: int = AT_ONCE
) -> list[tf.Tensor]:
    """The state after so many turns.

    Args:
        turn: (its number, *state) -> the state after it, of the same shapes; and bool [K], for which rows of the state
            the turn counts, or None where it counts for all. It has no effects, and what it builds waits for nothing
            but its operands.
        times: int64.
        at_once: turns that may overlap.
    """
    operands = [times, *start]
    # tf.function would have everything behind a loop wait for operations within it; this does not.
    wrapped = tf.compat.v1.wrap_function(
        lambda times, *start: _Loop(times, start, at_once).closed(turn),
        [tf.TensorSpec(t.shape, t.dtype) for t in operands],
    )
    # TensorFlow cannot copy one such loop into another; and its arithmetic has x + x wait for what gave x, which in a
    # loop's last turn is done without giving anything.
    with without_function_optimisation():
        return called(wrapped, operands)


class _Loop:
    """One loop in the graph being built: its state before a turn is that merged from the start and the turn before."""

    def __init__(self, times: tf.Tensor, start: Sequence[tf.Tensor], at_once: int):
        self._graph = tf.compat.v1.get_default_graph()
        self._frame = self._graph.unique_name("turns")
        self._at_once = at_once
        self._start: list[tf.Tensor] = []
        self._merged: list[tf.Tensor] = []
        self._state: list[tf.Tensor] = []
        self._left: list[tf.Tensor] = []
        number = self._merge(tf.constant(0, tf.int64))
        self._more = tf.raw_ops.LoopCond(input=number < self._entered(times, constant=True))
        self._switch()
        for tensor in start:
            self._goes_around(tensor)

    def _merge(self, start: tf.Tensor) -> tf.Tensor:
        entered = self._entered(start)
        self._start.append(start)
        self._merged.append(tf.raw_ops.Merge(inputs=[entered, entered]).output)
        return self._merged[-1]

    def _switch(self) -> tf.Tensor:
        left, stays = tf.raw_ops.Switch(data=self._merged[-1], pred=self._more)
        self._left.append(left)
        self._state.append(_shaped(stays, self._start[-1]))
        return self._state[-1]

    def _goes_around(self, start: tf.Tensor) -> tf.Tensor:
        """The state before a turn of what is this before the first."""
        self._merge(start)
        return self._switch()

    def _entered(self, tensor: tf.Tensor, *, constant: bool = False) -> tf.Tensor:
        found = tf.raw_ops.Enter(
            data=tensor, frame_name=self._frame, is_constant=constant, parallel_iterations=self._at_once
        )
        return _shaped(found, tensor)

    def closed(self, turn: Callable) -> list[tf.Tensor]:
        built: list[tf.Operation] = []
        count = len(self._state)
        with self._building(built):
            following, going = turn(*self._state)
            after = [self._state[0] + 1, *following]
            joined = self._totals(after)
        for added in joined:
            self._goes_around(tf.stack([self._start[i] for i in added], -1))
        with self._building(built):
            for state, added in zip(self._state[count:], joined, strict=True):
                after.append(state + tf.stack([*added.values()], -1))
                for i in added:
                    after[i] = self._state[i]
            if going is not None:
                after[1:] = chosen(going, after[1:], self._state[1:])
        # What a turn passes on as it is never changes, so it does not go around.
        changing = [i for i, (a, b) in enumerate(zip(after, self._state, strict=True)) if a is not b]
        nexts = {i: tf.raw_ops.NextIteration(data=after[i]) for i in changing}
        self._enter_what_stays([*built, *(t.op for t in nexts.values())], nexts)
        for i, tensor in nexts.items():
            private_api.set_input(self._merged[i].op, 1, tensor)  # closes the circle
        ends = {i: _shaped(tf.raw_ops.Exit(data=self._left[i]), self._start[i]) for i in changing}
        for i, added in enumerate(joined, count):
            ends.update(zip(added, tf.unstack(ends[i], axis=-1), strict=True))
        return [tf.identity(ends.get(i, start)) for i, start in enumerate(self._start[:count])][1:]

    @contextlib.contextmanager
    def _building(self, built: list[tf.Operation]) -> Iterator[None]:
        """Adds the operations made meanwhile."""
        before = len(self._graph.get_operations())
        yield
        built.extend(self._graph.get_operations()[before:])

    def _totals(self, after: list[tf.Tensor]) -> list[dict[int, tf.Tensor]]:
        """Of the state what a turn only adds to, and what it adds; those of a shape and type together."""
        found: dict[object, dict[int, tf.Tensor]] = {}
        times = collections.Counter(t.ref() for t in after)
        for i, (tensor, before) in enumerate(zip(after, self._state, strict=True)):
            alone = times[tensor.ref()] == 1 and not times[before.ref()]
            added = _added(tensor, before) if alone and tensor.shape.rank == 1 else None
            if added is not None:
                whole = added if added.shape == tensor.shape else tf.broadcast_to(added, tensor.shape)
                found.setdefault((tensor.dtype, tensor.shape[0]), {})[i] = whole
        return [added for added in found.values() if len(added) > 1]

    def _enter_what_stays(self, built: list[tf.Operation], following: dict[int, tf.Tensor]) -> None:
        """Operations that reach nothing that changes stay outside; the others take what those give entered."""
        pairs = enumerate(zip(self._state, self._start, strict=True))
        passed_on = {state.ref(): start for i, (state, start) in pairs if i not in following}
        turning = {self._state[i].op for i in following} | {t.op for t in following.values()}
        entered: dict = {}
        for op in built:
            taken = [passed_on.get(t.ref(), t) for t in op.inputs]
            if op in turning or any(t.op in turning for t in taken):
                turning.add(op)
                for t in taken:
                    if t.op not in turning and t.ref() not in entered:
                        entered[t.ref()] = self._entered(t, constant=True)
                taken = [entered.get(t.ref(), t) for t in taken]
            for i, (new, old) in enumerate(zip(taken, op.inputs, strict=True)):
                if new is not old:
                    private_api.set_input(op, i, new)


def _shaped(tensor: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    tensor.set_shape(like.shape)
    return tensor


def _added(total: tf.Tensor, before: tf.Tensor) -> tf.Tensor | None:
    """What was added to the total before, if nothing else was made of that, nor of the total after."""
    if total.op.type != "AddV2" or before.consumers() != [total.op] or total.consumers():
        return None
    x, y = total.op.inputs
    return None if x is y else y if x is before else x
