"""Small programs that take the steps of TFF's tutorials, by TFF's names.

The 15 tutorials of TFF's last version and 6 that earlier versions had, by the file that takes their steps:

- `test_language`: custom federated algorithms 1 and 2, federated_select, random noise generation, JAX support (its
  names say what to write).
- `test_by_hand`: building your own algorithm, composing learning algorithms, custom algorithms with TFF optimizers.
- `test_aggregators`: custom aggregators, tuning recommended aggregators, research on compression.
- `test_training`: image classification, simulations, simulations with accelerators, working with client data.
- `test_text`: text generation. `test_private`: private heavy hitters, differential privacy.
- `test_reconstruction`: matrix factorization. `test_sparse`: sparse federated learning.
- `tests/compat/test_data_backend.py`: loading remote data.

`test_research` and `test_research_protocols` have six research programs, whose only lines of fedcore are the imports.
"""
