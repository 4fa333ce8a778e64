import enum


class ClientWeighting(enum.Enum):
    """How much a client's change counts: by its examples, or as much as every other's."""

    NUM_EXAMPLES = 1
    UNIFORM = 2
