import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer, Optimizer
from fedcore.scalars import real_number


def _rms(x: tf.Tensor) -> tf.Tensor:  # root mean square
    return tf.sqrt(tf.reduce_mean(tf.square(x)))


class _Adafactor(LeafwiseOptimizer):
    counts_steps = True

    def __init__(
        self,
        learning_rate: float,
        beta_2_decay: float,
        epsilon_1: float,
        epsilon_2: float,
        clip_threshold: float,
        relative_step: bool,
    ) -> None:
        super().__init__(learning_rate=learning_rate)
        self.beta_2_decay = real_number("beta_2_decay", beta_2_decay)
        if self.beta_2_decay > 0:
            raise InvalidValue(
                f"beta_2_decay is at most 0, not {self.beta_2_decay}: the averages would not be averages"
            )
        self.epsilon_1 = real_number("epsilon_1", epsilon_1, at_least=0)
        self.epsilon_2 = real_number("epsilon_2", epsilon_2, at_least=0)
        self.clip_threshold = real_number("clip_threshold", clip_threshold, above=0)
        self.relative_step = bool(relative_step)

    def slots(self, weight: tf.Tensor) -> dict[str, tf.Tensor]:
        """Averages of squared gradients: by row and by column for weights of rank 2 or more, else for each element.

        The slots that a weight does not use have no elements.
        """
        none = tf.zeros([0], weight.dtype)
        if weight.shape.rank < 2:
            return {"rows": none, "columns": none, "preconditioner": tf.zeros_like(weight)}
        rows = tf.zeros(weight.shape[:-1], weight.dtype)
        columns = tf.zeros(weight.shape[:-2] + weight.shape[-1:], weight.dtype)
        return {"rows": rows, "columns": columns, "preconditioner": none}

    def step(
        self, hparams: dict, step: tf.Tensor, slots: dict, weight: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[dict, tf.Tensor]:
        """Algorithm 5 for vectors and scalars, with `preconditioner` as V; Algorithm 4 for matrices, with R and C."""
        rate = hparams["learning_rate"]
        if self.relative_step:
            rate = tf.minimum(rate, tf.cast(1 / tf.sqrt(step), weight.dtype))
        step_size = tf.maximum(tf.cast(self.epsilon_2, weight.dtype), _rms(weight)) * rate
        square = tf.square(gradient) + self.epsilon_1
        share = tf.cast(tf.pow(step, self.beta_2_decay), weight.dtype)  # 1 - beta_2, the weight of the new square
        new_slots = dict(slots)
        if weight.shape.rank < 2:
            new_slots["preconditioner"] = v = slots["preconditioner"] + share * (square - slots["preconditioner"])
        else:
            new_slots["rows"] = r = slots["rows"] + share * (tf.reduce_mean(square, -1) - slots["rows"])
            new_slots["columns"] = c = slots["columns"] + share * (tf.reduce_mean(square, -2) - slots["columns"])
            v = (r / tf.reduce_mean(r, -1, keepdims=True))[..., None] * c[..., None, :]
        change = gradient / tf.sqrt(v)
        return new_slots, weight - step_size * change / tf.maximum(
            tf.ones([], weight.dtype), _rms(change) / self.clip_threshold
        )


def build_adafactor(
    learning_rate: float = 0.001,
    beta_2_decay: float = -0.8,
    epsilon_1: float = 1e-30,
    epsilon_2: float = 1e-3,
    clip_threshold: float = 1.0,
    relative_step: bool = True,
) -> Optimizer:
    """Adafactor: second averages by rows and columns, so that they take little memory; as `keras.optimizers.Adafactor`.

    Types, for weights W:
        state  <learning_rate=float32,step=int64,rows=…,columns=…,preconditioner=…>: averages over the last and the
        one before the last dimension of weights of at least two, of the whole shape for the others.

    Args:
        learning_rate: the most that a step may change relative to the root mean square of a weight.
        beta_2_decay: the average keeps 1 - step^beta_2_decay; at most 0.
        epsilon_1: added to squared gradients.
        epsilon_2: the least scale of a weight.
        clip_threshold: the largest root mean square of a change before it is scaled; above 0.
        relative_step: whether the learning rate of step n is at most 1/√n.
    Raises:
        FedcoreError: a hyperparameter that is not finite or outside its range; others than beta_2_decay are at least 0.
    Source: Shazeer and Stern 2018, "Adafactor: adaptive learning rates with sublinear memory cost", arXiv:1804.04235,
        Algorithms 4 and 5.
    Example:
        >>> optimizer = fc.learning.optimizers.build_adafactor(0.01)
        >>> _, weights = optimizer.next(optimizer.initialize(tf.zeros(2)), tf.zeros(2), tf.constant([1.0, -2.0]))
        >>> weights.numpy().round(6)
        array([-1.e-05,  1.e-05], dtype=float32)
    """
    return _Adafactor(learning_rate, beta_2_decay, epsilon_1, epsilon_2, clip_threshold, relative_step)
