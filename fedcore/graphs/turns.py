"""A counted loop, built of TensorFlow's own loop operations where it stands.

`tf.while_loop` makes a function of its body: each of its constants and whatever it computes of values from outside is
handled again in every turn, and those values go around with the state. Of a body built in place only what depends on
something that changes is in the loop.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from fedcore.graphs.trace import called

AT_ONCE = 10
"""Turns that may overlap: TensorFlow's own default."""


def turned(turn: Callable, times: tf.Tensor, start: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The state after so many turns.

    Args:
        turn: (its number, *state) -> the state after it, of the same shapes. It has no effects, and what it builds
            waits for nothing but its operands.
        times: int64.
    """
    operands = [times, *start]
    # tf.function would have everything behind a loop wait for operations within it; this does not.
    wrapped = tf.compat.v1.wrap_function(
        lambda times, *start: _Loop(times, start).closed(turn), [tf.TensorSpec(t.shape, t.dtype) for t in operands]
    )
    # TensorFlow cannot copy one such loop into another.
    return called(wrapped, operands)


class _Loop:
    """One loop in the graph being built: its state before a turn is that merged from the start and the turn before."""

    def __init__(self, times: tf.Tensor, start: Sequence[tf.Tensor]):
        self._graph = tf.compat.v1.get_default_graph()
        self._frame = self._graph.unique_name("turns")
        self._start = [tf.constant(0, tf.int64), *start]
        self._merged = [tf.raw_ops.Merge(inputs=[t, t]).output for t in map(self._entered, self._start)]
        more = tf.raw_ops.LoopCond(input=self._merged[0] < self._entered(times, constant=True))
        parts = [tf.raw_ops.Switch(data=t, pred=more) for t in self._merged]
        self._state = [_shaped(p.output_true, t) for p, t in zip(parts, self._start, strict=True)]
        self._left = [p.output_false for p in parts]

    def _entered(self, tensor: tf.Tensor, *, constant: bool = False) -> tf.Tensor:
        found = tf.raw_ops.Enter(data=tensor, frame_name=self._frame, is_constant=constant, parallel_iterations=AT_ONCE)
        return _shaped(found, tensor)

    def closed(self, turn: Callable) -> list[tf.Tensor]:
        before = len(self._graph.get_operations())
        number, *state = self._state
        after = [number + 1, *turn(number, *state)]
        # What a turn passes on as it is never changes, so it does not go around.
        changing = [i for i, (a, b) in enumerate(zip(after, self._state, strict=True)) if a is not b]
        following = {i: tf.raw_ops.NextIteration(data=after[i]) for i in changing}
        self._enter_what_stays(self._graph.get_operations()[before:], following)
        for i, tensor in following.items():
            self._merged[i].op._update_input(1, tensor)  # closes the circle, which no public operation can
        ends = {i: _shaped(tf.raw_ops.Exit(data=self._left[i]), self._start[i]) for i in changing}
        return [tf.identity(ends.get(i, start)) for i, start in enumerate(self._start)][1:]

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
                    op._update_input(i, new)


def _shaped(tensor: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    tensor.set_shape(like.shape)
    return tensor
