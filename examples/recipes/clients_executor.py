"""Executors that send clients' work elsewhere: with the clients' values, and to the owners of the values."""

import pickle

import fedcore as fc

device = fc.runtime.DeviceSliceExecutor()


def elsewhere(message, stop):
    """What the other machine does with a message. A network sends a second one when `stop` is cancelled."""
    work, clients = pickle.loads(message)
    report = fc.runtime.Report()
    run = device.prepare(work, report, stop)
    return pickle.dumps((run(clients), report))


class Remote(fc.runtime.SliceExecutor):
    """Sends slices of clients to another machine."""

    def __init__(self, name, send):
        self.name = name
        self.send = send

    def prepare(self, work, report, stop):
        def run(clients):
            result, report_of_slice = pickle.loads(self.send(pickle.dumps((work, clients)), stop))
            report.include(report_of_slice)
            return result

        return run

    def close(self):
        """Nothing to close."""


@fc.federated_computation(fc.types.at_clients("float32"))
def total(readings):
    return fc.federated_sum(readings)


fc.testing.check_slice_executor(Remote("machine 0", elsewhere))

machines = [Remote(f"machine {i}", elsewhere) for i in range(2)]
runtime = fc.runtime.local(clients_executor=fc.runtime.SlicedClientsExecutor(machines))
with fc.use(runtime):
    assert total([1.0, 2.0]) == 3.0
runtime.close()

homes: dict = {}  # the value of each client, on its machine


def at_home(message, stop):
    """What the machine of a client does with a message."""
    work, clients = pickle.loads(message)
    report = fc.runtime.Report()
    run = device.prepare(work, report, stop)
    return pickle.dumps((run(clients.opened(work, lambda value: homes[value.site])), report))


class Owners(Remote):
    """Sends each client's work to the owner of its value."""

    def prepare(self, work, report, stop):
        run_remotely = super().prepare(work, report, stop)

        def run(clients):
            (client,) = clients.values
            owners = {value.site for value in client if isinstance(value, fc.runtime.SiteValue)}
            assert len(owners) <= 1  # one at most: values that a stage has kept are here, and travel
            return run_remotely(clients)

        return run


class AtHome(fc.runtime.SlicedClientsExecutor):
    """Computes each client where its value is."""

    def slice_size(self, work):
        return 1


def hold(values):
    homes.update((f"client {i}", value) for i, value in enumerate(values))
    return [fc.runtime.SiteValue(f"client {i}") for i in range(len(values))]


at_owners = AtHome([Owners("owners", at_home)])  # a network chooses the machine by the name
fc.testing.check_clients_executor(at_owners, hold, block_size=1)

with fc.use(fc.runtime.local(block_size=1, clients_executor=at_owners)):
    assert total(hold([1.0, 2.0])) == 3.0
