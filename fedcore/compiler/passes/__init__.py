"""The passes, one file each; a pass `some-name` is the function `some_name` in `some_name.py`."""
