"""Values in the log."""

import logging
from typing import Any

from fedcore.program.release_manager import ReleaseManager
from fedcore.program.type_variables import Key, ReleasableStructure
from fedcore.program.value_reference import materialize_value


class LoggingReleaseManager(ReleaseManager[ReleasableStructure, Key]):
    """Logs the released values to the logger `fedcore.program`, at level INFO."""

    async def release(self, value: Any, key: Any = None) -> None:
        value = await materialize_value(value)
        logging.getLogger("fedcore.program").info("released under %s: %s", key, value)
