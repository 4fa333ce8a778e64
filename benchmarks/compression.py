"""The FedAvg CNN of 1,663,370 parameters, 10 clients: bits, errors and time of encoded rounds.

python -m benchmarks.compression [--rounds N]
"""

import os
import resource

import click

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
PARAMETERS = 1_663_370
MEBI = 2**20


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Timed rounds of each, alternating.")
def main(rounds: int) -> None:
    import keras
    import numpy as np

    import fedcore as fc
    from benchmarks.fedcore_rounds import datasets, keras_model
    from benchmarks.workloads import CLIENT_RATE, WORKLOADS, first_weights, make_clients
    from fedcore.aggregators import EncodedSumFactory, MeanFactory, encoders

    workload = WORKLOADS["cnn"]
    data = datasets(make_clients(workload))

    def model_fn():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(keras_model("cnn"), loss, data[0].element_spec)

    step = encoders.uniform_quantization(step=encoders.RMS, rounding="dithered")
    eight = encoders.uniform_quantization(bits=8)
    rotated = encoders.chain(encoders.hadamard(), step, encoders.entropy())
    both_ways = {"plain": (None, None), "8 bits": (eight, eight), "entropy chain": (None, rotated)}
    environment = fc.framework.SizingEnvironment(fc.runtime.local())
    processes = {}
    for name, (down, up) in both_ways.items():
        processes[name] = fc.learning.algorithms.build_weighted_fed_avg(
            model_fn,
            lambda: keras.optimizers.SGD(CLIENT_RATE),
            model_distributor=down and fc.learning.framework.build_encoded_broadcast_process_from_model(model_fn, down),
            model_aggregator=up and MeanFactory(EncodedSumFactory(up)),
        )
    weights = fc.learning.ModelWeights(tuple(first_weights(workload)), ())
    times: dict[str, list[float]] = {name: [] for name in processes}
    with fc.use(environment):
        states = {n: p.set_model_weights(p.initialize(), weights) for n, p in processes.items()}
        ends = {}
        for _ in range(rounds + 1):
            for name, process in processes.items():
                began = cpu_s()
                after, _ = process.next(states[name], data)
                times[name].append(cpu_s() - began)
                if name not in ends:
                    ends[name] = after
                    sizes = environment.get_size_info()
                    sent = [sum(c.bits for c in h[-1]) for h in (sizes.broadcast_history, sizes.aggregate_history)]
                    print(
                        f"{name:14} {sent[0] / MEBI:8.2f} Mibit to the clients {sent[1] / MEBI:8.2f} to the server, "
                        f"{sent[1] / PARAMETERS / len(data):.3f} bits a parameter"
                    )
        # The update of one client is what it sends: the error of its code.
        alone = {n: processes[n].next(states[n], data[:1])[0].model.trainable for n in ("plain", "entropy chain")}
    start = weights.trainable
    plain, coded = ([np.asarray(a) - b for a, b in zip(alone[n], start, strict=True)] for n in alone)
    error = sum(np.square(a - b).sum() for a, b in zip(plain, coded, strict=True))
    print(f"relative squared error of a client's update: {error / sum(np.square(a).sum() for a in plain):.4f}")
    for name, seconds in times.items():
        ratio = np.median(np.array(seconds[1:]) / np.array(times["plain"][1:]))
        print(f"{name:14} {np.median(seconds[1:]):.2f} s of CPU a round, {ratio:.2f} of plain")


if __name__ == "__main__":
    main()
