"""The metrics of each client: how a model does at the clients that it does worst at."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from fedcore.data import Cohort
from fedcore.errors import NotFound, TypeMismatch, brief
from fedcore.learning.process import LearningProcess
from fedcore.learning.programs.cohorts import as_client_data, check_type
from fedcore.learning.programs.history import plain_metrics
from fedcore.learning.programs.monitor import Monitor, is_number
from fedcore.program.optional_packages import optional_package
from fedcore.scalars import whole_number

if TYPE_CHECKING:
    import pandas


@attrs.frozen(repr=False)
class ClientMetrics:
    """The metrics of each client, by client id, as `evaluate_clients` returns them.

    Types: a row has a number, text or list for each metric of the model. Clients without examples, and those whose
    metric is NaN, are in no statistic of it.

    Args:
        rows: by client id; a client that the fault policy dropped has none.
    Raises:
        NotFound: clients have no such number.
    Example:
        >>> metrics = fc.learning.programs.ClientMetrics({'a': {'loss': 1.0}, 'b': {'loss': 3.0}, 'c': {'loss': 2.0}})
        >>> metrics.quantile('loss', 0.5), metrics.worst('loss', 2)
        (2.0, {'b': 3.0, 'c': 2.0})
    """

    rows: Mapping[Any, Mapping[str, Any]]

    def values(self, name: str) -> dict[Any, float]:
        """A metric by client id, without NaN and, but for num_examples and num_batches, without empty clients."""
        counts_data = name in ("num_examples", "num_batches")  # measured of clients without examples too: it is 0
        numbers = {
            client_id: row[name] if counts_data or row.get("num_examples") != 0 else float("nan")
            for client_id, row in self.rows.items()
            if is_number(row.get(name))
        }
        if not numbers and self.rows:
            names = dict.fromkeys(n for row in self.rows.values() for n, v in row.items() if is_number(v))
            raise NotFound(f"clients have no number {name}; they have {', '.join(names) or 'none'}")
        return {client_id: float(value) for client_id, value in numbers.items() if not np.isnan(value)}

    def quantile(self, name: str, q: float) -> float:
        """The value below which the metric of a share q of the clients is, as `numpy.quantile`; NaN without clients."""
        values = [*self.values(name).values()]
        return float(np.quantile(values, q)) if values else float("nan")

    def histogram(self, name: str, bins: Any = 10) -> tuple[np.ndarray, np.ndarray]:
        """(Number of clients in each bin, edges of the bins), as `numpy.histogram`."""
        return np.histogram([*self.values(name).values()], bins)

    def worst(self, name: str, k: int = 5, *, mode: str = "auto") -> dict[Any, float]:
        """The k clients with the worst values, the worst first.

        Args:
            mode: `min` where less is better, `max` where more is, or `auto`: accuracies, AUC, precision and recall are
                the better the greater they are.
        """
        k, monitor, values = whole_number("k", k, at_least=0), Monitor(name, mode), self.values(name)
        sign = 1 if monitor.direction == "maximize" else -1
        ordered = sorted(values, key=lambda client_id: (sign * values[client_id], str(client_id)))
        return {client_id: values[client_id] for client_id in ordered[:k]}

    def to_pandas(self) -> "pandas.DataFrame":
        """A `pandas.DataFrame` with a row for each client, its index.

        Raises:
            InvalidValue: pandas is not installed.
        """
        pandas = optional_package("pandas", "ClientMetrics.to_pandas", extra="pandas")
        return pandas.DataFrame.from_dict(dict(self.rows), orient="index")

    def __repr__(self) -> str:
        return f"<ClientMetrics of {len(self.rows)} clients>"


def evaluate_clients(evaluation: LearningProcess, weights: Any, data: Any) -> ClientMetrics:
    """Evaluates a model on all clients, and gives the metrics of each.

    Types: for weights W and batches B, `weights` are W, and `data` has for each client B*.

    Args:
        evaluation: a `build_fed_eval(…, per_client=…)`; with `per_client=[]` clients run side by side.
        weights: `history.state.global_model_weights`, a Keras model, or what else `set_model_weights` takes.
        data: a `fc.simulation.datasets.ClientData`, of which `data.select(ids)` evaluates some; or the clients' data
            sets in a list, or in a dict by client id.
    Raises:
        TypeMismatch: the evaluation was built without `per_client`; the data are no client data.
    Example:
        >>> evaluation = fc.learning.algorithms.build_fed_eval(model_fn, per_client=[])
        >>> found = fc.learning.programs.evaluate_clients(evaluation, keras_model(), data)
        >>> list(found.worst('loss', 1))
        ['a']
    """
    data = as_client_data("data", data)
    check_type("data", data, "evaluation", evaluation)
    state = evaluation.set_model_weights(evaluation.initialize(), weights)
    ids = list(data.client_ids)
    output = evaluation.next(state, Cohort(len(ids), lambda i: data.create_tf_dataset_for_client(ids[i]), ids))
    if not hasattr(output, "client_metrics"):
        expected = "an evaluation with per_client, as build_fed_eval(…, per_client=[])"
        raise TypeMismatch(f"evaluate_clients takes {expected}, not {brief(evaluation)}")
    rows = zip(ids, output.client_metrics, strict=True)
    return ClientMetrics({client_id: plain_metrics(row) for client_id, row in rows if row is not None})
