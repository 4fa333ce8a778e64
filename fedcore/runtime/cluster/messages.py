"""Messages between the driver and the workers of a cluster."""

import attrs

from fedcore.runtime.cluster.shipping import Parcel
from fedcore.types import Type


@attrs.frozen
class Source:
    """A function from a client's id to the client's value, which a worker opens.

    Args:
        digest: digest of the pickled function.
        function: reference to the pickled function in the object store.
        type: type of the values.
        path: the user's name of the values, for messages of errors.
    """

    digest: str
    function: object
    type: Type
    path: str


@attrs.frozen(eq=False)
class Bundle:
    """Arrays that are one object in the object store.

    Args:
        reference: reference to the object, a dictionary from digests to arrays.
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
        result: the packed tuple of the `SliceResult` of the run or the error that its clients raise, the cause of the
            error, and the worker's report.
        seconds: the time of the run on the worker.
    """

    result: Parcel
    seconds: float


@attrs.frozen
class Sent:
    """The parts of one execution of a client stage, or their references in the object store.

    Args:
        key: identifies the execution.
        digest: digest of the plan.
        plan: reference to the bytes of the plan.
        work: the `Parcel` of the `ClientWork`, in which the tensors that are broadcast are names, or a reference to it.
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
