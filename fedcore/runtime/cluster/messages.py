"""Messages between the driver and the workers of a cluster."""

import attrs

from fedcore.runtime.cluster.shipping import Parcel
from fedcore.types import Type


@attrs.frozen
class Source:
    """A function that opens clients' values, from a client's id.

    Args:
        digest: digest of the pickled function.
        function: reference to the pickled function.
        type: type of the values.
        path: name of the values, in messages.
    """

    digest: str
    function: object
    type: Type
    path: str


@attrs.frozen(eq=False)
class Bundle:
    """Arrays in the object store.

    Args:
        reference: reference to a dictionary from digests to arrays.
        digests: digests of the arrays.
    """

    reference: object
    digests: tuple[str, ...]


@attrs.frozen
class Missing:
    """The answer of a worker whose cache lacks arrays of a run."""


@attrs.frozen
class Answer:
    """The answer of a worker on a run.

    Args:
        result: `SliceResult` of the run or the error that its clients raise, the cause of the error, and the report,
            packed.
        seconds: the time of the run's graph calls.
    """

    result: Parcel
    seconds: float


@attrs.frozen
class Sent:
    """One client stage in the object store.

    Args:
        key: identifies the stage's run.
        digest: digest of the plan.
        plan: reference to the plan's bundle.
        work: the parcel of the `ClientWork`, which names the tensors that are broadcast, or a reference to it.
        broadcasts: the bundles that have these tensors.
        sources: for each cohort the function that opens its clients; None if their values travel.
        size: clients of a slice.
    """

    key: str
    digest: str
    plan: object
    work: object
    broadcasts: tuple[Bundle, ...]
    sources: tuple[Source | None, ...]
    size: int
