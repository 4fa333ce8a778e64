"""A mean over clients of which some fail: in their graph, in their data, or for want of memory.

Two in ten clients fail on purpose, the same ones in every run. They are left out, and the mean is that of the others.

    python examples/faulty_clients.py
"""

import numpy as np

import fedcore as fc
from fedcore.testing.faults import Faults, act, out_of_memory

VALUE = ("float32", (4,))
CLIENT = (VALUE, "int32")


@fc.tf_computation(CLIENT)
def work(client):
    value, fault = client
    return act(fault, value * 2.0)


@fc.federated_computation(fc.FederatedType(CLIENT, fc.CLIENTS))
def average(clients):
    return fc.federated_mean(fc.federated_map(work, clients))


def main(clients=30):
    values = [np.full(4, i, np.float32) for i in range(clients)]
    policy = fc.runtime.drop(min_fraction=0.5, max_retries=1)
    runtime = fc.runtime.local(on_client_failure=policy, client_timeout_s=30)
    with fc.use(runtime):
        for kind in ("raise", "nan"):
            faults = Faults(seed=7, kind=kind, fraction=0.2)
            mean = average(list(zip(values, faults.flags(clients), strict=True)))
            print(f"{kind}: {mean[0]} without {report_of(fc.context.last_report())}")
        with out_of_memory(runtime, runtime.client_devices[0].device, calls=[0]):
            mean = average([(value, np.int32(0)) for value in values])
        report = fc.context.last_report()
        assert report is not None
        print(f"out of memory: {mean[0]}; {'; '.join(report.notes)}")
    runtime.close()


def report_of(report):
    (why,) = set(report.dropped.values())
    return f"{sorted(report.dropped)}, as {' '.join(why.split())!r}"


if __name__ == "__main__":
    main()
