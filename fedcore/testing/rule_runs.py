"""One case of a batching rule in one layout: batched runs, compared with clients alone."""

import functools
import traceback
from collections.abc import Container, Sequence

import attrs
import ml_dtypes
import numpy as np
import tensorflow as tf

from fedcore.compiler.host_target import host_target
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding
from fedcore.graphs.batched.batching_policy import ISAS_OF_EQUAL_ROWS
from fedcore.testing.laws import REFUSALS, LawBroken
from fedcore.testing.rule_cases import CLIENTS, REFUSED, Operand, RuleCase
from fedcore.testing.rule_layouts import Form, Layout, Place
from fedcore.testing.rule_subjects import BatchedRun, Results, Subject, run_batched, shown_path
from fedcore.testing.values import has_bits_of, special_values

WIDTHS = (2, 3, 8)
"""Numbers of clients that are in their own lanes. With 3 values a client, 2 and 3 do not fill a vector register."""

SHIFT = 3
"""Clients that one run leaves out: the others move to lower lanes."""

IDLE = frozenset({3, 7})
"""Clients that are absent in that run, unless they have batches."""

MORE_ROWS = 37
"""Rows by which padded batches are made longer."""

MOST_DIFFERENCE = 0.03
"""Difference of floats that counts as rounding at most, relative to the largest."""

MOST_AT_ONCE = 200
"""Batched runs of one TensorFlow function."""

MOST_ENTRIES_SHOWN = 40
FIRST_ENTRIES_SHOWN = 12
"""How many entries messages show of an array that has more than `MOST_ENTRIES_SHOWN`."""

_NOT_FROM_THE_RULE = (
    *("/fedcore/graphs/dataflow/", "/fedcore/graphs/emission/", "/fedcore/graphs/private_api", "/tensorflow/"),
    *("/fedcore/graphs/batched/evaluation.py", "/fedcore/testing/rule_", "/fedcore/lru_cache.py"),
)

Result = tuple[np.ndarray, BatchedValue]


@attrs.frozen
class _Key:
    """A batched run.

    Args:
        lanes: the client in each lane.
        rows: to which batches are padded; None: as the layout says.
        idle: clients whose lanes hold garbage, as those of absent clients do.
    """

    lanes: tuple[int, ...]
    rows: int | None = None
    idle: frozenset[int] = frozenset()


_EVERYBODY = _Key(tuple(range(CLIENTS)))
_FIRST = _Key(tuple(range(5)))


@attrs.frozen
class Client:
    """A client in a batched run.

    Args:
        number: among the clients of the case.
        lane, width: its place, and the number of clients of the run.
    """

    number: int
    lane: int
    width: int

    def __str__(self) -> str:
        return f"client {self.number}, in lane {self.lane} of {self.width}"


@attrs.frozen(eq=False)
class Run:
    """Batched runs of one case in one layout; `run_all` runs them.

    Raises:
        LawBroken: a client has other results than alone, or other bits than in another run.
        NoBatchingRule: the rule refuses the layout.
    """

    subject: Subject
    case: RuleCase
    layout: Layout
    _outcomes: dict["_Key", Results | Exception] = attrs.field(factory=dict, init=False)
    _results_alone: dict[int, list[np.ndarray] | None] = attrs.field(factory=dict, init=False)

    def check(self) -> None:
        """Each client has what it has alone, and bits that depend neither on the others, its lane nor the padding."""
        for key in self._keys():
            outcome = self._outcomes[key]
            is_refusal = isinstance(outcome, REFUSALS) and not isinstance(outcome, NoBatchingRule)
            if self.case.spread == REFUSED and is_refusal:
                continue
            results = self._results(key)
            for lane, k in enumerate(key.lanes):
                if k in key.idle:
                    continue
                client = Client(k, lane, len(key.lanes))
                if key.rows is None:
                    self._check_client(results, client)
                if self.layout.rows is None or self.layout.padding is Padding.COPIES:
                    of = "" if key.rows is None else f", of batches padded to {key.rows} rows"
                    self._compare_bits(self._results(_EVERYBODY), results, client, of)

    # --- runs ---

    def _keys(self) -> list["_Key"]:
        """The batched runs of the layout, those of few clients first."""
        if self.case.is_variation or self.case.spread != "small":  # other cases tell whether bits depend on others
            return [_EVERYBODY]
        if self.layout.rows is not None and self.layout.padding is not Padding.COPIES:
            return [_FIRST]
        moved = _Key(tuple(range(SHIFT, CLIENTS)))
        if self.layout.rows is None:
            moved = attrs.evolve(moved, idle=IDLE)
        elif host_target().isa in ISAS_OF_EQUAL_ROWS:
            moved = attrs.evolve(moved, rows=self.layout.rows + MORE_ROWS)
        return [*(_Key(tuple(range(width))) for width in WIDTHS), moved]

    def _batched_run(self, key: "_Key") -> BatchedRun:
        """The operands and the layout of a batched run."""
        layout = self.layout if key.rows is None else attrs.evolve(self.layout, rows=key.rows)
        sizes = [self.layout.sizes[k] for k in key.lanes]
        idle = key.idle or {k for k in key.lanes if layout.rows is not None and not self.layout.sizes[k]}
        pairs = zip(self.case.operands, layout.places, strict=True)
        arrays = [_batched_array(o, p, layout, key.lanes, sizes, idle) for o, p in pairs]
        return BatchedRun(self.subject, arrays, layout, sizes, [k not in idle for k in key.lanes])

    def _results(self, key: "_Key") -> Results:
        """The results of a batched run that `run_all` has made.

        Raises:
            NoBatchingRule: the rule refuses the layout.
            LawBroken: the rule raises another error.
        """
        outcome = self._outcomes[key]
        if not isinstance(outcome, Exception):
            return outcome
        if not isinstance(outcome, NoBatchingRule):
            raise self._report_error(outcome) from outcome
        cause = outcome.__cause__
        if cause is None or (self.layout.rows is not None and _is_of_tensorflow(cause)):
            raise outcome
        raise self._report_error(cause) from outcome

    def _alone(self, client: int) -> list[np.ndarray] | None:
        """The results of a client alone; None if TensorFlow refuses its operands, and for an empty batch.

        Kernels of images end the process where there are none. Clients without rows are not read.
        """
        if self.layout.rows is not None and not self.layout.sizes[client]:
            return None
        if client not in self._results_alone:
            try:
                self._results_alone[client] = self.subject.alone(self._operands_of(client))
            except (tf.errors.OpError, ValueError):
                self._results_alone[client] = None
        return self._results_alone[client]

    def _report_error(self, error: BaseException) -> LawBroken:
        """The broken law for an error that a rule raises where it should refuse operands with `NoBatchingRule`.

        The error is of the whole run. It names client 0, since a law is reported for a client.
        """
        place = _innermost_place(error)
        what = f"it raises {type(error).__name__}{place}: {error}"
        if not isinstance(error, FedcoreError):
            what = f"{what.split(chr(10))[0][:300]}\nfix: raise NoBatchingRule for operands that it refuses"
        return self._broken("runs, or refuses operands", what, Client(0, 0, CLIENTS))

    def _operands_of(self, client: int) -> list[np.ndarray]:
        """The operands of a client alone, without padded rows."""
        arrays = []
        for operand, place in zip(self.case.operands, self.layout.places, strict=True):
            array = operand.of(client if place.form is Form.OWN else 0)
            if place.axis is not None:
                array = np.take(array, range(self.layout.sizes[client] * self.layout.entries_per_row), place.axis)
            arrays.append(array)
        return arrays

    # --- comparisons ---

    def _check_client(self, results: Results, client: Client) -> None:
        """Checks that a client's results in a batched run are those of the client alone, up to roundings."""
        alone = self._alone(client.number)
        if alone is None:
            return
        if len(results) != len(alone):
            what = f"it returns {len(results)} results; {self.subject.name} has {len(alone)}"
            raise self._broken("returns all results", what, client)
        for i, (result, want) in enumerate(zip(results, alone, strict=True)):
            label = f"result {i}" if len(alone) > 1 else "the result"
            have = self._own_entries(result, client, label)
            has_products = self.layout.rows is not None or self.case.spread == "large"
            if has_products and have.shape == want.shape and want.dtype.kind in "fcV":
                have = np.where(np.isfinite(have) | np.isfinite(want), have, want)  # such as 0 * inf
            problem = _difference(have, want, label, self.subject.roundings, self._scale)
            if problem is not None:
                what = f"{problem}\nbatched: {_format_array(have)}\nalone:   {_format_array(want)}"
                raise self._broken("gives each client what it has alone", what, client)
            self._check_padding(result, want, client, label)

    @functools.cached_property
    def _scale(self) -> float:
        """The size of floats, of which sums have roundings."""
        if self.case.spread != "large":
            return 1.0
        floats = [np.abs(o.array.astype(np.float64)) for o in self.case.operands if o.dtype.kind in "fV"]
        return max((float(f.max(initial=0)) for f in floats), default=1.0)

    def _own_entries(self, result: Result, client: Client, label: str) -> np.ndarray:
        """A client's result without padded rows."""
        array, value = result
        if value.batched and (not array.ndim or array.shape[0] != client.width):
            what = f"{label} is batched, so its first axis has the {client.width} clients; its shape is {array.shape}"
            raise self._broken("puts the client axis first", what, client)
        array = np.asarray(array[client.lane], array.dtype) if value.batched else array
        axis = value.padded_axis
        if axis is None:
            return array
        rows = self.layout.rows
        if rows is None:
            raise self._broken("pads no result without a batch", f"{label} has the padded axis {axis}", client)
        if array.ndim <= axis or array.shape[axis] % value.entries_per_row:
            what = (
                f"{label} has the padded axis {axis}, {value.entries_per_row} entries a row; its shape is {array.shape}"
            )
            raise self._broken("names the padded axis of its result", what, client)
        return np.take(array, range(self.layout.sizes[client.number] * value.entries_per_row), axis, mode="clip")

    def _check_padding(self, result: Result, want: np.ndarray, client: Client, label: str) -> None:
        """Checks that the padded rows of a client's result hold what its `Padding` says."""
        array, value = result
        if value.padded_axis is None:
            return
        array = array[client.lane] if value.batched else array
        rows = self.layout.sizes[client.number]
        own = rows * value.entries_per_row
        padded = np.take(array, range(own, array.shape[value.padded_axis]), value.padded_axis)
        if Padding.ZEROS in value.padding and padded.any():
            what = f"{label} says that its padded rows are zeros (Padding.ZEROS); they are\n{_format_array(padded)}"
            raise self._broken("says what its padded rows hold", what, client)
        if Padding.COPIES in value.padding and rows and _is_finite(want) and not _is_finite(padded):
            what = (
                f"{label} says that its padded rows are copies, or row-by-row results of copies "
                f"(Padding.COPIES); they are\n{_format_array(padded)}"
            )
            raise self._broken("says what its padded rows hold", what, client)

    def _compare_bits(self, reference: Results, results: Results, client: Client, of: str) -> None:
        """Checks that a client has the bits that it has in the run of all clients.

        Args:
            reference: the results of that run.
            of: text on the batches of `results`, for the message.
        """
        in_reference = Client(client.number, client.number, CLIENTS)
        for i, (result, want) in enumerate(zip(results, reference, strict=True)):
            label = f"result {i}" if len(results) > 1 else "the result"
            have = self._own_entries(result, client, label)
            expected = self._own_entries(want, in_reference, label)
            if have.dtype == object or has_bits_of(have, expected):
                continue
            index, entry, other = _first_difference(have, expected)
            what = (
                f"{label}{index} is {entry} in lane {client.lane} of {client.width}{of},\n"
                f"and {other} in lane {client.number} of {CLIENTS}\n"
                "fix: inexact operations take apply_in_packets or apply_rows_in_packets, sums reduce_aligned"
            )
            raise self._broken("gives a client the same bits beside any others", what, client)

    def _broken(self, law: str, what: str, client: Client) -> LawBroken:
        """The error that a law does not hold for a client, with the client's operands in its text."""
        lines = [str(client), *what.split("\n")]
        if self.case.attributes:
            attributes = {k: v for k, v in self.case.attributes.items() if not isinstance(v, tf.DType)}
            lines.append(f"attributes: {attributes}")
        if self.layout.rows is not None:
            rows, entries = self.layout.sizes[client.number], self.layout.entries_per_row
            each = f", {entries} entries each" if entries > 1 else ""
            lines.append(
                f"rows of the client: {rows} of {self.layout.rows}{each}; padded rows are {_content(self.layout)}"
            )
        alone = self._operands_of(client.number)
        for operand, place, array in zip(self.case.operands, self.layout.places, alone, strict=True):
            lines.append(f"{operand.name}: {place}, {_format_array(array)}")
        return LawBroken(f"{self.subject.title} {law}", "\n".join(lines))


def run_all(runs: Sequence[Run]) -> None:
    """Runs the batched runs of all layouts, many in one TensorFlow function, and notes the outcomes for `Run.check`."""
    requests = [(run, key) for run in runs for key in run._keys()]
    for i in range(0, len(requests), MOST_AT_ONCE):
        part = requests[i : i + MOST_AT_ONCE]
        outcomes = run_batched([run._batched_run(key) for run, key in part])
        for (run, key), outcome in zip(part, outcomes, strict=True):
            run._outcomes[key] = outcome


def _batched_array(
    operand: Operand, place: Place, layout: Layout, lanes: Sequence[int], sizes: Sequence[int], idle: Container[int]
) -> np.ndarray:
    """The operand of the clients in the lanes, garbage in those of idle clients; that of all where they share it."""
    if place.axis is None:
        if place.form is not Form.OWN:
            return operand.array[0]
        return np.stack(
            [_garbage_like(operand.of(k)) if k in idle and not operand.is_static else operand.of(k) for k in lanes]
        )
    assert layout.rows is not None
    count = layout.rows * layout.entries_per_row
    if place.form is not Form.OWN:
        return np.take(operand.array[0], range(count), place.axis, mode="wrap")
    rows = []
    for lane, size in zip(lanes, sizes, strict=True):
        own = np.take(operand.array[lane], range(size * layout.entries_per_row), place.axis)
        fill = _padded_rows(operand.array[lane], place.axis, layout, size)
        rows.append(np.concatenate([own, fill], place.axis))
    return np.stack(rows)


def _padded_rows(array: np.ndarray, axis: int, layout: Layout, size: int) -> np.ndarray:
    """The padded rows behind a client's `size` own ones."""
    assert layout.rows is not None
    entries, count = layout.entries_per_row, layout.rows - size
    if layout.padding is Padding.UNKNOWN:
        last = range(array.shape[axis] - entries * count, array.shape[axis])
        return _garbage_like(np.take(array, last, axis, mode="wrap"))
    copies = np.take(array, [*range(entries)] * count, axis)
    if layout.padding is Padding.ZEROS or not size:
        return np.full_like(copies, b"" if array.dtype == object else 0)
    return copies


def _garbage_like(array: np.ndarray) -> np.ndarray:
    """NaN and infinite floats, extreme integers, bools inverted; other dtypes keep their values."""
    if array.dtype == bool:
        return ~array
    if array.dtype.kind in "fcV":
        return np.resize(np.array([np.inf, np.nan, np.nan], array.dtype), array.shape)
    if array.dtype.kind in "iu":
        return np.resize(np.array(special_values(array.dtype)[:4], array.dtype), array.shape)
    return array


def _content(layout: Layout) -> str:
    """The content of a layout's padded rows, for messages."""
    if layout.padding is Padding.UNKNOWN:
        return "garbage"
    return "zeros" if layout.padding is Padding.ZEROS else "copies of the first"


def _difference(have: np.ndarray, want: np.ndarray, label: str, roundings: int, scale: float = 1.0) -> str | None:
    """The difference between batched results and those of a client alone; None if they are equal up to roundings.

    Args:
        roundings: how many roundings, each of the dtype's epsilon, floats may differ by.
        scale: the size of floats to which roundings are relative, unless entries are larger.
    """
    if have.dtype != want.dtype:
        return f"{label} is of {have.dtype.name}, alone of {want.dtype.name}"
    if have.shape != want.shape:
        return f"{label} has shape {have.shape}, alone {want.shape}"
    if have.tobytes() == want.tobytes() or (have.dtype == object and have.tolist() == want.tolist()):
        return None
    if want.dtype.kind in "fcV" and _close_entries(have, want, roundings, scale).all():
        return None
    index, entry, other = _first_difference(have, want, roundings if want.dtype.kind in "fcV" else 0, scale)
    return f"{label}{index} is {entry}, alone {other}"


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind not in "fcV" or bool(np.isfinite(array).all())


def _close_entries(have: np.ndarray, want: np.ndarray, roundings: int, scale: float = 1.0) -> np.ndarray:
    """Bool, for each entry: whether floats are equal up to roundings; arguments as for `_difference`."""
    if want.dtype.kind == "c":
        parts = (have.real, want.real), (have.imag, want.imag)
        return np.logical_and(*(_close_entries(h, w, roundings, scale) for h, w in parts))
    most = min(roundings * float(ml_dtypes.finfo(want.dtype).eps), MOST_DIFFERENCE)
    a, b = have.astype(np.float64), want.astype(np.float64)
    scale = max(scale, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
    return np.isclose(a, b, most, most * scale, equal_nan=True)


def _first_difference(
    have: np.ndarray, want: np.ndarray, roundings: int = 0, scale: float = 1.0
) -> tuple[str, object, object]:
    """(where the arrays differ first, both entries); the arrays' shapes if these differ."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return "", f"{have.dtype.name}{have.shape}", f"{want.dtype.name}{want.shape}"
    both_nan = (have != have) & (want != want)
    differs = ~_close_entries(have, want, roundings, scale) if roundings else (have != want) & ~both_nan
    if not differs.any():  # the signs of zeros, or NaN
        return "", _format_array(have), _format_array(want)
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    return f" at {[*index]}" if index else "", have[index], want[index]


def _format_array(array: np.ndarray) -> str:
    """Dtype, shape and entries; the first entries of a large array."""
    sizes = ",".join(map(str, array.shape))
    if array.size > MOST_ENTRIES_SHOWN:
        first = np.array2string(array.reshape(-1)[:FIRST_ENTRIES_SHOWN], separator=", ", max_line_width=1000)
        return f"{array.dtype.name}[{sizes}] {first[:-1]}, …]"
    text = np.array2string(array, separator=", ", max_line_width=100)
    return f"{array.dtype.name}[{sizes}] " + text.replace("\n", "\n  ")


def _is_of_tensorflow(error: BaseException) -> bool:
    """Whether TensorFlow refused the shapes of an operation that a rule adds."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError) and bool(frames) and any(p in frames[-1].filename for p in _NOT_FROM_THE_RULE)


def _innermost_place(error: BaseException) -> str:
    """The innermost line outside of TensorFlow and of the functions that add nodes."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(p in frame.filename for p in _NOT_FROM_THE_RULE):
            return f" at {shown_path(frame.filename)}:{frame.lineno}"
    return ""
