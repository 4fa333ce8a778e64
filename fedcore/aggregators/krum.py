"""Krum, Multi-Krum and Bulyan: aggregators that choose clients by the distances between their values."""

import math

import tensorflow as tf

from fedcore.aggregators.factory import UnweightedAggregationFactory
from fedcore.aggregators.robust import FactoryOfRows, mean_of_rows, median_of_sorted
from fedcore.scalars import whole_number


def krum_factory(num_byzantine: int) -> UnweightedAggregationFactory:
    """The value of the client that is nearest to its neighbours: Krum.

    Types, for V of floats:
        next  (<state=<>@SERVER,value={V}@CLIENTS> ->
               <state=<>@SERVER,result=V@SERVER,measurements=<num_selected=int32>@SERVER>)

    Of n clients, f of them Byzantine, a client's score is the sum of the squared distances, over all leaves, to the
    n - f - 2 other values nearest to its own. The result is the value with the least score; of equal scores, that of
    the client that comes first.

    The server holds all values of a round, and n² distances: no secure sum can hide them. A client counts for nothing
    if any of its entries is infinite or NaN. With n ≤ 2f + 2 finite clients the result is NaN and num_selected 0; a
    learning process then leaves its weights as they were.

    Args:
        num_byzantine: f, the most clients of a round that may send anything; 0 or more.
    Raises:
        FedcoreError: the number is outside its range.
        TypeMismatch: V is not of floats, or has a shape that is not known.
    Source: Blanchard et al. 2017, "Machine learning with adversaries: Byzantine tolerant gradient descent", section 4.
    Example:
        >>> process = fc.aggregators.krum_factory(1).create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [1.0, 2.0, 2.5, 4.0, 1000.0]).result
        np.float32(2.0)
    """
    return _multi_krum("krum_factory", num_byzantine, 1)


def multi_krum_factory(num_byzantine: int, num_selected: int | None = None) -> UnweightedAggregationFactory:
    """The mean of the values with the least scores of Krum: Multi-Krum.

    Types, scores, memory and too few clients: as for `krum_factory`.

    Args:
        num_byzantine: f, the most clients of a round that may send anything; 0 or more.
        num_selected: how many values are averaged, or all if there are fewer; 1 is Krum. Default: n - f.
    Raises:
        FedcoreError: a number is outside its range.
        TypeMismatch: V is not of floats, or has a shape that is not known.
    Source: Blanchard et al. 2017, "Machine learning with adversaries: Byzantine tolerant gradient descent", section 6.
    Example:
        >>> process = fc.aggregators.multi_krum_factory(1).create(fc.to_type('float32'))
        >>> output = process.next(process.initialize(), [1.0, 2.0, 2.5, 4.5, 1000.0])
        >>> output.result, output.measurements['num_selected']
        (np.float32(2.5), np.int32(4))
    """
    if num_selected is not None:
        num_selected = whole_number("num_selected", num_selected, at_least=1)
    return _multi_krum("multi_krum_factory", num_byzantine, num_selected)


def bulyan_factory(num_byzantine: int) -> UnweightedAggregationFactory:
    """The mean, in each coordinate, of the values near the median of those that Krum selects: Bulyan.

    Types, for V of floats:
        next  (<state=<>@SERVER,value={V}@CLIENTS> ->
               <state=<>@SERVER,result=V@SERVER,measurements=<num_selected=int32>@SERVER>)

    Krum selects n - 2f clients, one after the other, each from those that are left. The result is, coordinate by
    coordinate, the mean of the n - 4f selected numbers nearest to their median; of numbers that are equally near, the
    smaller ones.

    The server holds all values of a round, and n² distances; its time grows with n³: no secure sum can hide the values.
    A client counts for nothing if any of its entries is infinite or NaN. With n < 4f + 3 finite clients the result is
    NaN and num_selected 0; a learning process then leaves its weights as they were.

    Args:
        num_byzantine: f, the most clients of a round that may send anything; 0 or more.
    Raises:
        FedcoreError: the number is outside its range.
        TypeMismatch: V is not of floats, or has a shape that is not known.
    Source: El Mhamdi et al. 2018, "The hidden vulnerability of distributed learning in Byzantium", arXiv:1802.07927,
        section 4, with Krum. Where few are left, so that Krum would sum no distances, it takes the nearest one.
    Example:
        >>> process = fc.aggregators.bulyan_factory(1).create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0]).result
        np.float32(3.0)
    """
    f = whole_number("num_byzantine", num_byzantine, at_least=0)

    def reduce(leaves: list[tf.Tensor]) -> tuple[list[tf.Tensor], dict]:
        n = _client_count(leaves)
        enough = n >= 4 * f + 3
        selected = _select_one_by_one(_squared_distances(leaves), tf.where(enough, n - 2 * f, 0), f)
        nearest = tf.where(enough, n - 4 * f, 0)
        results = [_mean_around_median(tf.boolean_mask(leaf, selected), nearest) for leaf in leaves]
        return results, {"num_selected": tf.reduce_sum(tf.cast(selected, tf.int32))}

    return FactoryOfRows("bulyan_factory", reduce)


def _multi_krum(name: str, num_byzantine: int, num_selected: int | None) -> UnweightedAggregationFactory:
    """The factory of `multi_krum_factory`, which names itself `name` in messages."""
    f = whole_number("num_byzantine", num_byzantine, at_least=0)

    def reduce(leaves: list[tf.Tensor]) -> tuple[list[tf.Tensor], dict]:
        n = _client_count(leaves)
        most = n - f if num_selected is None else tf.minimum(num_selected, n)
        count = tf.where(n > 2 * f + 2, most, 0)
        best = tf.argsort(_scores(_squared_distances(leaves), n - f - 2), stable=True)[:count]
        chosen = tf.sort(best)  # in the order of the clients
        return [mean_of_rows(tf.gather(leaf, chosen)) for leaf in leaves], {"num_selected": count}

    return FactoryOfRows(name, reduce)


def _client_count(leaves: list[tf.Tensor]) -> tf.Tensor:
    return tf.shape(leaves[0])[0] if leaves else tf.constant(0)


def _squared_distances(leaves: list[tf.Tensor]) -> tf.Tensor:
    """float64 of shape [n, n]: between n clients, over all leaves; infinite from a client to itself.

    Products of numbers in float64 are as exact as differences of those in float32, and need no n² · elements numbers.
    """
    n = _client_count(leaves)
    products = tf.zeros([n, n], tf.float64)
    for leaf in leaves:
        rows = tf.cast(tf.reshape(leaf, [n, math.prod(leaf.shape[1:])]), tf.float64)
        products += tf.matmul(rows, rows, transpose_b=True)
    products = (products + tf.transpose(products)) / 2  # of two clients the same number, so that ties are ties
    norms = tf.linalg.diag_part(products)
    distances = norms[:, None] + norms[None] - 2 * products
    distances = tf.where(tf.math.is_finite(distances), tf.maximum(distances, 0), math.inf)
    return tf.linalg.set_diag(distances, tf.fill([n], tf.constant(math.inf, tf.float64)))


def _scores(distances: tf.Tensor, neighbours: tf.Tensor) -> tf.Tensor:
    """Krum's scores, float64 of shape [n]: the sum of the `neighbours` least distances of each row, of one at least."""
    return tf.reduce_sum(tf.sort(distances, axis=1)[:, : tf.maximum(neighbours, 1)], 1)


def _select_one_by_one(distances: tf.Tensor, count: tf.Tensor, num_byzantine: int) -> tf.Tensor:
    """bool of shape [n]: the clients that Krum selects in `count` steps, one in each, which later steps leave out."""
    n = tf.shape(distances)[0]

    def step(num_selected: tf.Tensor, is_candidate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        candidates = tf.where(is_candidate)[:, 0]
        between = tf.gather(tf.gather(distances, candidates), candidates, axis=1)
        best = tf.gather(candidates, tf.argmin(_scores(between, n - num_selected - num_byzantine - 2)))
        return num_selected + 1, is_candidate & (tf.range(tf.cast(n, tf.int64)) != best)

    start = (tf.constant(0), tf.fill([n], True))
    _, is_candidate = tf.while_loop(lambda num_selected, _: num_selected < count, step, start)
    return ~is_candidate


def _mean_around_median(rows: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The mean of the `count` numbers of each coordinate that are nearest to its median; NaN of none.

    Args:
        rows: a leaf of the selected clients, with a row for each.
    """
    ordered = tf.sort(tf.reshape(rows, [tf.shape(rows)[0], math.prod(rows.shape[1:])]), axis=0)
    columns, median = tf.transpose(ordered), median_of_sorted(ordered)
    order = tf.argsort(tf.abs(columns - median[:, None]), stable=True)
    nearest = tf.gather(columns, order[:, :count], batch_dims=1)
    return tf.reshape(mean_of_rows(tf.transpose(nearest)), rows.shape[1:])
