"""The zoo: models, data and trainings as people write them, compared with plain Keras and plain tf.data.

A new model is five lines in a `models_*.py`, a new kind of data three in `data_kinds.py`, a new training one call in
`trainings.py`; the runner takes every combination. `python -m benchmarks.zoo` prints the table.
"""
