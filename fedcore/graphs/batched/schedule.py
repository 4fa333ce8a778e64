"""The schedule of a call: which client is computed in which lane, in how many steps, and how its rows are packed.

In:  the rules of a plan, and the facts of a call's clients: reading orders, batch sizes, positions. Out: a `Schedule`.

Clients are assigned to lanes by descending number of steps, so that the clients of a group end at about the same time.
Groups have `width` lanes; lanes without a client fill the last group. Clients whose steps exceed `low_rank_steps` have
groups of their own, since that decides bits.

Example: 3 clients have 2, 5 and 3 rows in batches of 2, so they take 1, 3 and 2 steps. With width 2, as it prints:

    3 clients in 2 groups of 2 lanes
    rows in order, batches of 2
    group 0: clients 1, 2; 3 steps, 12 rows, 4 of them padding
    group 1: client 0; 1 step, 4 rows, 2 of them padding

Batches whose sizes the data decide are padded to a power of two, or to levels of a half, a quarter and an eighth of it:
a group has the smallest that holds its batches, where that saves enough.

Keys of executables hold the layout of a schedule and no more: with lanes and sizes, each cohort would build a graph.

Decision 0266.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from types import MappingProxyType

import attrs
import numpy as np

from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.cost_model import WORTH_IT
from fedcore.graphs.batched.own_rows import JOINED
from fedcore.graphs.batched.row_layouts import (
    ABSENT,
    GatheredRows,
    RowLayout,
    RowsInOrder,
    SequenceLanes,
    WholeBatches,
)
from fedcore.graphs.sequences.columns import Columns, Rows
from fedcore.graphs.sequences.layout import Layout

MAX_JOINED_ROWS = 384
"""Rows of the largest product that sums the factors of a block. Up to so many, an entry is one chain of additions, to
which the zero rows between clients, whose number other clients decide, add nothing.
"""

MOST_EMPTY = 1 / 8
"""The largest part of empty lanes in calls whose groups are wide."""

LEAST_WIDTH = 2
"""Smallest width of a group. At width 1 TensorFlow selects other kernels, which give other bits."""

MOST_WAITING = 1 / 2
"""Groups are narrower than planned if they cost less than this part of the planned ones: each width has a graph."""

LONG_STEPS = 128
"""Steps of the shortest client for which groups get narrow, so that the size of a cohort decides no graph."""

LEAST_SAVED = 1 / 16
"""The part of a call's padded rows that half steps save at least; they are built for no less."""

MAX_LEVELS = 4
"""Levels of padded batches, each of half the rows of the one above: the graph holds the work of a group for each."""

LEAST_LEVEL = 8
"""Rows of the smallest level."""

LEAST_SAVED_BY_LEVELS = 1 / 2
"""The part of a call's cost that levels save at least; they are built for no less."""


@attrs.frozen
class ScheduleRules:
    """The part of a plan that decides the schedules of its calls.

    Args:
        width: lanes of a group.
        one_step_width: lanes of a group if all clients take one step, and few lanes are empty; 0 for no other width.
        low_rank: the rank from which kernels are kept low-rank; 0 keeps none.
        products: the plan's attribute, see `own_rows`; batches are padded to the batch size of their data set if it is
            not `JOINED`.
        half_steps: steps of small batches may be built for half of the padded rows.
        block: clients of a block.
        takes_products: the function of the call is given products of the clients' rows, where it can use some.
        keeps_one_step: kernels are kept low-rank also where a batch is so large that they are for one step only.
        start_rows: rows that a step computes while it starts its operations, see `cost_model`; for batches whose sizes
            the data decide.
    """

    width: int
    one_step_width: int = 0
    low_rank: int = 0
    products: str = JOINED
    half_steps: bool = False
    block: int = 1
    takes_products: bool = False
    keeps_one_step: bool = True
    start_rows: float = 0.0


@attrs.frozen
class PackedLayout:
    """The part of a schedule that decides the graph.

    Args:
        layouts: for each leaf of a client's arguments the layout of its sequence; None for a tensor.
        batch_rows: for each leaf the padded size of a batch; 0 if the leaf is not a sequence of batches.
        rows: how the rows of sequences are packed.
        equal_steps: all clients take equally many steps, and the lanes are in the order of the client indices.
        single_step: `equal_steps`, and the number of steps is 1.
        has_half_steps: the last steps of groups have batches of at most half of `batch_rows`, and are built for that.
        levels: padded sizes of batches, descending. A group has the smallest that holds its largest batch, and groups
            are sorted by it. Empty: all groups have `batch_rows`.
        low_rank: the plan's rank, from which kernels are kept low-rank; see `low_rank_carry`.
        low_rank_steps: number of steps whose batches have that many rows, at least 1; 0 keeps no kernel low-rank.
        exceeds_low_rank: a client takes more steps.
        products: the plan's attribute, see `own_rows`.
        joins_blocks: the sum of the factors of a block's clients is one product.
        joined_rows: rows of that product, some of which may be zeros; 0 for as many as the clients have.
        takes_products: the function of a call is given products of the clients' rows; see `data_products`.
        width: lanes of a group.
        is_alone: each client is a group of its own and reads its own sequences, whose rows are not packed.
        table_rows: of clients alone, the rows of the smallest table whose changed rows are kept; 0 keeps none.
    """

    layouts: tuple[Layout | None, ...]
    batch_rows: tuple[int, ...]
    rows: type[RowLayout] = GatheredRows
    equal_steps: bool = False
    single_step: bool = False
    has_half_steps: bool = False
    levels: tuple[int, ...] = ()
    low_rank: int = 0
    low_rank_steps: int = 0
    exceeds_low_rank: bool = False
    products: str = JOINED
    joins_blocks: bool = False
    joined_rows: int = 0
    takes_products: bool = False
    width: int = 1
    is_alone: bool = False
    table_rows: int = 0

    @property
    def keeps_one_step(self) -> bool:
        """Whether kernels are low-rank in the only step of a client, and those of clients with more steps are dense."""
        return self.low_rank_steps == 1

    @property
    def has_longer_groups(self) -> bool:
        """Whether the first groups, of clients that exceed `low_rank_steps`, have a function of their own."""
        return self.exceeds_low_rank and (self.keeps_one_step or bool(self.products))

    @property
    def has_own_factors(self) -> bool:
        """Whether clients keep factors for several steps, and products have the rows of all steps of one client."""
        return has_own_factors(self.products, self.low_rank_steps)


@attrs.frozen
class GroupSchedule:
    """One group of a schedule.

    Args:
        clients: positions in the call, lane by lane.
        steps: of the client that takes most.
        half_steps: how many of these, the last ones, are built for half of the padded rows.
        rows: rows of batches that the graph computes, with padding.
        padding: rows among them that are no client's.
        dense: kernels are kept dense, since clients exceed the only low-rank step.
    """

    clients: tuple[int, ...]
    steps: int
    half_steps: int
    rows: int
    padding: int
    dense: bool

    def text(self, first: int) -> str:
        """A line for people.

        Args:
            first: index of the call's first client.
        """
        parts = [quantity(self.steps, "step")] if self.steps else []
        parts += [f"{self.half_steps} with half of the rows"] if self.half_steps else []
        parts += [f"{self.rows} rows, {self.padding} of them padding"] if self.rows else []
        parts += ["dense kernels"] if self.dense else []
        clients = ", ".join(str(first + c) for c in self.clients)
        return f"client{'s' * (len(self.clients) != 1)} {clients}{'; ' * bool(parts)}{', '.join(parts)}"


@attrs.frozen
class Schedule:
    """How the clients of a call are computed side by side; `str` prints it.

    Guarantees:
      - Each present client has one lane.
      - Schedules are equal if their graphs are: only `layout` is compared, and holds no number of clients.

    Args:
        layout: the part that decides the graph.
        clients: int64 [lanes]: the client of each lane, by its number among the present clients; `ABSENT` for an empty
            lane.
        lane_of: int64 [capacity]: the lane of each client, by its position in the call; `ABSENT` for absent clients.
        sizes: position of a sequence leaf -> int64 [lanes, steps], as in `SequenceLanes`.
    """

    layout: PackedLayout
    clients: np.ndarray = attrs.field(eq=False)
    lane_of: np.ndarray = attrs.field(eq=False)
    sizes: Mapping[int, np.ndarray] = attrs.field(eq=False)

    def __attrs_post_init__(self) -> None:
        for array in (self.clients, self.lane_of, *self.sizes.values()):
            array.setflags(write=False)

    def lanes(self, position: int) -> SequenceLanes:
        """The batches of the sequence at a leaf's position."""
        layout = self.layout
        return SequenceLanes(self.clients, self.sizes[position], layout.batch_rows[position], layout.width)

    @property
    def groups(self) -> list[GroupSchedule]:
        """The groups in the order of their lanes. Numbers of steps and rows are arrays with an entry for each group."""
        layout, count = self.layout, len(self.clients) // self.layout.width
        positions = np.full(len(self.clients), ABSENT)
        positions[self.lane_of[self.lane_of != ABSENT]] = np.flatnonzero(self.lane_of != ABSENT)
        clients = [tuple(lanes[lanes != ABSENT].tolist()) for lanes in np.split(positions, count)]
        sequences, zeros = [self.lanes(i) for i in self.sizes], np.zeros(count, np.int64)
        steps = np.maximum.reduce([zeros, *(lanes.steps for lanes in sequences)])
        dense = (steps > 1) & layout.keeps_one_step
        may_halve = dense if layout.low_rank_steps else not layout.single_step  # only loops with dense kernels do
        half_steps = rows = padding = zeros
        for lanes in sequences:
            if layout.has_half_steps:
                half_steps = np.where(may_halve, lanes.steps - whole_steps(lanes), 0)
            if lanes.batch_rows:
                levels = layout.levels or (lanes.batch_rows,)
                batch_rows = smallest_levels(lanes.largest.max(axis=1, initial=0), levels)
                lane_rows = lanes.steps * batch_rows - half_steps * (lanes.batch_rows - lanes.batch_rows // 2)
                rows = rows + lane_rows * layout.width
                padding = padding + lane_rows * layout.width - lanes.sizes.reshape(count, -1).sum(axis=1)
        columns = (a.tolist() for a in (steps, half_steps, rows, padding, dense))
        return [GroupSchedule(*group) for group in zip(clients, *columns, strict=True)]

    def text(self, first: int = 0) -> str:
        """The schedule for people: a line on the whole, lines on rows and kernels, and a line for each group.

        Args:
            first: index of the call's first client.
        """
        layout, groups = self.layout, self.groups
        # Each part of the text is a list of one line, or empty.
        clients = quantity(sum(len(g.clients) for g in groups), "client")
        lines = [f"{clients} in {quantity(len(groups), 'group')} of {quantity(layout.width, 'lane')}"]
        batches = [
            f"batches of {' or '.join(map(str, layout.levels or [layout.batch_rows[i]]))}"
            for i in self.sizes
            if layout.batch_rows[i]
        ]
        lines += [", ".join([f"rows {layout.rows.title}", *batches])] if self.sizes else []
        lines += [f"products: {layout.products}"] if layout.products else []
        low_rank = "in groups of one step" if layout.keeps_one_step else f"for {layout.low_rank_steps} steps at a time"
        lines += [f"kernels are low-rank {low_rank}"] if layout.low_rank_steps else []
        rows = f" of {layout.joined_rows} rows" if layout.joined_rows else ""
        lines += [f"the factors of a block are one product{rows}"] if layout.joins_blocks else []
        lines += ["products of the clients' rows are given"] if layout.takes_products else []
        return "\n".join([*lines, *(f"group {i}: {g.text(first)}" for i, g in enumerate(groups))])

    def __str__(self) -> str:
        return self.text()


def schedule_clients(
    leaves: ClientLeaves,
    orders: Mapping[int, list[Rows]],
    rules: ScheduleRules,
    positions: SequenceOf[int],
    capacity: int,
) -> Schedule:
    """The schedule of a call: takes the decisions below one after the other.

    First the numbers: steps of each client, padded rows of a batch, lanes of a group. Then the lanes of clients, where
    clients of different parts never share a group: those of more than `low_rank_steps`, or of each level of padded
    batches. Then the layout that follows for the graph.

    Args:
        leaves: leaves of the present clients.
        orders: their reading orders, `leaves.orders`.
        positions: position of each present client within the call; clients at other positions are absent.
        capacity: number of clients of a full call, present and absent.
    """
    steps = np.zeros(len(leaves.each), np.int64)  # of each client
    for client_orders in orders.values():
        steps = np.maximum(steps, [len(order) for order in client_orders])
    limit = low_rank_steps(leaves, rules)
    batch_rows = {i: padded_size(orders[i], leaves.sequences[i], rules) for i in orders}
    parts = (steps > limit).astype(np.int64) if limit else np.zeros(len(steps), np.int64)
    width = group_width(rules, steps, limit)
    levels: tuple[int, ...] = ()
    # With `products`, the number of rows of a product decides bits, so other clients may not decide the padding.
    if len(orders) == 1 and leaves.has_ragged_batches and not rules.products:
        ((position, client_orders),) = orders.items()
        level_of = smallest_levels(largest_batches(client_orders), padded_levels(batch_rows[position]))
        leveled_width = width_with_levels(rules, steps, level_of)
        if leveled_width:
            width, levels, parts = leveled_width, padded_levels(batch_rows[position]), level_of
    clients = assign_lanes(steps, last_batches(orders, rules, limit), width, parts)
    lane_of = np.full(capacity, ABSENT, np.int64)
    lane_of[np.asarray(positions)[clients[clients != ABSENT]]] = np.flatnonzero(clients != ABSENT)
    sizes = {i: sizes_by_lane(client_orders, clients) for i, client_orders in orders.items()}
    equal = has_equal_steps(lane_of, sizes, len(leaves.each))
    single = equal and all(s.shape[1] == 1 for s in sizes.values()) and not has_own_factors(rules.products, limit)
    layout = PackedLayout(
        tuple(leaf.layout if i in sizes else None for i, leaf in enumerate(leaves.each[0])),
        tuple(batch_rows.get(i, 0) for i in range(len(leaves.each[0]))),
        row_layout(leaves, single_step=single),
        equal,
        single,
        levels=levels,
        products=rules.products,
        width=width,
    )
    schedule = Schedule(with_low_rank(layout, leaves, rules, limit, steps), clients, lane_of, MappingProxyType(sizes))
    if may_take_half_steps(rules, len(sizes)) and not levels:
        (position,) = sizes
        if saved_by_halves(schedule.lanes(position)) >= LEAST_SAVED:
            return attrs.evolve(schedule, layout=attrs.evolve(schedule.layout, has_half_steps=True))
    return schedule


# --- the decisions, in order ---


def low_rank_steps(leaves: ClientLeaves, rules: ScheduleRules) -> int:
    """Number of steps whose batches have `low_rank` rows, at least 1; 0 if a step has no batch of rows, or if the rules
    keep no factors for that few.

    The batch sizes of the datasets decide, not those of the call's batches, so the bits of a client do not depend on
    the other clients of its call.
    """
    if not rules.low_rank or len(leaves.sequences) != 1:
        return 0
    (columns,) = leaves.sequences.values()
    steps = steps_of_rank(columns, rules.low_rank)
    return steps if steps > 1 or rules.keeps_one_step else 0


def steps_of_rank(columns: list[Columns], low_rank: int) -> int:
    """`low_rank_steps` of clients with one sequence each."""
    sizes = [c.batch_size for c in columns]
    if not columns[0].layout.batched or not all(sizes):
        return 0
    return max(1, low_rank // max(sizes))


def group_width(rules: ScheduleRules, steps: np.ndarray, limit: int) -> int:
    """Lanes of a group: more if all clients keep factors in their only step, unless too many lanes would be empty;
    fewer if a few long clients would keep the lanes of their groups waiting.

    For the latter, the planned width is compared with its half, a quarter and so on, down to `LEAST_WIDTH`.

    Args:
        steps: int64 [clients], of each client.
        limit: `low_rank_steps`.
    """
    wide = rules.one_step_width if limit == 1 else 0
    if wide and steps.max() == 1 and -len(steps) % wide <= MOST_EMPTY * len(steps):
        return wide
    if steps.max() < LONG_STEPS:
        return rules.width
    costs = {rules.width: lane_steps(steps, rules.width, rules.width)}
    width = rules.width
    while width >= 2 * LEAST_WIDTH:
        width //= 2
        costs[width] = lane_steps(steps, width, rules.width)
    best = min(costs, key=lambda w: costs[w])
    return best if costs[best] < MOST_WAITING * costs[rules.width] else rules.width


def lane_steps(steps: np.ndarray, width: int, planned_width: int) -> float:
    """The cost of groups of a width, in steps of one lane: of all lanes, and of starting the operations of each group.

    Starting them costs as much as a quarter of the lanes of a group of the planned width.
    """
    longest = np.sort(steps)[::-1][::width]  # of each group
    return float(longest.sum() * (width + planned_width / 4))


def may_take_half_steps(rules: ScheduleRules, sequences: int) -> bool:
    """Whether batches decide how many rows a step computes: products of own rows are padded to the dataset's batch."""
    return rules.half_steps and sequences == 1 and not rules.products


def last_batches(orders: Mapping[int, list[Rows]], rules: ScheduleRules, limit: int) -> np.ndarray | None:
    """int64 [clients], rows of each client's last batch, where clients of equally many steps are sorted by it.

    Then groups end with small batches, whose steps take half the rows, or whose factors have fewer rows. None: the
    order of the clients stays.
    """
    if not may_take_half_steps(rules, len(orders)) and limit <= 1:
        return None
    (client_orders,) = orders.values()
    return np.array([order.sizes[-1] if order.sizes is not None and len(order) else 0 for order in client_orders])


def assign_lanes(steps: np.ndarray, last_rows: np.ndarray | None, width: int, parts: np.ndarray) -> np.ndarray:
    """int64 [lanes]: the client of each lane, sorted by descending part, number of steps and last batch.

    Each part has groups of its own: empty lanes fill up its last group.

        steps 1, 3, 2, parts 0, 1, 0 and width 2  ->  lanes 1, empty, 2, 0

    Args:
        steps: int64 [clients].
        last_rows: `last_batches`; None: clients of equally many steps stay in order.
        width: lanes of a group.
        parts: int64 [clients], the number of each client's part.
    """
    order = np.lexsort((-steps, -parts) if last_rows is None else (-last_rows, -steps, -parts))
    lanes = []
    for part in np.unique(parts)[::-1]:
        clients = order[parts[order] == part]
        lanes += [clients, np.full(-len(clients) % width, ABSENT, np.int64)]
    return np.concatenate(lanes)


def largest_batches(orders: list[Rows]) -> np.ndarray:
    """int64 [clients]: rows of each client's largest batch."""
    return np.array([0 if order.sizes is None else order.sizes.max(initial=0) for order in orders], np.int64)


def width_with_levels(rules: ScheduleRules, steps: np.ndarray, level_of: np.ndarray) -> int:
    """Lanes of groups, each padded to its own level; 0 if it saves too little over padding all to the longest batch.

    Two widths are tried: the planned one and a quarter of it, since groups of the upper levels have few clients and
    each width has a graph.

    Args:
        steps: int64 [clients].
        level_of: int64 [clients]: the smallest level that holds the batches of each client.
    """

    def cost(width: int, rows: np.ndarray) -> float:
        """The time of groups of a width, counted in rows: those computed, and `start_rows` for each step of a group.

        `start_rows` is the number of rows that are computed in the time in which the operations of a step start.

        Args:
            rows: int64 [clients], padded size of the client's batches; clients of equal sizes share groups.
        """
        total = 0.0
        for level in np.unique(rows):
            group_steps = np.sort(steps[rows == level])[::-1][::width]
            total += (width * level + rules.start_rows) * group_steps.sum()
        return float(total)

    costs = {width: cost(width, level_of) for width in (rules.width, max(LEAST_WIDTH, rules.width // 4))}
    width = min(costs, key=lambda w: costs[w])
    saves = costs[width] <= (1 - LEAST_SAVED_BY_LEVELS) * cost(rules.width, np.full_like(level_of, level_of.max()))
    return width if saves else 0


def padded_levels(batch_rows: int) -> tuple[int, ...]:
    """The levels of padded batches of at most `batch_rows` rows, descending."""
    halvings = [batch_rows >> i for i in range(MAX_LEVELS)]
    return tuple(rows for rows in halvings if rows == batch_rows or rows >= LEAST_LEVEL)


def smallest_levels(rows: np.ndarray, levels: SequenceOf[int]) -> np.ndarray:
    """int64: for each number of rows the smallest level that holds them."""
    ascending = np.array(levels[::-1], np.int64)
    return ascending[np.searchsorted(ascending, rows)]


def pads_too_much(leaves: ClientLeaves, rules: ScheduleRules) -> bool:
    """Whether clients of a block compute faster one by one than with padded batches, if their data decide the sizes.

    Depends on the block's clients only, so that other blocks of a call do not decide bits; so their batches count as
    padded to the next power of two.

    Args:
        leaves: of the clients of a block.
    """
    if not leaves.has_ragged_batches:
        return False
    columns = [c for columns_of_clients in leaves.sequences.values() for c in columns_of_clients]
    sizes = [np.diff(c.groups) for c in columns if c.groups is not None]
    largest = np.array([s.max(initial=1) for s in sizes])
    padded_rows = largest.max() if rules.products else powers_of_two(largest)  # of a batch
    steps = np.array([len(s) for s in sizes])
    # Costs are counted in rows: those computed, and `start_rows` for each step, once for all lanes of a group.
    cost_alone = sum(s.sum() for s in sizes) + rules.start_rows * steps.sum()
    cost_in_group = (padded_rows * steps).sum() + rules.start_rows * steps.sum() / rules.width
    return bool(cost_alone < WORTH_IT * cost_in_group)


def sizes_by_lane(orders: list[Rows], clients: np.ndarray) -> np.ndarray:
    """int64 [lanes, steps]: rows of each batch; 1 for an element that is not a batch, 0 after the client's end."""
    sizes = np.zeros((len(clients), max(map(len, orders))), np.int64)
    for lane in np.flatnonzero(clients != ABSENT).tolist():
        order = orders[clients[lane]]
        sizes[lane, : len(order)] = order.sizes if order.sizes is not None else 1
    return sizes


def padded_size(orders: list[Rows], columns: list[Columns], rules: ScheduleRules) -> int:
    """The padded size of a batch; 0 if elements are not batches.

    By default the size of the longest batch, rounded up to a power of two, so that few graphs are built: at least 2,
    since products of one row have other bits, and at most the batch size of the dataset. Where products have the rows
    of one client (`rules.products`), their bits depend on the padded size: it is then the batch size of the dataset, or
    the size of the longest batch if the data decide the sizes.
    """
    if not columns[0].layout.batched:
        return 0
    longest = max((int(o.sizes.max()) for o in orders if o.sizes is not None and len(o.sizes)), default=1)
    limit = max(c.batch_size for c in columns)
    if rules.products:
        return limit or longest
    rounded = int(powers_of_two(longest))
    return min(limit, rounded) if limit else rounded


def powers_of_two(rows: int | np.ndarray) -> np.ndarray:
    """int64: for each number of rows the smallest power of two, from 2 on, that is no less."""
    return 1 << np.ceil(np.log2(np.maximum(rows, 2))).astype(np.int64)


def has_equal_steps(lane_of: np.ndarray, sizes: Mapping[int, np.ndarray], count: int) -> bool:
    """Whether no client ends before another one, and lanes are in the order of clients: no carry is then frozen.

    Args:
        lane_of, sizes: as in `Schedule`.
        count: number of present clients.
    """
    return bool((lane_of[:count] == np.arange(count)).all()) and all(s[:count].all() for s in sizes.values())


def has_own_factors(products: str, limit: int) -> bool:
    """Whether clients keep factors for several steps, and products have the rows of all steps of one client."""
    return bool(products) and limit > 1


def row_layout(leaves: ClientLeaves, *, single_step: bool) -> type[RowLayout]:
    """How rows are packed: gathering costs a copy in each step, so only where batches are not the examples in order."""
    if not leaves.rows_in_order:
        return GatheredRows
    return WholeBatches if single_step else RowsInOrder


def with_low_rank(
    layout: PackedLayout, leaves: ClientLeaves, rules: ScheduleRules, limit: int, steps: np.ndarray
) -> PackedLayout:
    """The layout with low-rank kernels; without, if clients keep them for one step only and all take more.

    Factors of a block are one product if that has few rows, or if products have the rows of one client anyway.

    Args:
        limit: `low_rank_steps`.
        steps: int64 [clients].
    """
    if not limit:
        return layout
    (columns,) = leaves.sequences.values()
    rows = rules.block * max(c.batch_size or 0 for c in columns)  # of the product of a block
    joins_blocks = rows <= MAX_JOINED_ROWS if limit == 1 else bool(rules.products)
    has_fixed_rows = joins_blocks and limit == 1 and bool(rules.products)
    layout = attrs.evolve(layout, joins_blocks=joins_blocks, joined_rows=rows if has_fixed_rows else 0)
    if limit == 1 and steps.min() > 1:
        return layout
    exceeds = bool(steps.max() > limit)
    takes_products = rules.takes_products and leaves.rows_in_order and limit > 1 and not exceeds
    return attrs.evolve(
        layout, low_rank=rules.low_rank, low_rank_steps=limit, exceeds_low_rank=exceeds, takes_products=takes_products
    )


def whole_steps(lanes: SequenceLanes) -> np.ndarray:
    """int64 [groups]: the number of first steps, behind which every batch has at most half of the padded rows."""
    step_numbers = np.arange(1, lanes.sizes.shape[1] + 1)
    return np.where(lanes.largest > lanes.batch_rows // 2, step_numbers, 0).max(axis=1, initial=0)


def saved_by_halves(lanes: SequenceLanes) -> float:
    """The part of the padded rows of all groups that is not computed if last steps of small batches have half the rows.

    0 where half a batch is one row, whose products have other bits.
    """
    half, steps = lanes.batch_rows // 2, lanes.steps.sum()
    saved_rows = (steps - whole_steps(lanes).sum()) * (lanes.batch_rows - half)
    return float(saved_rows / (steps * lanes.batch_rows)) if half > 1 and steps else 0.0


def quantity(number: int, noun: str) -> str:
    """A number and its noun, such as "3 steps"."""
    return f"{number} {noun}{'s' * (number != 1)}"
