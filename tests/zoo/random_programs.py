"""Random models, losses, weights and pipelines as programs in Python, compared with plain Keras and plain tf.data.

A program is a choice of lines, so that it can be printed, shrunk line by line, and run outside of the zoo.
"""

from collections.abc import Iterator
from pathlib import Path

import attrs
import keras
import numpy as np

import fedcore as fc

from .entries import LENGTH, Column, DataKind, Model
from .runner import DIFFERS, Comparison, compare
from .trainings import TRAININGS, Training

_PREAMBLE = Path(__file__).with_name("random_parts.py").read_text()

# What fedcore is asked for beside the plan that it would choose: arguments of `fc.runtime.local`.
STRATEGIES: dict[str, dict] = {
    "auto": {},
    "pairs": {"vectorize": 2, "block_size": 2},
    "a client at a time": {"vectorize": False},
    "no low rank": {"low_rank": False},
}

# For each kind of input: the Keras input, its draw, the first kind of hidden values.
_INPUTS = {
    "vectors": ("keras.Input((6,))", 'rng.normal(size=(n, 6)).astype("float32")', "flat"),
    "series": (f"keras.Input(({LENGTH}, 2))", f'rng.normal(size=(n, {LENGTH}, 2)).astype("float32")', "steps"),
    "words": (f'keras.Input(({LENGTH},), dtype="int32")', f'rng.integers(0, 9, (n, {LENGTH})).astype("int32")', "ids"),
    "padded words": (
        f'keras.Input(({LENGTH},), dtype="int32")',
        f"(rng.integers(1, 9, (n, {LENGTH})) * (np.arange({LENGTH}) < rng.integers(0, {LENGTH} + 1, (n, 1))))"
        '.astype("int32")',
        "ids",
    ),
    "large and small": (
        "keras.Input((6,))",
        '(rng.normal(size=(n, 6)) * 10.0 ** rng.integers(-38, 3, (n, 6))).astype("float32")',
        "flat",
    ),
    "doubles": ('keras.Input((6,), dtype="float64")', "rng.normal(size=(n, 6))", "flat"),
    "integers": ('keras.Input((6,), dtype="int64")', "rng.integers(-(2**40), 2**40, (n, 6))", "numbers"),
    "images": ("keras.Input((6, 6, 2))", 'rng.normal(size=(n, 6, 6, 2)).astype("float32")', "image"),
}

_ANYWHERE = (
    "Rows()(h)",
    "Scattered()(h)",
    "Shares()(h)",
    "Lanes()(h)",
    "Doubles()(h)",
    'Annealed("int32")(h)',
    'Annealed("uint8")(h)',
    'Annealed("bool")(h)',
    'Annealed("float64")(h)',
)
_ANYWHERE_FLAT = [(text, "flat") for text in _ANYWHERE]
_ANYWHERE_STEPS = [(text, "steps") for text in _ANYWHERE]

# For each kind of hidden values: expressions of h, and the kind that they give.
_LAYERS: dict[str, list[tuple[str, str]]] = {
    "ids": [("L.Embedding(9, 4)(h)", "steps"), ("L.Embedding(9, 4, mask_zero=True)(h)", "steps")],
    "numbers": [
        ('keras.ops.cast(h % 7, "float32")', "flat"),
        ('keras.ops.cast(h // 2**36, "float32")', "flat"),
        ('keras.ops.cast(keras.ops.sign(h), "float32")', "flat"),
        ("keras.ops.one_hot(h % 5, 5)", "steps of six"),
    ],
    "steps of six": [("L.Flatten()(h)", "flat")],
    "flat": [
        ('L.Dense(4, activation="relu")(h)', "flat"),
        ('L.Dense(5, activation="tanh", kernel_regularizer="l2")(h)', "flat"),
        ('L.Dense(4, activation="gelu", kernel_initializer=FIXED, trainable=False)(h)', "flat"),
        ("L.BatchNormalization(momentum=0.5)(h)", "flat"),
        ("L.BatchNormalization(trainable=False)(h)", "flat"),
        ("L.LayerNormalization()(h)", "flat"),
        ("L.PReLU()(h)", "flat"),
        ("h + L.Dense(h.shape[-1])(h)", "flat"),
        ("keras.ops.sigmoid(L.Dense(h.shape[-1])(h)) * h", "flat"),
        ("L.Concatenate()([h, L.Dense(2)(h)])", "flat"),
        ("L.UnitNormalization()(h)", "flat"),
        ("L.ActivityRegularization(l2=0.01)(h)", "flat"),
        ("L.RepeatVector(3)(h)", "steps"),
        *_ANYWHERE_FLAT,
        ("Slope()(h)", "flat"),
        ("SlopePenalty()(h)", "flat"),
        ("Waves()(h)", "flat"),
        ("L.Softmax()(h, mask=h > 0)", "flat"),
        ("keras.ops.log_softmax(keras.ops.where(h > 0, h, -3e38))", "flat"),
        ("keras.ops.where(h > 0.5, h, keras.ops.logsumexp(h, -1, keepdims=True))", "flat"),
        ("keras.ops.tanh(h * 1e30) * 0.5 + h", "flat"),
        ("Extremes()(h)", "flat"),
        ("h * keras.ops.cast(keras.ops.argmax(h, -1, keepdims=True), h.dtype)", "flat"),
        ("keras.ops.sort(h, -1)", "flat"),
        ("keras.ops.cumsum(h, 0) / 10.0", "flat"),
        ("h - keras.ops.max(h, 0, keepdims=True)", "flat"),
        ('L.Dense(200, activation="relu")(L.Dense(200, activation="relu")(h))', "flat"),
    ],
    "steps": [
        ("L.LSTM(3, return_sequences=True)(h)", "steps"),
        ("L.GRU(3, return_sequences=True)(h)", "steps"),
        ("L.Bidirectional(L.SimpleRNN(2, return_sequences=True))(h)", "steps"),
        ('L.Conv1D(3, 2, padding="same", activation="relu")(h)', "steps"),
        ('L.Conv1D(3, 2, padding="causal", dilation_rate=2)(h)', "steps"),
        ("h + L.MultiHeadAttention(2, 2)(h, h)", "steps"),
        ("L.LayerNormalization()(h)", "steps"),
        ("L.BatchNormalization(momentum=0.5)(h)", "steps"),
        ('L.TimeDistributed(L.Dense(4, activation="relu"))(h)', "steps"),
        ("L.Masking()(h)", "steps"),
        ("L.LSTM(3)(h)", "flat"),
        ("L.GRU(3, go_backwards=True)(h)", "flat"),
        ("L.GlobalAveragePooling1D()(h)", "flat"),
        ("L.GlobalMaxPooling1D()(h)", "flat"),
        *_ANYWHERE_STEPS,
        ("L.Flatten()(h)", "flat"),
        ("L.MultiHeadAttention(1, 3)(h, h)", "steps"),
        ("L.MultiHeadAttention(2, 2)(h, h, use_causal_mask=True)", "steps"),
        ("L.Attention()([h, h])", "steps"),
        ("L.Softmax(axis=1)(h, mask=h > 0)", "steps"),
        ("keras.ops.softmax(keras.ops.where(h > 0.2, h, -3e38), axis=1)", "steps"),
        ("keras.ops.max(h, 1)", "flat"),
        ("keras.ops.take_along_axis(h, keras.ops.argsort(h, 1), 1)", "steps"),
    ],
    "image": [
        ('L.Conv2D(3, 3, padding="same", activation="relu")(h)', "image"),
        ('L.Conv2D(2, 2, padding="same", strides=2)(h)', "image"),
        ('L.DepthwiseConv2D(2, padding="same")(h)', "image"),
        ('L.SeparableConv2D(2, 2, padding="same")(h)', "image"),
        ("L.BatchNormalization(momentum=0.5)(h)", "image"),
        ('L.MaxPooling2D(2, padding="same")(h)', "image"),
        ('L.AveragePooling2D(2, padding="same")(h)', "image"),
        ("L.GlobalAveragePooling2D()(h)", "flat"),
        ("L.Flatten()(h)", "flat"),
        ("L.Reshape((-1, h.shape[-1]))(h)", "steps"),
    ],
}

_CLASSES = (
    ("L.Dense(3{name})(h)", "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"),
    ('L.Dense(3, activation="softmax"{name})(h)', '"sparse_categorical_crossentropy"'),
    ('L.Dense(3, activation="softmax"{name})(h)', "keras.losses.sparse_categorical_crossentropy"),
    ("L.Dense(3{name})(h)", "keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)"),
    ("L.Rescaling(1e4{name})(L.Dense(3)(h))", "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"),
)
_NUMBERS = (
    ("L.Dense(1{name})(h)", "keras.losses.MeanSquaredError()"),
    ("L.Dense(1{name})(h)", '"mae"'),
    ("L.Dense(1{name})(h)", "keras.losses.huber"),
    ("L.Dense(1{name})(h)", "own_loss"),
)
_BITS = (
    ('L.Dense(1, activation="sigmoid"{name})(h)', '"binary_crossentropy"'),
    ("L.Dense(1{name})(h)", "keras.losses.BinaryFocalCrossentropy(from_logits=True)"),
)
_ONE_HOT = (
    ('L.Dense(3, activation="softmax"{name})(h)', '"categorical_crossentropy"'),
    ("L.Dense(3{name})(h)", "keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)"),
)
_CLASS_METRICS = (
    '["accuracy"]',
    '["sparse_top_k_categorical_accuracy"]',
    "[keras.metrics.SparseCategoricalAccuracy()]",
)
# Tiny inputs have logits of almost 0: the last bit of a kernel decides on which side of 0.5 their probability lies.
_BIT_ACCURACY = '[keras.metrics.BinaryAccuracy("accuracy", threshold=0.47)]'
_NUMBER_METRICS = ('["mse"]', '["mae", keras.metrics.RootMeanSquaredError()]', "[own_loss]", "[Parts()]")

_FLOAT = '.astype("float32")'

# For heads of vectors and of steps: heads with losses, draws of labels, metrics.
_HEADS = {
    "flat": [
        (_CLASSES, ("rng.integers(0, 3, n)", 'rng.integers(0, 3, (n, 1)).astype("int32")'), _CLASS_METRICS),
        (_NUMBERS, ("rng.normal(size=(n, 1))" + _FLOAT, "rng.normal(size=n)" + _FLOAT), _NUMBER_METRICS),
        (_BITS, ("rng.integers(0, 2, (n, 1))" + _FLOAT, "rng.integers(0, 2, n)"), (_BIT_ACCURACY, '["AUC"]')),
        (_ONE_HOT, ('np.eye(3, dtype="float32")[rng.integers(0, 3, n)]',), ('["accuracy"]', '["F1Score"]')),
    ],
    "steps": [
        (_CLASSES, ("rng.integers(0, 3, (n, STEPS))",), _CLASS_METRICS[:1]),
        (
            _NUMBERS,
            ("rng.normal(size=(n, STEPS, 1))" + _FLOAT, "rng.normal(size=(n, STEPS))" + _FLOAT),
            _NUMBER_METRICS[:1],
        ),
    ],
}

_EXAMPLE_WEIGHTS = 'rng.uniform(0, 2, n).astype("float32")'
_STEP_WEIGHTS = 'rng.uniform(0, 2, (n, STEPS)).astype("float32")'

_BEFORE_BATCH = (
    "shuffle(20, seed=4)",
    "shuffle(3, seed=9)",
    "repeat(2)",
    "take(9)",
    "skip(2)",
    "cache()",
    "prefetch(1)",
    "map(lambda *e: (tf.nest.map_structure(lambda t: t * tf.cast(2, t.dtype), e[0]), *e[1:]))",
    "filter(lambda *e: tf.reduce_sum(tf.cast(tf.nest.flatten(e[0])[0], tf.float32)) > -1)",
)
_BATCH = ("batch(4)", "batch(3)", "batch(4, drop_remainder=True)", "batch(1)", "batch(100)", "padded_batch(4)")
_AFTER_BATCH = (
    "repeat(2)",
    "shuffle(5, seed=2)",
    "take(3)",
    "prefetch(tf.data.AUTOTUNE)",
    "map(lambda *e: tf.nest.map_structure(lambda t: t[::-1], e))",
    "unbatch().batch(3)",
)
_SIZES = ((9, 6), (4,), (7, 0, 5), (1, 2), (8, 8, 8), (13, 1))


@attrs.frozen
class _Output:
    head: str
    labels: str
    loss: str
    metrics: str | None
    weight: float | None


@attrs.frozen
class Program:
    """A random program: a model, losses, weights, a pipeline and a training."""

    seed: int
    input: str
    layers: tuple[str, ...]
    outputs: tuple[_Output, ...]
    as_dict: bool
    weights: tuple[str, ...]
    weighs_metrics: bool
    steps: tuple[str, ...]
    sizes: tuple[int, ...]
    source: str
    training: str
    strategy: str = "auto"

    def definitions(self) -> str:
        """The program's own lines: make, X, Y, W, arguments, pipeline."""
        layer, draw, _ = _INPUTS[self.input]
        lines = ["def make():", f"    x = h = {layer}", *(f"    h = {text}" for text in self.layers)]
        heads = [o.head.format(name=f', name="{n}"' if self._several else "") for n, o in self._named]
        lines += [f"    return keras.Model(x, {self._structure(heads)})", "", ""]
        labels = self._structure([f"lambda rng, n: {o.labels}" for o in self.outputs], tuples=True)
        lines += [f"X = lambda rng, n: {draw}", f"Y = {labels}"]
        if self.weights:
            drawn = [f"lambda rng, n: {text}" for text in self.weights]
            lines.append(f"W = {drawn[0] if len(drawn) == 1 else self._structure(drawn, tuples=True)}")
        arguments = {"loss": self._structure([o.loss for o in self.outputs])}
        if any(o.weight is not None for o in self.outputs):
            arguments["loss_weights"] = self._structure([str(o.weight or 1.0) for o in self.outputs])
        if any(o.metrics for o in self.outputs):
            name = "weighted_metrics" if self.weighs_metrics else "metrics"
            arguments[name] = self._structure([o.metrics or "[]" for o in self.outputs])
        given = ", ".join(f"{name}={text}" for name, text in arguments.items())
        lines += [
            "arguments = lambda: dict(" + given + ")",
            f"pipeline = lambda dataset: dataset.{'.'.join(self.steps)}",
        ]
        return "\n".join(lines).replace("STEPS", str(self._length))

    @property
    def _length(self) -> int:
        """Steps of a sequence behind the layers."""
        repeated = [text for text in self.layers if "RepeatVector" in text]
        if repeated:
            return 3
        return LENGTH if self.input in ("series", "words", "padded words") else _pixels(self.layers)

    @property
    def _several(self) -> bool:
        return len(self.outputs) > 1

    @property
    def _named(self) -> list[tuple[str, _Output]]:
        return list(zip("abcdef", self.outputs, strict=False))

    def _structure(self, texts: list[str], *, tuples: bool = False) -> str:
        """One text, or a dict or list of the outputs' texts."""
        if not self._several:
            return texts[0]
        if self.as_dict:
            return "{" + ", ".join(f'"{n}": {t}' for (n, _), t in zip(self._named, texts, strict=True)) + "}"
        return f"({', '.join(texts)})" if tuples else f"[{', '.join(texts)}]"

    def entries(self) -> tuple[Model, DataKind]:
        """The program as entries of the zoo."""
        names: dict = {"__name__": "random_program"}
        exec(_PREAMBLE + self.definitions(), names)
        x, y, w = (
            keras.tree.map_structure(lambda draw: Column(lambda rng, n, _: draw(rng, n)), names.get(part))
            if part in names
            else None
            for part in "XYW"
        )
        arguments = names["arguments"]
        model = Model(
            f"random {self.seed}",
            names["make"],
            x,
            y,
            arguments()["loss"],
            sample_weight=w,
            loss_weights=arguments().get("loss_weights"),
            metrics=(lambda: arguments()["metrics"]) if "metrics" in arguments() else None,
            weighted_metrics=(lambda: arguments()["weighted_metrics"]) if "weighted_metrics" in arguments() else None,
        )
        return model, DataKind("random", self.sizes, self.source, names["pipeline"])

    def compare(self, target: str | None = None) -> Comparison:
        """The comparison with plain Keras; `target`: the kind of machine whose plan runs, by default this machine's."""
        model, kind = self.entries()
        training = TRAININGS[self.training]
        options = STRATEGIES[self.strategy] | ({"target": target} if target else {})
        if options and training.runtime is fc.runtime.local:
            training = attrs.evolve(training, runtime=lambda: fc.runtime.local(**options))
        (comparison,) = compare(model, training, [kind])
        return comparison

    def text(self) -> str:
        """A program that needs no zoo: one client's round, and what train_on_batch gives for the same batches."""
        return "\n".join([_PREAMBLE, "", self.definitions(), self._ending()])

    def _ending(self) -> str:
        client = TRAININGS[self.training].client
        simple = TRAININGS[self.training] == Training(self.training, client=client) and len(self.sizes) == 1
        parts = "(X, Y, W)" if self.weights else "(X, Y)"
        source = (
            "fc.data.ClientDataset.from_columns" if self.source == "columns" else "tf.data.Dataset.from_tensor_slices"
        )
        zoo = f"# In the zoo: training {self.training!r}, clients of {self.sizes}, runtime {self.strategy!r}.\n"
        training = "" if simple and self.strategy == "auto" else zoo
        return f"""\
rng = np.random.default_rng(0)
columns = keras.tree.map_structure(lambda draw: draw(rng, {max(self.sizes)}), {parts})
{training}data = pipeline({source}(columns))
process = fc.learning.algorithms.build_weighted_fed_avg(
    lambda: fc.learning.from_keras_model(make(), input_spec=data.element_spec, **arguments()),
    lambda: keras.optimizers.{client},
)
state = process.initialize()
plain, ours = make(), make()
process.get_model_weights(state).assign_weights_to(plain)
plain.compile(keras.optimizers.{client}, run_eagerly=True, **arguments())
for batch in pipeline(tf.data.Dataset.from_tensor_slices(columns)):
    plain.train_on_batch(*batch)
state, metrics = process.next(state, [data])
process.get_model_weights(state).assign_weights_to(ours)
for a, b in zip(plain.variables, ours.variables):
    print(a.path, np.abs(a.numpy() - b.numpy()).max())
print(metrics["client_work"]["train"])
"""


def _pixels(layers: tuple[str, ...]) -> int:
    """Steps after an image of 6 × 6 became a sequence."""
    side = 6
    for text in layers:
        if "Reshape" in text:
            break
        if "strides=2" in text or "Pooling2D(2" in text:
            side = (side + 1) // 2
    return side * side


def random_program(seed: int) -> Program:
    rng = np.random.default_rng([seed, 21])

    def pick(choices):
        return choices[rng.integers(len(choices))]

    def some(choices, most):
        return tuple(pick(choices) for _ in range(rng.integers(0, most + 1)))

    input_ = pick(list(_INPUTS))
    layers, kind = _random_layers(rng, input_)
    outputs = []
    for _ in range(pick((1, 1, 1, 2, 2, 3))):
        heads, labels, metrics = pick(_HEADS[kind])
        head, loss = pick(heads)
        drawn = pick(labels)
        weight = float(pick((0.5, 2.0))) if rng.random() < 0.3 else None
        outputs.append(_Output(head, drawn, loss, pick(metrics) if rng.random() < 0.5 else None, weight))
    drawn = _EXAMPLE_WEIGHTS if kind == "flat" else _STEP_WEIGHTS
    weights: tuple[str, ...] = ()
    if rng.random() < 0.3:
        weights = (drawn,) * (len(outputs) if rng.random() < 0.5 else 1)
    return Program(
        seed=seed,
        input=input_,
        layers=layers,
        outputs=tuple(outputs),
        as_dict=bool(rng.random() < 0.5),
        weights=weights,
        weighs_metrics=bool(rng.random() < 0.3),
        steps=(*some(_BEFORE_BATCH, 3), pick(_BATCH), *some(_AFTER_BATCH, 2)),
        sizes=pick(_SIZES),
        source=pick(("columns", "columns", "tf.data", "open tf.data", "ClientData.preprocess")),
        training=pick([name for name in TRAININGS if name != "masked secure sums"]),
        strategy=pick(("auto", *STRATEGIES)),
    )


def _random_layers(rng, input_: str) -> tuple[tuple[str, ...], str]:
    kind, layers = _INPUTS[input_][2], []
    depth = int(rng.integers(1, 5))
    while len(layers) < depth or kind not in _HEADS:
        choices = _LAYERS[kind]
        text, kind = choices[rng.integers(len(choices))]
        layers.append(text)
    return tuple(layers), kind


def minimal(program: Program, outcome: Comparison, target: str | None = None) -> tuple[Program, Comparison]:
    """The shortest program, by lines left out one after another, that still differs in the same manner."""
    manner = _manner(outcome)
    for simpler in _simpler(program):
        try:
            comparison = simpler.compare(target)
        except Exception:
            continue  # what is left is no program
        if comparison.outcome == DIFFERS and _manner(comparison) == manner:
            return minimal(simpler, comparison, target)
    return program, outcome


def _manner(comparison: Comparison) -> str:
    return comparison.detail.split(":")[0].split(" ")[0]


def _simpler(program: Program) -> Iterator[Program]:
    plain = {"training": "sgd", "source": "columns", "strategy": "auto", "weights": (), "weighs_metrics": False}
    plain["as_dict"] = False
    for name, value in plain.items():
        if getattr(program, name) != value:
            yield attrs.evolve(program, **{name: value})
    if len(program.sizes) > 1:
        yield attrs.evolve(program, sizes=(max(program.sizes),))
    for name in ("outputs", "layers", "steps"):
        items = getattr(program, name)
        for i in range(len(items)):
            if len(items) > 1 and not (name == "steps" and items[i] in _BATCH):
                yield attrs.evolve(program, **{name: items[:i] + items[i + 1 :]})
    for i, output in enumerate(program.outputs):
        for name in ("metrics", "weight"):
            if getattr(output, name) is not None:
                simple = attrs.evolve(output, **{name: None})
                yield attrs.evolve(program, outputs=(*program.outputs[:i], simple, *program.outputs[i + 1 :]))
