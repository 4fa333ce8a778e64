"""What each entry sweeps over, and how its picture shows it.

An entry is NAME.toml, its model NAME.py, and a function here: (rows of all runs with their settings as columns, figure)
-> the table of what was measured.
"""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

ENTRIES: dict[str, "Entry"] = {}


class Entry(NamedTuple):
    """`sweeps` are the `--set` options of calls of `fedcore train`; `size` of the picture is in inches."""

    sweeps: tuple[str, ...]
    draw: Callable
    size: tuple[float, float]


def entry(*sweeps, size=(6.2, 3.6)):
    def register(draw):
        ENTRIES[draw.__name__] = Entry(sweeps, draw, size)
        return draw

    return register


def rounds_to(runs, target, keys):
    """The first round with a test accuracy of at least the target, of each setting; NaN where none has it."""
    reached = runs["round"].where(runs.val_accuracy >= target)
    return reached.groupby([runs[key] for key in keys]).min()


@entry(
    "data.alpha=100.0,0.1 data.epochs=1,5,20 data.batch_size=100 optimizer.lr=0.3,1.0",
    "data.alpha=100.0,0.1 data.epochs=1,5,20 data.batch_size=5 optimizer.lr=0.3",
)
def fed_avg(runs, figure):
    best = rounds_to(runs, 0.9, ["alpha", "epochs", "batch_size", "lr"]).groupby(["alpha", "epochs", "batch_size"])
    table = best.min().reset_index()
    table["steps"] = table.epochs * (15.27 / table.batch_size).clip(lower=1)  # 1,527 examples of 100 clients
    axes = figure.subplots()
    for alpha, label in ((0.1, "clients with few labels"), (100.0, "IID")):
        rows = table[table.alpha == alpha].sort_values(["steps", "batch_size"])
        axes.plot(rows.steps, rows["round"], "o-", label=label)
    axes.annotate("FedSGD", (1, table["round"][table.steps == 1].max()), (8, 0), textcoords="offset points", fontsize=9)
    axes.set(title="Rounds to 90 % test accuracy", xscale="log", ylim=(0, None))
    axes.set(xlabel="local steps of a client in a round, E · n / B", ylabel="rounds")
    axes.set_xticks(rows.steps, [f"{steps:.0f}" for steps in rows.steps])
    axes.minorticks_off()
    axes.legend()
    fed_sgd = table[table.steps == 1].set_index("alpha")["round"]
    table["speedup"] = table.alpha.map(fed_sgd) / table["round"]
    return table


@entry(
    "work.stragglers=0.0,0.5,0.9 work.drop_stragglers=true",
    "work.stragglers=0.0,0.5,0.9 method.mu=0.0,1.0",
    size=(8.4, 3.2),
)
def fed_prox(runs, figure):
    runs = runs.assign(mu=runs["mu"].fillna(0.0), drops=runs["drop_stragglers"].notna()).dropna(subset="val_loss")
    methods = {"FedAvg, drops stragglers": (True, 0.0), "FedProx, μ = 0": (False, 0.0), "FedProx, μ = 1": (False, 1.0)}
    table = []
    for axes, stragglers in zip(figure.subplots(1, 3, sharey=True), (0.0, 0.5, 0.9), strict=True):
        for name, (drops, mu) in methods.items():
            rows = runs[(runs.stragglers == stragglers) & (runs.drops == drops) & (runs.mu == mu)]
            axes.plot(rows["round"], rows.val_loss, label=name)
            table.append((stragglers, name, rows.val_loss.iloc[-5:].mean()))
        axes.set(title=f"{stragglers:.0%} stragglers", xlabel="round", ylim=(0, 3.5))
    figure.axes[0].set_ylabel("training loss of all devices")
    figure.axes[0].legend()
    return pd.DataFrame(table, columns=["stragglers", "method", "mean loss of rounds 92 to 100"])


@entry(
    "method.name=FedAvg,FedAvgM method.server_lr=1.0,3.0 method.client_lr=10.0,100.0",
    "method.name=FedAdagrad,FedAdam,FedYogi method.server_lr=0.1,0.3 method.client_lr=10.0,100.0",
)
def adaptive_optimizers(runs, figure):
    runs, keys = runs.dropna(subset="val_accuracy"), ["name", "server_lr", "client_lr"]
    last = runs[runs["round"] > 45].groupby(keys).val_accuracy.mean()
    axes, table = figure.subplots(), last.loc[last.groupby("name", sort=False).idxmax()].reset_index()
    for name, rows in runs.merge(table[keys]).groupby("name", sort=False):
        axes.plot(rows["round"], rows.val_accuracy, label=name)
    axes.set(title="Tags of texts with rare words, the best rates of each", xlabel="round", ylabel="test accuracy")
    axes.legend()
    return table


@entry("method.name=FedAvg,SCAFFOLD method.lr=0.03,0.1,0.3 data.epochs=1,5,20")
def scaffold(runs, figure):
    table = rounds_to(runs, 0.9, ["name", "epochs", "lr"]).groupby(["name", "epochs"]).min().unstack("name")
    axes = figure.subplots()
    for name in table:
        axes.plot(table.index, table[name], "o-", label=name)
    axes.set(title="Rounds to 90 % test accuracy, clients with one label", xscale="log", ylim=(0, None))
    axes.set(xlabel="local epochs of 5 steps", ylabel="rounds", xticks=table.index, xticklabels=table.index)
    axes.minorticks_off()
    axes.legend()
    return table.reset_index()


@entry(
    "privacy.noise=tree privacy.noise_multiplier=1.0,2.0,4.0,8.0,16.0",
    "privacy.sampling=passes,poisson privacy.noise_multiplier=1.0,2.0,4.0,8.0,16.0",
    size=(8.4, 3.4),
)
def dp_ftrl(runs, figure):
    runs = runs.fillna({"noise": "independent", "sampling": "passes"}).dropna(subset="val_accuracy")
    table = runs.groupby(["noise", "sampling", "noise_multiplier"])[["val_accuracy", "epsilon"]].mean().reset_index()
    names = {
        ("tree", "passes"): "DP-FTRL, tree",
        ("independent", "passes"): "DP-FedAvg in passes",
        ("independent", "poisson"): "DP-FedAvg, sampled at random",
    }
    noise, epsilon = figure.subplots(1, 2, sharey=True)
    for (kind, sampling), label in names.items():
        rows = table[(table.noise == kind) & (table.sampling == sampling)]
        noise.plot(rows.noise_multiplier, rows.val_accuracy, "o-", label=label)
        epsilon.plot(rows.epsilon, rows.val_accuracy, "o-", label=label)
    noise.set(title="At equal noise", xscale="log", xlabel="noise multiplier", ylabel="test accuracy after 64 rounds")
    epsilon.set(title="At equal privacy", xscale="log", xlabel="ε of a client at δ = 1e-4")
    noise.xaxis.set_major_formatter("{x:g}")
    epsilon.xaxis.set_major_formatter("{x:g}")
    noise.legend()
    return table


@entry(
    "sending.encoder=plain,8-bit,rotated-2-bit,rotated-entropy-coded,top-2%-with-feedback run.seed=0,1",
)
def compressed_updates(runs, figure):
    runs = runs.assign(mibit=runs.groupby(["encoder", "seed"]).aggregate_bits.cumsum() / 2**20)
    means = runs.groupby(["encoder", "round"], sort=False)[["mibit", "val_accuracy"]].mean().dropna()
    axes = figure.subplots()
    for encoder, rows in means.groupby("encoder", sort=False):
        axes.plot(rows.mibit, rows.val_accuracy, label=encoder)
    axes.set(title="Test accuracy against what clients send", xscale="log", ylabel="test accuracy")
    axes.set(xlabel="Mibit that clients sent in all rounds so far")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend()
    last = means.groupby("encoder", sort=False).last()
    return last.assign(factor=last.mibit.max() / last.mibit).reset_index()
