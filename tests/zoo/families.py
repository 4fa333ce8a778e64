"""All models of the zoo: importing a family declares its models.

Decision 0227.
"""

from . import models_custom, models_dense, models_images, models_structures, models_text
from .entries import DATA_KINDS, MODELS
from .trainings import NOT_COMPARED, TRAININGS

__all__ = [
    "DATA_KINDS",
    "MODELS",
    "NOT_COMPARED",
    "TRAININGS",
    "models_custom",
    "models_dense",
    "models_images",
    "models_structures",
    "models_text",
]
