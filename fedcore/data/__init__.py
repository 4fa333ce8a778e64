"""Client data: columns with steps, and the conversion of users' sequences to columns."""

from fedcore.data.client_dataset import ClientDataset
from fedcore.data.cohort import Cohort, OpenedElsewhere, client_name
from fedcore.data.dataset_mistakes import is_table
from fedcore.data.sequence_values import columns_of, dataset_of

__all__ = ["ClientDataset", "Cohort", "OpenedElsewhere", "client_name", "columns_of", "dataset_of", "is_table"]
