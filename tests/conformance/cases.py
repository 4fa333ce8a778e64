"""Programs with one core intrinsic each, and what they give in plain numpy."""

import hashlib

import numpy as np

import fedcore as fc
from fedcore.seeds import fold_in

SEED = 11
"""Of every call."""

CLIENTS, SERVER = fc.CLIENTS, fc.SERVER
FLOATS = fc.FederatedType("float32", CLIENTS)
INTS = fc.FederatedType("int32", CLIENTS)
VECTORS = fc.FederatedType(("float32", (3,)), CLIENTS)


class Case:
    """One program with one intrinsic in it.

    Args:
        computation: takes client values first.
        inputs: a number of clients -> the arguments.
        expected: the arguments -> the result, in numpy.
    """

    def __init__(self, intrinsic, computation, inputs, expected):
        self.intrinsic = intrinsic
        self.computation = computation
        self.inputs = inputs
        self.expected = expected


CASES: dict[str, Case] = {}


def case(intrinsic, *types, inputs, expected, label=None):
    """Adds the decorated body, a computation over the types, as a case."""

    def add(body):
        name = label or body.__name__
        CASES[name] = Case(intrinsic, fc.federated_computation(body, *types), inputs, expected)
        return body

    return add


def floats(n, shape=(), salt=0):
    rng = np.random.default_rng([n, salt])
    return [np.float32(x) for x in rng.normal(size=(n, *shape)).astype(np.float32)]


def ints(n, salt=0):
    return [np.int32(x) for x in np.random.default_rng([n, salt]).integers(-100, 100, n)]


def columns(xs, dtype=np.float64):
    return np.asarray(xs, dtype)


def divided(a, b):
    with np.errstate(divide="ignore"):
        return np.divide(a, b)


@fc.tf_computation("float32")
def half(x):
    return x / 2.0


@case("federated_map", FLOATS, inputs=lambda n: [floats(n)], expected=lambda xs: [np.float32(x / 2) for x in xs])
def maps_a_graph(xs):
    return fc.federated_map(half, xs)


@case("federated_map", INTS, inputs=lambda n: [ints(n)], expected=lambda xs: [np.int32(x * 3) for x in xs])
def maps_a_lambda(xs):
    return fc.federated_map(lambda x: x * 3, xs)


@case(
    "federated_map",
    FLOATS,
    fc.FederatedType("float32", SERVER),
    inputs=lambda n: [floats(n), np.float32(4)],
    expected=lambda xs, s: np.float32(2),
)
def maps_at_the_server(xs, s):
    return fc.federated_map(half, s)


@case(
    "federated_map",
    FLOATS,
    fc.FederatedType("float32", CLIENTS, all_equal=True),
    inputs=lambda n: [floats(n), np.float32(5)],
    expected=lambda xs, y: [x + y for x in xs],
)
def maps_beside_an_all_equal_argument(xs, y):
    return fc.federated_map(lambda a, b: a + b, (xs, y))


@case(
    "federated_sum", INTS, inputs=lambda n: [ints(n)], expected=lambda xs: np.sum(columns(xs, np.int32), dtype=np.int32)
)
def sums_integers(xs):
    return fc.federated_sum(xs)


@case(
    "federated_sum",
    INTS,
    inputs=lambda n: [[np.int32(2**31 - 1)] * n],
    expected=lambda xs: np.sum(columns(xs, np.int32), dtype=np.int32),
)
def sums_integers_that_wrap(xs):
    return fc.federated_sum(xs)


@case(
    "federated_sum", VECTORS, inputs=lambda n: [floats(n, (3,))], expected=lambda xs: columns(xs).reshape(-1, 3).sum(0)
)
def sums_vectors(xs):
    return fc.federated_sum(xs)


@case(
    "federated_sum",
    fc.FederatedType({"a": "int32", "b": "float32"}, CLIENTS),
    inputs=lambda n: [[{"a": a, "b": b} for a, b in zip(ints(n), floats(n), strict=True)]],
    expected=lambda xs: {"a": np.int32(sum(x["a"] for x in xs)), "b": sum(float(x["b"]) for x in xs)},
)
def sums_structs(xs):
    return fc.federated_sum(xs)


@case("federated_mean", FLOATS, inputs=lambda n: [floats(n)], expected=lambda xs: columns(xs).mean() if xs else np.nan)
def averages(xs):
    return fc.federated_mean(xs)


@case(
    "federated_mean",
    VECTORS,
    INTS,
    inputs=lambda n: [floats(n, (3,)), [np.int32(k + 1) for k in range(n)]],
    expected=lambda xs, ws: np.average(columns(xs), axis=0, weights=ws) if xs else np.full(3, np.nan),
)
def averages_with_weights(xs, ws):
    return fc.federated_mean(xs, ws)


@case("federated_mean", FLOATS, inputs=lambda n: [floats(n)], expected=lambda xs: np.nan)
def averages_with_weights_of_zero(xs):
    return fc.federated_mean(xs, fc.federated_map(lambda x: x * 0.0, xs))


@case(
    "federated_aggregate",
    INTS,
    inputs=lambda n: [ints(n)],
    expected=lambda xs: (np.int32(len(xs)), np.int32(sum(int(x) for x in xs))),
)
def aggregates(xs):
    return fc.federated_aggregate(
        xs,
        (0, 0),
        lambda total, x: (total[0] + 1, total[1] + x),
        lambda left, right: (left[0] + right[0], left[1] + right[1]),
        lambda total: total,
    )


@case(
    "federated_broadcast",
    INTS,
    fc.FederatedType("int32", SERVER),
    inputs=lambda n: [ints(n), np.int32(10)],
    expected=lambda xs, s: [np.int32(x + 10) for x in xs],
)
def broadcasts(xs, s):
    return fc.federated_map(lambda a, b: a + b, (xs, fc.federated_broadcast(s)))


@case("federated_value", INTS, inputs=lambda n: [ints(n)], expected=lambda xs: np.int32(5))
def places_at_the_server(xs):
    return fc.federated_value(5, SERVER)


@case("federated_value", INTS, inputs=lambda n: [ints(n)], expected=lambda xs: np.int32(len(xs)))
def places_at_the_clients(xs):
    return fc.federated_sum(fc.federated_value(1, CLIENTS))


@fc.tf_computation
def seven():
    return 7


@case("federated_eval", INTS, inputs=lambda n: [ints(n)], expected=lambda xs: np.int32(7))
def evaluates_at_the_server(xs):
    return fc.federated_eval(seven, SERVER)


@case("federated_eval", INTS, inputs=lambda n: [ints(n)], expected=lambda xs: [np.int32(7)] * len(xs))
def evaluates_at_the_clients(xs):
    return fc.federated_eval(seven, CLIENTS)


@case(
    "federated_apply",
    INTS,
    fc.FederatedType("float32", SERVER),
    inputs=lambda n: [ints(n), np.float32(3)],
    expected=lambda xs, s: np.float32(1.5),
)
def applies(xs, s):
    return fc.federated_apply(half, s)


@case(
    "federated_zip",
    INTS,
    FLOATS,
    inputs=lambda n: [ints(n), floats(n)],
    expected=lambda xs, ys: [{"a": x, "b": (y, x)} for x, y in zip(xs, ys, strict=True)],
)
def zips_at_the_clients(xs, ys):
    return fc.federated_zip({"a": xs, "b": (ys, xs)})


@case(
    "federated_zip",
    INTS,
    fc.FederatedType("int32", SERVER),
    inputs=lambda n: [ints(n), np.int32(2)],
    expected=lambda xs, s: (np.int32(2), np.int32(2)),
)
def zips_at_the_server(xs, s):
    return fc.federated_zip((s, s))


def _locally(intrinsic, operator):
    """A case for a binary operation: over floats, a struct with a scalar, and server values."""

    def struct_inputs(n):
        return [[(x, y) for x, y in zip(floats(n), floats(n, salt=1), strict=True)]]

    @case(
        intrinsic,
        FLOATS,
        FLOATS,
        label=f"{intrinsic}_of_floats",
        inputs=lambda n: [floats(n), floats(n, salt=1)],
        expected=lambda xs, ys: [operator(x, y) for x, y in zip(xs, ys, strict=True)],
    )
    def of_floats(xs, ys):
        return fc.federated_map(lambda x, y: getattr(fc, intrinsic)(x, y), (xs, ys))

    @case(
        intrinsic,
        fc.FederatedType(("float32", "float32"), CLIENTS),
        label=f"{intrinsic}_of_structs",
        inputs=struct_inputs,
        expected=lambda xs: [(operator(a, a), operator(b, b)) for a, b in xs],
    )
    def of_structs(xs):
        return fc.federated_map(lambda x: getattr(fc, intrinsic)(x, x), xs)

    complex_numbers = fc.FederatedType("complex64", CLIENTS)
    exact = (2, -2j, 1 + 1j, 2 - 2j)  # quotients by these numbers are not rounded

    @case(
        intrinsic,
        complex_numbers,
        complex_numbers,
        label=f"{intrinsic}_of_complex_numbers",
        inputs=lambda n: [
            [np.complex64(complex(k - 3, 2 * k + 1)) for k in range(n)],
            [np.complex64(exact[k % 4]) for k in range(n)],
        ],
        expected=lambda xs, ys: [operator(x, y) for x, y in zip(xs, ys, strict=True)],
    )
    def of_complex_numbers(xs, ys):
        return fc.federated_map(lambda x, y: getattr(fc, intrinsic)(x, y), (xs, ys))


_locally("generic_plus", np.add)
_locally("generic_minus", np.subtract)
_locally("generic_multiply", np.multiply)
_locally("generic_divide", np.divide)


@case(
    "generic_multiply",
    fc.FederatedType(("float32", "float64"), CLIENTS),
    INTS,
    inputs=lambda n: [[(x, np.float64(2)) for x in floats(n)], ints(n)],
    expected=lambda xs, ws: [
        (np.float32(a * np.float32(w)), b * np.float64(w)) for (a, b), w in zip(xs, ws, strict=True)
    ],
)
def multiplies_a_struct_by_a_scalar(xs, ws):
    return fc.federated_map(lambda x, w: fc.generic_multiply(x, w), (xs, ws))


@case(
    "generic_divide",
    fc.FederatedType(("float32", "float64"), CLIENTS),
    INTS,
    inputs=lambda n: [[(x, np.float64(2)) for x in floats(n)], [np.int32(k) for k in range(n)]],
    expected=lambda xs, ws: [
        (divided(a, np.float32(w)), divided(b, np.float64(w))) for (a, b), w in zip(xs, ws, strict=True)
    ],
)
def divides_a_struct_by_a_scalar(xs, ws):
    return fc.federated_map(lambda x, w: fc.generic_divide(x, w), (xs, ws))


@case(
    "generic_zero",
    INTS,
    inputs=lambda n: [ints(n)],
    expected=lambda xs: [{"a": np.int32(0), "b": np.zeros((2, 3), np.float64)} for _ in xs],
)
def makes_zeros(xs):
    return fc.federated_map(lambda x: fc.generic_zero({"a": "int32", "b": ("float64", (2, 3))}), xs)


SEQUENCES = fc.FederatedType(fc.SequenceType("int32"), CLIENTS)
FLOAT_SEQUENCES = fc.FederatedType(fc.SequenceType("float32"), CLIENTS)


def sequences(n):
    return [[np.int32(k + j) for j in range(k)] for k in range(n)]  # the first one is empty


@case(
    "sequence_sum",
    SEQUENCES,
    inputs=lambda n: [sequences(n)],
    expected=lambda xs: [np.int32(sum(map(int, x))) for x in xs],
)
def sums_sequences(xs):
    return fc.federated_map(lambda s: fc.sequence_sum(s), xs)


@case(
    "sequence_sum",
    FLOAT_SEQUENCES,
    inputs=lambda n: [[floats(4, salt=k) for k in range(n)]],
    expected=lambda xs: [columns(x).sum() for x in xs],
)
def sums_float_sequences(xs):
    return fc.federated_map(lambda s: fc.sequence_sum(s), xs)


@case(
    "sequence_map",
    SEQUENCES,
    inputs=lambda n: [sequences(n)],
    expected=lambda xs: [np.int32(sum(3 * int(e) for e in x)) for x in xs],
)
def maps_sequences(xs):
    return fc.federated_map(lambda s: fc.sequence_sum(fc.sequence_map(lambda e: e * 3, s)), xs)


@case(
    "sequence_reduce",
    SEQUENCES,
    inputs=lambda n: [sequences(n)],
    expected=lambda xs: [(np.int32(len(x)), np.int32(x[-1] if x else -1)) for x in xs],
)
def reduces_sequences(xs):
    return fc.federated_map(lambda s: fc.sequence_reduce(s, (0, -1), lambda total, e: (total[0] + 1, e)), xs)


# Seeds: folded from that of the call, that of a client from its index first; then from the place in the program.


def drawn(position, *path):
    """The seed of the operation at that position of the main function."""
    base = SEED
    for index in path:
        base = fold_in(base, index)
    return np.int64(fold_in(base, int.from_bytes(hashlib.sha256(str(position).encode()).digest()[:8], "big")))


@case("federated_random_seed", INTS, inputs=lambda n: [ints(n)], expected=lambda xs: (drawn(0), drawn(1)))
def draws_seeds_at_the_server(xs):
    return fc.federated_random_seed(SERVER), fc.federated_random_seed(SERVER)


@case(
    "federated_random_seed", INTS, inputs=lambda n: [ints(n)], expected=lambda xs: [drawn(0, k) for k in range(len(xs))]
)
def draws_seeds_at_the_clients(xs):
    return fc.federated_map(lambda seed, x: seed, (fc.federated_random_seed(CLIENTS), xs))
