"""Estimation processes: iterative ones whose state holds an estimate, which `report` takes out."""

from collections.abc import Callable

from fedcore.computation import Computation, federated_computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import federated_map
from fedcore.ir import Value
from fedcore.templates.iterative import IterativeProcess, check_computation, check_takes_state, label
from fedcore.types import FederatedType, Type


class EstimationProcess(IterativeProcess):
    """An iterative process with `report : (S -> R)`, the estimate that a state holds.

    Types: `initialize : (-> S)`, `next : (<S,…> -> S)`, `report : (S -> R)`.

    Args:
        next_is_multi_arg: as for an iterative process: whether `next` takes more than the state. Default: it may.
    Raises:
        TypeMismatch: as for an iterative process, or `report` does not take the state alone.
    Example:
        >>> process = fc.templates.EstimationProcess(initialize, next_round, report)
        >>> estimate = process.report(process.initialize())
    """

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        report_fn: Computation,
        next_is_multi_arg: bool | None = None,
    ) -> None:
        super().__init__(initialize_fn, next_fn, next_is_multi_arg)
        name = type(self).__name__
        check_computation(name, "report_fn", report_fn)
        check_takes_state(name, "report_fn", report_fn, self.state_type)
        if len(report_fn.module.main.parameters) != 1:
            raise TypeMismatch(
                f"{name}: {label('report_fn', report_fn)} takes the state alone, but has the type "
                f"{report_fn.type_signature}"
            )
        self._report = report_fn

    @property
    def report(self) -> Computation:
        return self._report

    @property
    def report_type(self) -> Type:
        return self._report.type_signature.result

    def map(self, map_fn: Callable) -> "EstimationProcess":
        """The process whose report is `map_fn` of this one's; a server value is mapped at the server.

        Example:
            >>> doubled = process.map(lambda estimate: estimate * 2.0)
        """
        report = self._report

        @federated_computation(self.state_type)
        def map_report(state: Value) -> Value:
            estimate = report(state)
            return federated_map(map_fn, estimate) if isinstance(estimate.type, FederatedType) else map_fn(estimate)

        return EstimationProcess(self._initialize, self._next, map_report)
