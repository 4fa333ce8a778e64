"""Changes a learning rate from round to round."""

from collections.abc import Callable

from fedcore.errors import InvalidValue
from fedcore.learning.programs.callback import Callback


class LearningRateScheduler(Callback):
    """Sets a hyperparameter of the process at the beginning of each round.

    Types: `(round: int from 1, rate: float -> float)`.

    Args:
        schedule: (round, the rate so far) -> the rate of this round. After a resume it is called with the same numbers,
            so it should depend on nothing else.
        hyperparameter: part and name, of those that `process.get_hparams(state)` lists.
    Raises:
        InvalidValue: the process has no such hyperparameter; the message lists those that it has.
    Example:
        >>> halved = fc.learning.programs.LearningRateScheduler(lambda round_number, rate: rate / 2)
        >>> before = float(process.get_hparams(process.initialize())['finalizer']['learning_rate'])
        >>> history = fc.learning.programs.train(process, data, 2, clients_per_round=2, callbacks=[halved])
        >>> float(process.get_hparams(history.state)['finalizer']['learning_rate']) / before
        0.25
    """

    def __init__(
        self, schedule: Callable[[int, float], float], hyperparameter: str = "finalizer.learning_rate"
    ) -> None:
        self._schedule = schedule
        self._hyperparameter = hyperparameter
        self._part, _, self._name = hyperparameter.partition(".")

    def on_train_begin(self) -> None:
        hparams = self.training.process.get_hparams(self.training.state)
        if self._name not in hparams.get(self._part, ()):
            has = ", ".join(f"{part}.{name}" for part, names in hparams.items() for name in names) or "none"
            raise InvalidValue(f"the process has no hyperparameter {self._hyperparameter}; it has {has}")

    def on_round_begin(self, round_number: int) -> None:
        training = self.training
        rate = float(training.process.get_hparams(training.state)[self._part][self._name])
        changes = {self._part: {self._name: self._schedule(round_number, rate)}}
        training.state = training.process.set_hparams(training.state, changes)
