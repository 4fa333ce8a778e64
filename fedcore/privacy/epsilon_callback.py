"""A callback of `fc.learning.programs.train` that writes epsilon into each round's metrics."""

import json
from typing import Any

from fedcore.errors import TypeMismatch, brief
from fedcore.learning.programs import Callback
from fedcore.privacy.ledger import Ledger


class EpsilonCallback(Callback):
    """Records each round in a ledger; its `epsilon` stands in the round's row: history, progress, CSV, TensorBoard.

    A checkpoint keeps the ledger's rounds. Training and ledger have the same sampler: the ledger compares the clients.

    Args:
        ledger: of the process that is trained, without rounds.
    Raises:
        TypeMismatch: `ledger` is no `Ledger`.
        InvalidValue: in a training, as `Ledger.record`.
    Example:
        >>> callback = fc.privacy.EpsilonCallback(fc.privacy.Ledger(process, sampler, delta=1e-5))
    """

    def __init__(self, ledger: Ledger):
        if not isinstance(ledger, Ledger):
            raise TypeMismatch(f"EpsilonCallback takes a fc.privacy.Ledger, not {brief(ledger)}")
        self.ledger = ledger

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        logs["epsilon"] = self.ledger.record(self.training.state, self.training.client_ids)["epsilon"]

    def get_state(self) -> str:
        return json.dumps(self.ledger.get_state())

    def set_state(self, state: Any) -> None:
        self.ledger.set_state(json.loads(str(state)))
