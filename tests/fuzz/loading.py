"""Loads and calls files as a user does: `loading.py FILE.fed ...` says of each `refused`, `failed` or `ran`.

The arguments lie beside each file. What ends the process ends the lines.
"""

import pickle
import sys
from pathlib import Path

import fedcore as fc
from fedcore.errors import FedcoreError


def main() -> None:
    for file in sys.argv[1:]:
        arguments = pickle.loads(Path(file).with_suffix(".pickle").read_bytes())
        try:
            computation = fc.load(file)
        except FedcoreError:
            print("refused", flush=True)
            continue
        try:
            computation(*arguments)
        except FedcoreError:
            print("failed", flush=True)
        else:
            print("ran", flush=True)


if __name__ == "__main__":
    main()
