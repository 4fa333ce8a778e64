"""DP-FTRL and DP-FedAvg on digits of 600 clients: Kairouz et al. 2021, arXiv:2103.00039."""

from classifiers import load_digits, model_fn_for

import fedcore as fc


def load_data(data):
    return load_digits(data["clients"], lambda d: d.repeat(4).batch(10))


def build_process(train, privacy, run, optimizer):
    z, clip, n = (privacy[name] for name in ("noise_multiplier", "clip", "clients_per_round"))
    private = fc.aggregators.DifferentiallyPrivateFactory
    tree = privacy["noise"] == "tree"
    noise = private.tree_aggregation(z, n, clip, run["rounds"]) if tree else private.gaussian_fixed(z, n, clip)
    client, server = (fc.learning.optimizers.build_sgdm(*optimizer[name]) for name in ("client", "server"))
    return fc.learning.algorithms.build_unweighted_fed_avg(model_fn_for(train), client, server, model_aggregator=noise)


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(model_fn_for(train))


def build_sampler(train, privacy, run):
    ids, n = train.client_ids, privacy["clients_per_round"]
    if privacy["sampling"] == "poisson":
        return fc.simulation.build_poisson_sampling_fn(ids, n / len(ids), seed=run["seed"])
    return fc.simulation.build_random_permutation_sampling_fn(ids, n, reshuffle=False, seed=run["seed"])


def build_callbacks(process, sampler, privacy):
    return [fc.privacy.EpsilonCallback(fc.privacy.Ledger(process, sampler, delta=privacy["delta"]))]
