"""The parts of which programs around computations are made: state that survives, values that are released, data.

The names are those of TensorFlow Federated's `tff.program`. Names are loaded when they are first used: those that read
and write files need no TensorFlow.

The examples of this package use these names:
    >>> import asyncio, pathlib, tempfile
    >>> import fedcore as fc, numpy as np, tensorflow as tf
    >>> folder = tempfile.mkdtemp()
"""

import importlib

from fedcore.tff_names import tff_name

# public name -> its module
_PLACES = {
    "CSVFileReleaseManager": "csv_file_release_manager",
    "CSVKeyFieldnameNotFoundError": "csv_file_release_manager",
    "CSVSaveMode": "csv_file_release_manager",
    "Capability": "data_source",
    "ClientIdDataSource": "client_id_data_source",
    "ClientIdDataSourceIterator": "client_id_data_source",
    "ClientStates": "client_states",
    "ComputationArg": "annotations",
    "DatasetDataSource": "dataset_data_source",
    "DatasetDataSourceIterator": "dataset_data_source",
    "DelayedReleaseManager": "delayed_release_manager",
    "FederatedContext": "federated_context",
    "FederatedDataSource": "data_source",
    "FederatedDataSourceIterator": "data_source",
    "FileProgramStateManager": "file_program_state_manager",
    "FilteringReleaseManager": "filtering_release_manager",
    "GroupingReleaseManager": "grouping_release_manager",
    "Key": "annotations",
    "LoggingReleaseManager": "logging_release_manager",
    "MLflowReleaseManager": "mlflow_release_manager",
    "MaterializableStructure": "annotations",
    "MaterializableTypeSignature": "annotations",
    "MaterializableValue": "annotations",
    "MaterializableValueReference": "value_reference",
    "MaterializedStructure": "annotations",
    "MaterializedValue": "annotations",
    "MemoryClientStates": "client_states",
    "MemoryReleaseManager": "memory_release_manager",
    "NativeFederatedContext": "native_federated_context",
    "NativeValueReference": "native_federated_context",
    "NotFilterableError": "filtering_release_manager",
    "PeriodicReleaseManager": "periodic_release_manager",
    "ProgramStateDamagedError": "program_state_manager",
    "ProgramStateExistsError": "program_state_manager",
    "ProgramStateManager": "program_state_manager",
    "ProgramStateNotFoundError": "program_state_manager",
    "ProgramStateStructure": "annotations",
    "ProgramStateValue": "annotations",
    "ReleasableStructure": "annotations",
    "ReleasableValue": "annotations",
    "ReleaseManager": "release_manager",
    "ReleasedValueNotFoundError": "release_manager",
    "SQLiteClientStates": "sqlite_client_states",
    "SavedModelFileReleaseManager": "saved_model_file_release_manager",
    "Serializable": "serializable",
    "TensorBoardReleaseManager": "tensorboard_release_manager",
    "WandbReleaseManager": "wandb_release_manager",
    "check_in_federated_context": "federated_context",
    "contains_only_server_placed_data": "federated_context",
    "materialize_value": "value_reference",
}

__all__ = sorted(_PLACES)


def __getattr__(name):
    if name in _PLACES:
        return getattr(importlib.import_module(f"fedcore.program.{_PLACES[name]}"), name)
    return tff_name("fedcore.program", name)


def __dir__():
    return __all__
