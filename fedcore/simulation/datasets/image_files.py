"""Client data from folders of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.scalars import whole_number
from fedcore.simulation.datasets.stored_client_data import StoredClientData

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")

Table = Mapping[str, Any] | Callable[[str], Any]
"""An image's path within the directory, such as `ann/cat/1.png`, -> its label or client; also a `pandas.Series`."""


class ImageFolders(StoredClientData):
    """Client data from images in files, as `image_folders` returns them.

    Attributes:
        class_names: the names of labels, in the order of their numbers; none of labels that are numbers.
    """

    def __init__(self, store: _Images, class_names: list[str]) -> None:
        super().__init__(store)
        self.class_names = class_names


def image_folders(
    path: str | os.PathLike,
    *,
    labels: Table | None = None,
    clients: Table | None = None,
    image_size: tuple[int, int] = (256, 256),
    color_mode: str = "rgb",
) -> ImageFolders:
    """Client data from a directory of images: a client's images are read when its data set is asked for.

    Types, for each client, for `image_size` (H, W) and C channels: `(float32[H,W,C],int32)*`, an image with values from
    0 to 255 and its label. As `keras.utils.image_dataset_from_directory`, it reads BMP, GIF (the first picture), JPEG
    and PNG by their endings, resizes bilinearly, and numbers classes in the order of their names. Other files are left
    out.

    A client in memory takes 4·H·W·C bytes an image, while its round runs. Opening lists the files and reads none.

    Args:
        path: the directory.
        labels: the label of each image, by its path within the directory: a dict, a `pandas.Series` or a function.
            Numbers stay, and text is numbered. Default: the folder in which the image is.
        clients: the client of each image, in the same way. Default: the first folder of its path. The defaults of both
            need paths such as `CLIENT/LABEL/1.png`.
        image_size: height and width to which images are resized.
        color_mode: `grayscale` (one channel), `rgb` (three) or `rgba` (four).
    Raises:
        InvalidValue: there is no such directory, or no image in it; an image has no label or client; or its one folder
            would be both. When a client is read: TensorFlow cannot decode an image, whose path the message has.
    Example:
        >>> data = image_folders(folder, image_size=(8, 8))
        >>> data.client_ids, data.class_names
        (['ann', 'bob'], ['cat', 'dog'])
        >>> image, label = next(data.create_tf_dataset_for_client("bob").as_numpy_iterator())
        >>> image.shape, int(label)
        ((8, 8, 3), 1)
    """
    root = Path(path).absolute()
    if not root.is_dir():
        raise InvalidValue(f"image_folders: there is no directory {root}")
    files = sorted(
        Path(folder, name).relative_to(root).as_posix()
        for folder, _, names in os.walk(root)
        for name in names
        if name.lower().endswith(_ENDINGS)
    )
    if not files:
        raise InvalidValue(f"image_folders: there is no image ({', '.join(_ENDINGS)}) in {root}")
    if labels is None and clients is None:
        _check_two_folders(files)
    label_of_file = _look_up("labels", labels, files, lambda file: file.split("/")[-2:-1])
    client_of_file = _look_up("clients", clients, files, lambda file: file.split("/")[:-1][:1])
    numbers, class_names = _numbered(label_of_file)
    by_client: dict[str, list[tuple[str, int]]] = {}
    for file, client, number in zip(files, client_of_file, numbers, strict=True):
        by_client.setdefault(str(client), []).append((file, number))
    if not isinstance(image_size, tuple | list) or len(image_size) != 2:
        raise TypeMismatch(f"image_folders: image_size is a pair (height, width), not {brief(image_size)}")
    height, width = (whole_number(f"image_size[{i}]", image_size[i], at_least=1) for i in range(2))
    if color_mode not in _CHANNELS:
        raise InvalidValue(f"image_folders: color_mode is {', '.join(_CHANNELS)}, not {brief(color_mode)}")
    return ImageFolders(_Images(str(root), by_client, (height, width), _CHANNELS[color_mode]), class_names)


_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}


def _check_two_folders(files: list[str]) -> None:
    """Refuses images that are not in two folders, of which one is the client and the other the label."""
    shallow = [file for file in files if file.count("/") < 2]
    if shallow:
        raise InvalidValue(
            f"image_folders: {shallow[0]} is not in two folders, CLIENT/LABEL\n"
            "  fix: labels={path: label} if the folder is the client\n"
            "  fix: clients={path: client} if it is the label"
        )


def _look_up(role: str, table: Any, files: list[str], folder_of: Callable[[str], list[str]]) -> list:
    """For each image the entry of the table, by default the name of a folder.

    Args:
        role: the argument that is the table, for messages.
        table: a `Table`; None for the default.
        folder_of: path of an image -> a list of the name of its folder; empty if it is in none.
    """
    if table is None:
        folders = [folder_of(file) for file in files]
        if not all(folders):
            raise InvalidValue(f"image_folders: {files[folders.index([])]} is in no folder; fix: {role}={{path: …}}")
        return [folder for (folder,) in folders]
    if not callable(table):
        if not hasattr(table, "keys"):
            raise TypeMismatch(
                f"image_folders: {role} is a dict from paths or a function of a path, not {brief(table)}"
            )
        entries = {str(key): table[key] for key in table.keys()}  # noqa: SIM118  of a pandas.Series too
        missing = [file for file in files if file not in entries]
        if missing:
            example_key = brief(next(iter(entries), None))
            raise InvalidValue(
                f"image_folders: {role} has none for {len(missing)} of {len(files)} images, such as "
                f"{brief(missing[0])}; its keys are paths such as {example_key}"
            )
        table = entries.__getitem__
    return [table(file) for file in files]


def _numbered(labels: list) -> tuple[list[int], list[str]]:
    """The number of each label, and the names of the numbers 0, 1, …; without names where labels are numbers."""
    if all(isinstance(label, str) for label in labels):
        names = sorted(set(labels))
        number_of = {name: number for number, name in enumerate(names)}
        return [number_of[label] for label in labels], names
    return [whole_number("image_folders: a label", label, at_least=0) for label in labels], []


class _Images:
    """A store whose clients are images in files.

    Args:
        root: the directory.
        files: client's id -> (path in the directory, label) of each image.
        size: height and width.
    """

    def __init__(
        self, root: str, files: Mapping[str, list[tuple[str, int]]], size: tuple[int, int], channels: int
    ) -> None:
        self._root = root
        self._files = files
        self._size = size
        self._channels = channels

    def client_ids(self) -> Iterable[str]:
        return self._files

    def read(self, client_id: str) -> tuple[np.ndarray, np.ndarray] | None:
        if client_id not in self._files:
            return None
        images = np.empty((len(self._files[client_id]), *self._size, self._channels), np.float32)
        for image, (file, _) in zip(images, self._files[client_id], strict=True):
            image[...] = self._decode(os.path.join(self._root, file))
        return images, np.array([label for _, label in self._files[client_id]], np.int32)

    def _decode(self, path: str) -> np.ndarray:
        import tensorflow as tf

        try:
            with tf.device("CPU"):  # a GPU would resize to other last bits
                image = tf.io.decode_image(tf.io.read_file(path), self._channels, expand_animations=False)
                return tf.image.resize(image, self._size).numpy()
        except (tf.errors.OpError, ValueError) as error:
            from fedcore.runtime.clients.failures import reason

            raise InvalidValue(f"image_folders: {path} cannot be read: {reason(error)}") from None
