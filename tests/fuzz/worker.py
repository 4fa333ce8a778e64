"""Runs one batch of mutated inputs in a process of its own: `worker.py KIND SEED COUNT` prints what came of them.

Each input ends in an error of our own or is accepted, in `MAX_SECONDS` of computing and `MAX_BYTES` of memory. Inputs
name files that are there, and functions of the process: none is opened, and none changes.
"""

import collections
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings

MAX_SECONDS = 1.0
MAX_WAIT_S = 60.0  # for what waits and does not compute, such as the opening of a FIFO
MAX_BYTES = 512 * 2**20
SHOWN = 5


class TooSlow(BaseException):
    """No error that the code under test could catch by accident."""


def _too_slow(signum, frame):
    raise TooSlow


def limit_memory() -> None:
    """From here on the process may map `MAX_BYTES` more than it has."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def texts():
    from corpus import TEXTS
    from mutations import mutated

    import fedcore.intrinsics  # noqa: F401
    from fedcore.ir import parse_module, print_module, verify
    from fedcore.ir.sources import sources_of

    sources = [text.encode() for text in TEXTS]

    def make(rng):
        return mutated(rng.choice(sources), sources, rng)

    def run(data: bytes) -> None:
        text = data.decode(errors="replace")
        module = parse_module(text)
        assert parse_module(print_module(module)) == module
        assert sources_of(module) == {}
        verify(module)

    return make, run, None


def bundles():
    from corpus import GRAPH, TEXTS, bundled
    from mutations import mutated

    import fedcore.intrinsics  # noqa: F401
    from fedcore.ir import bundle, verify
    from fedcore.ir.sources import sources_of

    whole = [bundled(text.encode(), GRAPH) for text in TEXTS]
    sources = [text.encode() for text in TEXTS]

    def make(rng):
        if rng.random() < 0.1:
            return bundled(mutated(rng.choice(sources), sources, rng), GRAPH)
        if rng.random() < 0.1:
            return bundled(rng.choice(sources), GRAPH, name=lambda blob: rng.choice(["../x", "sha256/", "module.fed"]))
        return mutated(rng.choice(whole), whole, rng)

    def run(data: bytes) -> None:
        module = bundle.from_bytes(data)
        assert sources_of(module) == {}
        verify(module)
        assert bundle.from_bytes(bundle.to_bytes(module)) == module

    return make, run, None


def graphs():
    import graph_corpus
    from mutations import mutated, mutated_graph

    sources, programs = graph_corpus.modules(), graph_corpus.Programs()
    whole = [module.blob(module.graphs[0].digest) for module in sources]
    make = graph_corpus.inputs(sources, whole, mutated, mutated_graph, programs.names)
    return make, graph_corpus.runner(sources, programs), programs.check


def recordings():
    import recording_corpus

    return recording_corpus.make, recording_corpus.runner(), None


KINDS = {"text": texts, "bundle": bundles, "graph": graphs, "recording": recordings}


def main(kind: str, seed: int, count: int) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Duplicate name")  # of the zip files that are made here
    os.chdir(tempfile.mkdtemp())
    os.mkfifo("fifo")
    make, run, check = KINDS[kind]()
    from fedcore.errors import FedcoreError

    rng = random.Random(f"{kind} {seed}")
    outcomes: collections.Counter[str] = collections.Counter()
    failures, slowest = [], 0.0
    signal.signal(signal.SIGVTALRM, _too_slow)
    signal.signal(signal.SIGALRM, _too_slow)
    limit_memory()
    began = time.perf_counter()
    for i in range(count):
        data = make(rng)
        started = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, MAX_WAIT_S)
        try:
            run(data)
            outcome = "accepted"
        except FedcoreError as error:
            outcome = type(error).__name__
        except (Exception, TooSlow) as error:
            outcome = f"FAILURE {type(error).__name__}"
            if len(failures) < SHOWN:
                shown = data.hex() if isinstance(data, bytes) else repr(data)
                failures.append({"index": i, "input": shown[:20_000], "traceback": traceback.format_exc()[-3000:]})
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        slowest = max(slowest, time.process_time() - started)
        outcomes[outcome] += 1
    seconds = time.perf_counter() - began
    if check is not None:
        check()
    print(json.dumps({"outcomes": outcomes, "failures": failures, "slowest_s": slowest, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
