"""A callback of `fc.learning.programs.train` that writes epsilon into each round's metrics."""

import json
from typing import Any

from fedcore.errors import TypeMismatch, brief
from fedcore.learning.programs import Callback
from fedcore.privacy.ledger import Ledger
from fedcore.privacy.release_journal import ReleaseJournal, digest_of
from fedcore.program.run_directory import RELEASES


class EpsilonCallback(Callback):
    """Records each round in a ledger; its `epsilon` stands in the round's row: history, progress, CSV, TensorBoard.

    A result is recorded before anything looks at it. A checkpoint keeps the ledger's rounds. A training's directory
    keeps all results in `releases.jsonl`, also those of rounds that a crash takes back: a round that is run again costs
    nothing if its result is equal, and what is due if it has noise of its own. Training and ledger have the same
    sampler: the ledger compares the clients.

    Args:
        ledger: of the process that is trained, without rounds.
    Raises:
        TypeMismatch: `ledger` is no `Ledger`; in a training, its process is another.
        InvalidValue: in a training, as `Ledger.record`; a round that is run again has another result of the same noise,
            as where other clients failed.
    Example:
        >>> callback = fc.privacy.EpsilonCallback(fc.privacy.Ledger(process, sampler, delta=1e-5))
    """

    def __init__(self, ledger: Ledger) -> None:
        if not isinstance(ledger, Ledger):
            raise TypeMismatch(f"EpsilonCallback takes a fc.privacy.Ledger, not {brief(ledger)}")
        self.ledger = ledger
        self._journal = ReleaseJournal(None)
        self._epsilon = 0.0

    def on_train_begin(self) -> None:
        self.ledger.check_follows(self.training.process)
        directory = self.training.directory
        self._journal = ReleaseJournal(None if directory is None else directory / RELEASES)
        self.ledger.add_releases(self._journal.releases)

    def on_result(self, round_number: int) -> None:
        state, ledger, clients = self.training.state, self.ledger, self.training.client_ids
        count = ledger.rounds_of_noise(state)
        digest = digest_of(self.training.process.get_model_weights(state))
        digests = self._journal.digests_of(count)
        if digest not in digests:
            record = ledger.record_again if digests else ledger.record
            record(state, clients)
            self._journal.append(ledger.last_release(state, digest))
        self._epsilon = ledger.epsilon(rounds=count)

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        logs["epsilon"] = self._epsilon

    def get_state(self) -> str:
        return json.dumps(self.ledger.get_state())

    def set_state(self, state: Any) -> None:
        self.ledger.set_state(json.loads(str(state)))
