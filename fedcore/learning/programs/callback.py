"""The protocol of callbacks of a training, with the conventions of Keras."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcore.learning.programs.training import Training


class Callback:
    """Methods that `train` calls; a derived class overrides those that it needs.

    Types: rounds are whole numbers from 1; `logs` is the round's row of the history, a dict that may be extended.

    Attributes:
        training: the running `training.Training`, set before `on_train_begin`. A callback may read all of it, assign
            `training.state`, and set `training.stop_training` to end the training after this round.
    Raises:
        Any exception: it ends the training; a training with a directory can be resumed from the round before.
    Example:
        >>> class Printed(fc.learning.programs.Callback):
        ...     def on_round_end(self, round_number, logs):
        ...         print(round_number, logs['num_examples'])
        >>> _ = fc.learning.programs.train(process, data, 2, clients_per_round=2, callbacks=[Printed()])
        1 5
        2 5
    """

    training: "Training"

    def set_training(self, training: "Training") -> None:
        self.training = training

    def on_train_begin(self) -> None:
        """The training begins, or goes on from a checkpoint."""

    def on_round_begin(self, round_number: int) -> None:
        """A round begins."""

    def on_result(self, round_number: int) -> None:
        """A round has a result, `training.state`, which nothing has looked at: no evaluation, no other callback.

        It is not to be changed here. After a crash the round may be run again, and this method called again.
        """

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        """A round has been run and, where it was due, evaluated; its checkpoint is not yet written.

        After a crash the last two rounds may be run again, and this method called again.
        """

    def on_train_end(self) -> None:
        """The training has ended, not by an exception."""

    def get_state(self) -> Any:
        """The callback's part of a checkpoint: a structure of arrays, numbers and texts. Default: None.

        It is taken at the end of the round and written beside the next one; it may change meanwhile.
        """
        return None

    def set_state(self, state: Any) -> None:
        """Gives the callback the state that a checkpoint kept, in plain dicts, lists and tuples."""
