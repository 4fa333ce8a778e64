"""A Markdown page about a trained model: what it was trained on, how, and what it gave."""

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.programs.surroundings import surroundings_of

if TYPE_CHECKING:
    from fedcore.learning.programs.training import Training

_COUNTS = ("round", "clients", "broadcast_bits", "aggregate_bits", "num_examples", "num_batches")
"""Columns of a history that count, and so stand in no table of metrics."""


def model_card(training: "Training", name: str = "model") -> str:
    """A card of the model as it is now, in Markdown: data, rounds, metrics, epsilon, sizes, and what it was made with.

    Types: a text. `ModelCheckpoint` writes it beside each model, as `NAME.md`.

    Args:
        training: the running training, as a callback has it.
        name: of the model.
    Raises:
        FedcoreError: the plan of the process cannot be compiled.
    Example:
        >>> class Card(fc.learning.programs.Callback):
        ...     def on_train_end(self):
        ...         print(fc.learning.programs.model_card(self.training, 'linear').splitlines()[0])
        >>> _ = fc.learning.programs.train(process, data, 1, clients_per_round=2, callbacks=[Card()])
        # linear
    """
    rows = training.history.rows
    newest: dict[str, Any] = {}
    for row in rows:
        newest |= row
    tables = {
        "Data": _data_facts(training, rows),
        "Training": _training_facts(training, rows),
        "Metrics": {n: v for n, v in newest.items() if n not in (*_COUNTS, "epsilon") and not isinstance(v, str)},
        "Privacy": {"epsilon": newest.get("epsilon", "not measured: no fc.privacy.EpsilonCallback")},
        "Sizes": _sizes_of_weights(training),
        "Made with": surroundings_of(training.process),
    }
    parts = [f"# {name}", *(_table(title, values) for title, values in tables.items())]
    return "\n\n".join(parts) + "\n"


# Each of these gives the rows of one table: a title, and the value beside it.


def _data_facts(training: "Training", rows: list[dict]) -> dict[str, Any]:
    examples = [row["num_examples"] for row in rows if "num_examples" in row]
    data_type: Any = training.process.next.module.main.parameters[1].type
    example_counts = {"examples trained on, repeats counted": sum(examples)} if examples else {}
    number = training.number_of_clients
    return {
        "clients": "unknown" if number is None else number,
        "type of a client": f"`{data_type.member}`",
        **example_counts,
    }


def _training_facts(training: "Training", rows: list[dict]) -> dict[str, Any]:
    clients = [row["clients"] for row in rows if "clients" in row]
    facts: dict[str, Any] = {"rounds": f"{training.round} of {training.rounds}"}
    if clients:
        facts["clients a round"] = f"{min(clients)} to {max(clients)}" if len(set(clients)) > 1 else clients[0]
    for title, key in (("Mibit sent to clients", "broadcast_bits"), ("Mibit sent back", "aggregate_bits")):
        facts[title] = sum(row.get(key, 0) for row in rows) / 2**20
    return facts


def _sizes_of_weights(training: "Training") -> dict[str, Any]:
    def count(weights: TensorStructure) -> str:
        leaves = [leaf for leaf in tf.nest.flatten(weights) if hasattr(leaf, "nbytes")]
        return f"{sum(a.size for a in leaves):,} ({sum(a.nbytes for a in leaves):,} bytes)"

    weights = training.process.get_model_weights(training.state)
    changing = getattr(training.state, "global_model_weights", weights)
    trained = changing.trainable if hasattr(changing, "trainable") else changing
    return {"weights": count(weights), "trained weights": count(trained)}


def _table(title: str, values: dict[str, Any]) -> str:
    rows = "".join(f"| {name} | {_format_value(value)} |\n" for name, value in values.items())
    return f"## {title}\n\n| | |\n|---|---|\n{rows}".rstrip("\n")


def _format_value(value: object) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int | np.integer) else str(value).replace("|", "\\|")
