"""Values as metrics of Weights & Biases."""

from typing import Any

from fedcore.program.optional_packages import optional_package
from fedcore.program.release_manager import ReleaseManager
from fedcore.program.scalars_of import scalars_of
from fedcore.program.type_variables import ReleasableStructure
from fedcore.program.value_reference import materialize_value


class WandbReleaseManager(ReleaseManager[ReleasableStructure, int]):
    """Logs the numbers among the released leaves to a run of Weights & Biases; the key is the step.

    Args:
        run: what `wandb.init` returned. Default: the active run; `wandb.init()` starts one if there is none.
    Raises:
        InvalidValue: wandb is not installed.
    """

    def __init__(self, run: Any = None) -> None:
        wandb = optional_package("wandb", "WandbReleaseManager", extra="wandb")
        self._run = run or wandb.run or wandb.init()

    async def release(self, value: Any, key: int) -> None:
        self._run.log(scalars_of(await materialize_value(value)), step=int(key))
