"""Runs cases in child processes that may die: `dying.py SEED COUNT [OP ...]` prints, as JSON, which cases killed one.

The parent imports TensorFlow and starts nothing of it; each child is a fork of it and goes on until it dies.
"""

import collections
import json
import mmap
import os
import resource
import signal
import sys
import tempfile
import time

SECONDS = 60  # TensorFlow's allocator waits 10 s before it says that memory does not suffice, in some cases five times
BYTES = 4 * 2**30


def survey(ops: list[str], seeds: range, *, case=None, say=lambda death: None) -> dict:
    """Runs every seed of every operation; returns how the cases ended, and the deaths.

    Args:
        case: from an operation and a seed to the case; default: `operations.case`.
    """
    cases = [(op, seed) for seed in seeds for op in ops]
    at = mmap.mmap(-1, 8)
    counts = mmap.mmap(-1, 1 << 16)
    outcomes: collections.Counter[str] = collections.Counter()
    deaths = []
    began = time.monotonic()
    start = 0
    while start < len(cases):
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 2)
                _run(case, cases, start, min(start + 2000, len(cases)), at, counts)
            _, status = os.waitpid(child, 0)
            size = int.from_bytes(counts[:4], "little")
            outcomes.update(json.loads(counts[4 : 4 + size]))
            index = int.from_bytes(at[:8], "little")
            if status == 0:
                start = index + 1
                continue
            said.seek(0)
            text = said.read().decode(errors="replace")
            checks = [
                line for line in text.splitlines() if "Check failed" in line or "terminate" in line or "Error" in line
            ]
            op, seed = cases[index]
            deaths.append(
                {"op": op, "seed": seed, "status": status, "said": (checks or text.splitlines() or [""])[-1][-300:]}
            )
            say(deaths[-1])
            start = index + 1
    return {"outcomes": outcomes, "deaths": deaths, "seconds": time.monotonic() - began}


def _run(case, cases, start, stop, at, counts) -> None:
    """The child: never returns."""
    import operations

    from fedcore.errors import FedcoreError

    outcomes: collections.Counter[str] = collections.Counter()
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for i in range(start, stop):
            at[:8] = i.to_bytes(8, "little")
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            try:
                outcome = operations.run((case or operations.case)(*cases[i]))
            except FedcoreError as error:
                outcome = (
                    "not imported"
                    if "TensorFlow cannot import" in str(error) or "says that result" in str(error)
                    else "refused"
                )
            except Exception as error:
                outcome = f"OTHER {type(error).__name__}: {str(error)[:200]} {cases[i]}"
            outcomes[outcome] += 1
            data = json.dumps(outcomes).encode()
            counts[: 4 + len(data)] = len(data).to_bytes(4, "little") + data
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(9)


def main() -> None:
    import operations  # noqa: F401
    import tensorflow  # noqa: F401  before any fork

    from fedcore.graphs.capture import graph_import  # noqa: F401
    from fedcore.graphs.graphdef.analysis import op_classes

    seed, count, *ops = sys.argv[1:]
    named = ops or sorted(op_classes._allowed_operations())
    found = survey(named, range(int(seed), int(seed) + int(count)), say=lambda d: print(json.dumps(d), flush=True))
    print(json.dumps({"outcomes": found["outcomes"], "seconds": found["seconds"], "deaths": len(found["deaths"])}))


if __name__ == "__main__":
    main()
