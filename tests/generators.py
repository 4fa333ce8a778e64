"""Random programs, as outside authors get them."""

from fedcore.testing.programs import *  # noqa: F403
