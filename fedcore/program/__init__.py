"""The parts of which programs around computations are made: state that survives, values that are released, data.

The names are those of TensorFlow Federated's `tff.program`. Names are loaded when they are first used: those that read
and write files need no TensorFlow.

The examples of this package use these names:
    >>> import asyncio, pathlib, tempfile
    >>> import fedcore as fc, numpy as np, tensorflow as tf
    >>> folder = tempfile.mkdtemp()
"""

from typing import TYPE_CHECKING

from fedcore.lazy_imports import LazyImports
from fedcore.tff_names import tff_name

if TYPE_CHECKING:
    from fedcore.program.annotations import ComputationArg as ComputationArg
    from fedcore.program.annotations import Key as Key
    from fedcore.program.annotations import MaterializableStructure as MaterializableStructure
    from fedcore.program.annotations import MaterializableTypeSignature as MaterializableTypeSignature
    from fedcore.program.annotations import MaterializableValue as MaterializableValue
    from fedcore.program.annotations import MaterializedStructure as MaterializedStructure
    from fedcore.program.annotations import MaterializedValue as MaterializedValue
    from fedcore.program.annotations import ProgramStateStructure as ProgramStateStructure
    from fedcore.program.annotations import ProgramStateValue as ProgramStateValue
    from fedcore.program.annotations import ReleasableStructure as ReleasableStructure
    from fedcore.program.annotations import ReleasableValue as ReleasableValue
    from fedcore.program.client_id_data_source import ClientIdDataSource as ClientIdDataSource
    from fedcore.program.client_id_data_source import ClientIdDataSourceIterator as ClientIdDataSourceIterator
    from fedcore.program.client_states import ClientStates as ClientStates
    from fedcore.program.client_states import MemoryClientStates as MemoryClientStates
    from fedcore.program.csv_file_release_manager import CSVFileReleaseManager as CSVFileReleaseManager
    from fedcore.program.csv_file_release_manager import CSVKeyFieldnameNotFoundError as CSVKeyFieldnameNotFoundError
    from fedcore.program.csv_file_release_manager import CSVSaveMode as CSVSaveMode
    from fedcore.program.data_source import Capability as Capability
    from fedcore.program.data_source import FederatedDataSource as FederatedDataSource
    from fedcore.program.data_source import FederatedDataSourceIterator as FederatedDataSourceIterator
    from fedcore.program.dataset_data_source import DatasetDataSource as DatasetDataSource
    from fedcore.program.dataset_data_source import DatasetDataSourceIterator as DatasetDataSourceIterator
    from fedcore.program.delayed_release_manager import DelayedReleaseManager as DelayedReleaseManager
    from fedcore.program.federated_context import FederatedContext as FederatedContext
    from fedcore.program.federated_context import check_in_federated_context as check_in_federated_context
    from fedcore.program.federated_context import contains_only_server_placed_data as contains_only_server_placed_data
    from fedcore.program.file_program_state_manager import FileProgramStateManager as FileProgramStateManager
    from fedcore.program.filtering_release_manager import FilteringReleaseManager as FilteringReleaseManager
    from fedcore.program.filtering_release_manager import NotFilterableError as NotFilterableError
    from fedcore.program.grouping_release_manager import GroupingReleaseManager as GroupingReleaseManager
    from fedcore.program.logging_release_manager import LoggingReleaseManager as LoggingReleaseManager
    from fedcore.program.memory_release_manager import MemoryReleaseManager as MemoryReleaseManager
    from fedcore.program.mlflow_release_manager import MLflowReleaseManager as MLflowReleaseManager
    from fedcore.program.native_federated_context import NativeFederatedContext as NativeFederatedContext
    from fedcore.program.native_federated_context import NativeValueReference as NativeValueReference
    from fedcore.program.periodic_release_manager import PeriodicReleaseManager as PeriodicReleaseManager
    from fedcore.program.program_state_manager import ProgramStateDamagedError as ProgramStateDamagedError
    from fedcore.program.program_state_manager import ProgramStateExistsError as ProgramStateExistsError
    from fedcore.program.program_state_manager import ProgramStateManager as ProgramStateManager
    from fedcore.program.program_state_manager import ProgramStateNotFoundError as ProgramStateNotFoundError
    from fedcore.program.release_manager import ReleasedValueNotFoundError as ReleasedValueNotFoundError
    from fedcore.program.release_manager import ReleaseManager as ReleaseManager
    from fedcore.program.saved_model_file_release_manager import (
        SavedModelFileReleaseManager as SavedModelFileReleaseManager,
    )
    from fedcore.program.serializable import Serializable as Serializable
    from fedcore.program.sqlite_client_states import SQLiteClientStates as SQLiteClientStates
    from fedcore.program.tensorboard_release_manager import TensorBoardReleaseManager as TensorBoardReleaseManager
    from fedcore.program.value_reference import MaterializableValueReference as MaterializableValueReference
    from fedcore.program.value_reference import materialize_value as materialize_value
    from fedcore.program.wandb_release_manager import WandbReleaseManager as WandbReleaseManager

_LAZY = LazyImports(__name__)

__all__ = list(_LAZY.names)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return _LAZY.load(name) if name in _LAZY.names else tff_name("fedcore.program", name)


def __dir__() -> list[str]:
    return __all__
