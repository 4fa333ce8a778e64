"""The task on federated CIFAR-100: classifying images."""

import enum
import os

import keras
import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.learning.baselines.task import BaselineTask, BaselineTaskDatasets, ClientSpec, Preprocess, evaluation_spec
from fedcore.learning.models import from_keras_model
from fedcore.learning.models.pure_model import PureModel
from fedcore.scalars import whole_number
from fedcore.simulation.datasets import cifar100

DEFAULT_CROP_HEIGHT = 24
DEFAULT_CROP_WIDTH = 24
_SHUFFLE_BUFFER = 500
_EVALUATION_BATCH = 64
_CLASSES = 100


class ResnetModel(enum.Enum):
    """The residual networks, by depth."""

    RESNET18 = "resnet18"
    RESNET34 = "resnet34"
    RESNET50 = "resnet50"
    RESNET101 = "resnet101"
    RESNET152 = "resnet152"


_BLOCKS = {  # blocks of each stage, and whether they are bottlenecks
    ResnetModel.RESNET18: ((2, 2, 2, 2), False),
    ResnetModel.RESNET34: ((3, 4, 6, 3), False),
    ResnetModel.RESNET50: ((3, 4, 6, 3), True),
    ResnetModel.RESNET101: ((3, 4, 23, 3), True),
    ResnetModel.RESNET152: ((3, 8, 36, 3), True),
}


def create_image_classification_task(
    train_client_spec: ClientSpec,
    eval_client_spec: ClientSpec | None = None,
    model_id: str | ResnetModel = "resnet18",
    crop_height: int = DEFAULT_CROP_HEIGHT,
    crop_width: int = DEFAULT_CROP_WIDTH,
    distort_train_images: bool = False,
    cache_dir: str | os.PathLike | None = None,
    use_synthetic_data: bool = False,
) -> BaselineTask:
    """Classifying images in 100 classes, by a residual network with group normalization.

    Types: a batch is `<float32[?,crop_height,crop_width,3],int64[?]>`; each image has mean 0 and deviation 1.

    Args:
        train_client_spec: how training clients read their data.
        eval_client_spec: how clients to evaluate do. Default: one pass in order, batches of 64.
        model_id: `resnet18`, `resnet34`, `resnet50`, `resnet101` or `resnet152`.
        crop_height, crop_width: of the middle of each image, 1 to 32.
        distort_train_images: whether training images are cropped at random places and flipped by chance.
        cache_dir: of `cifar100.load_data`.
        use_synthetic_data: `cifar100.get_synthetic()` in place of downloaded data, for tests.
    Raises:
        FedcoreError: there is no such model, or a crop is out of range; or as for `cifar100.load_data`.
    Source:
        Reddi et al. 2020, arXiv:2003.00295; He et al. 2016, arXiv:1603.05027, for the network; Hsieh et al. 2019,
        arXiv:1910.00189, for group normalization. A stage's stride is in the first block's first convolution, and
        weights have no decay.
    Example:
        >>> spec = fc.simulation.baselines.ClientSpec(num_epochs=1, batch_size=10)
        >>> task = fc.simulation.baselines.cifar100.create_image_classification_task(spec, use_synthetic_data=True)
        >>> task.datasets.element_type_structure[0].shape[1:]
        TensorShape([24, 24, 3])
    """
    try:
        model = ResnetModel(model_id)
    except ValueError:
        names = ", ".join(repr(m.value) for m in ResnetModel)
        raise InvalidValue(f"model_id is one of {names}, not {model_id!r}") from None
    for name, size in {"crop_height": crop_height, "crop_width": crop_width}.items():
        if whole_number(name, size, at_least=1) > 32:
            raise InvalidValue(f"{name} is at most 32, not {size}")
    crop = (crop_height, crop_width, 3)
    train, test = (cifar100.get_synthetic(),) * 2 if use_synthetic_data else cifar100.load_data(cache_dir)

    def preprocess(spec: ClientSpec, distorts: bool) -> Preprocess:
        def image_and_label(example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            return _image(example["image"], crop, distorts), example["label"]

        return lambda d: spec.elements_of(d, _SHUFFLE_BUFFER).map(image_and_label).batch(spec.batch_size)

    datasets = BaselineTaskDatasets(
        train,
        test,
        train_preprocess_fn=preprocess(train_client_spec, distort_train_images),
        eval_preprocess_fn=preprocess(evaluation_spec(eval_client_spec, _EVALUATION_BATCH), False),
    )

    def model_fn() -> PureModel:
        return from_keras_model(
            _resnet(crop, *_BLOCKS[model]),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            input_spec=datasets.element_type_structure,
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )

    return BaselineTask(datasets, model_fn)


def _image(image: tf.Tensor, crop: tuple[int, int, int], distorts: bool) -> tf.Tensor:
    """The cropped and standardized image.

    Args:
        crop: (height, width, channels).
        distorts: whether the crop is at a random place, and flipped by chance; else it is the middle.
    """
    image = tf.cast(image, tf.float32)
    if distorts:
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, crop))
    else:
        image = tf.image.resize_with_crop_or_pad(image, crop[0], crop[1])
    return tf.image.per_image_standardization(image)


def _resnet(shape: tuple[int, int, int], stages: tuple[int, ...], bottlenecks: bool) -> keras.Model:
    """A residual network whose blocks normalize before they convolve.

    Args:
        shape: of an image.
        stages, bottlenecks: the number of blocks of each stage and their kind, an entry of `_BLOCKS`.
    """
    inputs = keras.Input(shape)
    x = _normalize_and_activate(_convolution(inputs, 64, 7, 2))
    x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            x = _block(x, 64 * 2**stage, 2 if stage and not block else 1, bottlenecks)
    x = keras.layers.GlobalAveragePooling2D()(_normalize_and_activate(x))
    return keras.Model(inputs, keras.layers.Dense(_CLASSES, activation="softmax")(x))


def _block(x: keras.KerasTensor, filters: int, stride: int, bottleneck: bool) -> keras.KerasTensor:
    """A residual block: two convolutions, or three of a bottleneck, beside a shortcut."""
    width = filters * 4 if bottleneck else filters
    shortcut = x
    if stride > 1 or x.shape[-1] != width:
        shortcut = keras.layers.GroupNormalization()(_convolution(x, width, 1, stride))
    plain = ((filters, 3, stride), (width, 3, 1))
    for convolution in ((filters, 1, stride), (filters, 3, 1), (width, 1, 1)) if bottleneck else plain:
        x = _convolution(_normalize_and_activate(x), *convolution)
    return keras.layers.add([shortcut, x])


def _normalize_and_activate(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.ReLU()(keras.layers.GroupNormalization()(x))


def _convolution(x: keras.KerasTensor, filters: int, size: int, stride: int) -> keras.KerasTensor:
    return keras.layers.Conv2D(filters, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
