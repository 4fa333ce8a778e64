"""A runtime around another one."""

import fedcore as fc


class Logged:
    """Runs each call with another runtime, and notes its name."""

    compiles = True

    def __init__(self, inner):
        self.inner = inner
        self.plan_options = inner.plan_options
        self.names = []

    def run(self, module, arguments, report):
        self.names.append(module.main.name)
        return self.inner.run(module, arguments, report)

    def close(self):
        self.inner.close()


@fc.federated_computation(fc.types.at_clients("float32"))
def total(readings):
    return fc.federated_sum(readings)


runtime = Logged(fc.runtime.local())
with fc.use(runtime):
    assert total([1.0, 2.0]) == 3.0
assert runtime.names == ["total"]
runtime.close()
