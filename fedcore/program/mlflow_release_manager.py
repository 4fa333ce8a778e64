"""Values as metrics of MLflow."""

from typing import Any

from fedcore.program.optional_packages import optional_package
from fedcore.program.release_manager import ReleaseManager
from fedcore.program.scalars_of import scalars_of
from fedcore.program.type_variables import ReleasableStructure
from fedcore.program.value_reference import materialize_value


class MLflowReleaseManager(ReleaseManager[ReleasableStructure, int]):
    """Logs the numbers among the released leaves to a run of MLflow; the key is the step.

    Args:
        run_id: the run. Default: the active run, which MLflow starts if there is none.
    Raises:
        InvalidValue: mlflow is not installed.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self._mlflow = optional_package("mlflow", "MLflowReleaseManager", extra="mlflow")
        self._run_id = run_id

    async def release(self, value: Any, key: int) -> None:
        self._mlflow.log_metrics(scalars_of(await materialize_value(value)), step=int(key), run_id=self._run_id)
