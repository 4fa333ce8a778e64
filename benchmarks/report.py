"""The figures as a table, as JSON and as a plot."""

import json
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table


def write_report(out: Path, names: list[str], seconds: float) -> None:
    results = {name: json.loads((out / f"{name}.json").read_text()) for name in names}
    (out / "results.json").write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=1))
    table = Table(title=f"fedcore against hand-written TensorFlow ({os.cpu_count()} cores, {seconds:.0f} s)")
    for column in (
        "workload",
        "data",
        "fedcore",
        "floor",
        "same algebra",
        "ratio",
        "95 %",
        "target",
        "first round",
        "memory",
        "threads",
    ):
        table.add_column(column, justify="left" if column in ("workload", "data") else "right")
    for name, result in results.items():
        for kind in ("resident", "fresh"):
            if kind in result:
                r = result[kind]
                met = "green" if r["low"] <= result["target"] else "red"
                table.add_row(
                    name,
                    kind,
                    f"{r['fedcore_s'] * 1e3:.1f} ms",
                    f"{r['floor_s'] * 1e3:.1f} ms",
                    "" if r["same_algebra_s"] is None else f"{r['same_algebra_s'] * 1e3:.1f} ms",
                    f"[{met}]{r['ratio']:.2f}[/]",
                    f"{r['low']:.2f}–{r['high']:.2f}",
                    f"≤ {result['target']:.2f}",
                    f"{result['first_s']:.2f} s",
                    f"{result['peak_mb']:.0f} MB",
                    str(result["threads"]),
                )
    console = Console(width=130)
    if table.row_count:
        console.print(table)
    if "many" in results:
        many = results["many"]
        costs = ", ".join(f"{float(v):.0f} µs from {k}" for k, v in many["per_client_us"].items())
        console.print(
            f"a client more costs {costs}: ratio {many['ratio']:.2f} (≤ {many['target']}); RSS {many['rss_mb']}"
        )
    if "pipelines" in results:
        pipes = results["pipelines"]
        console.print(
            f"MLP from pipelines made each round {pipes['fedcore_s'] * 1e3:.0f} ms, from batches "
            f"{pipes['floor_s'] * 1e3:.0f} ms: ratio {pipes['ratio']:.2f} ({pipes['low']:.2f}–{pipes['high']:.2f}, "
            f"≤ {pipes['target']})"
        )
    if "calls" in results:
        calls = results["calls"]
        console.print(
            f"empty computation {calls['empty_ms']:.2f} ms a call (≤ 5); "
            f"trivial map {calls['trivial_map_ms_per_client'] * 1e3:.1f} µs a client (≤ 50)"
        )
    if "secure" in results:
        secure = results["secure"]
        console.print(f"sums of {secure['elements']:,} integers of {secure['clients']} clients:")
        for kind, figures in secure["kinds"].items():
            seconds = "" if figures["seconds"] is None else f", {figures['seconds']:.2f} s"
            console.print(f"  {kind}: {figures['bytes']:,} bytes a client{seconds}")
    if "files" in results:
        console.print(_files(results["files"]))
    if "checkpoints" in results:
        console.print(_checkpoints(results["checkpoints"]))
    if "large" in results:
        console.print(_large(results["large"]))
    if "states" in results:
        for name, m in results["states"]["models"].items():
            for kind in ("SCAFFOLD", "changes alone"):
                c = m[kind]
                ratio = f"{c['ratio']:.2f} ({c['low']:.2f}–{c['high']:.2f}, ≤ {results['states']['target']})"
                console.print(
                    f"clients that keep a value, MLP {name}: {kind} {c['seconds'] * 1e3:.1f} ms of CPU a round, "
                    f"federated averaging {m['plain_s'] * 1e3:.1f} ms: ratio {ratio}"
                )
    for name, m in results.get("private", {}).get("models", {}).items():
        for kind in ("gradients", "noisy"):
            c = m[kind]
            ratio = f"{c['ratio']:.2f} ({c['low']:.2f}–{c['high']:.2f}, ≤ {results['private']['target']})"
            console.print(
                f"private records, {name}: {kind} {c['seconds'] * 1e3:.1f} ms of CPU a round of one client, "
                f"plain {m['plain_s'] * 1e3:.1f} ms: ratio {ratio}"
            )
    for name, c in results.get("ragged", {}).get("cases", {}).items():
        ratio = f"{c['ratio']:.2f} ({c['low']:.2f}–{c['high']:.2f}, ≤ {results['ragged']['target']})"
        console.print(
            f"texts of log-normal lengths, {name}: {c['fedcore_s'] * 1e3:.1f} ms of CPU a round, by hand "
            f"{c['by_hand_s'] * 1e3:.1f} ms: ratio {ratio}"
        )
    for kind, figures in results.get("streams", {}).get("kinds", {}).items():
        streams = results["streams"]
        console.print(
            f"a client of {streams['bytes'] >> 20:,} MiB from {kind}: {figures['memory']:.2f} times its bytes "
            f"in memory (≤ {streams['target']}), {figures['round_s']:.1f} s of CPU a round"
        )
    _plot(out, {n: r for n, r in results.items() if "resident" in r})
    console.print(f"written: {out / 'results.json'}, {out / 'ratios.png'}")


def _files(files: dict) -> Table:
    table = Table(title=f"{files['clients']:,} clients in a file, beside the same arrays read by hand")
    for column in ("format", "opening", "first client", "listing ids", "memory", "clients/s", "by hand", "ratio"):
        table.add_column(column, justify="left" if column == "format" else "right")
    for name, f in files["formats"].items():
        table.add_row(
            name,
            f"{f['open_s'] * 1e3:.1f} ms",
            f"{f['first_client_s'] * 1e3:.1f} ms",
            f"{f['ids_s'] * 1e3:.0f} ms",
            f"{f['memory_mb']:.0f} MB",
            f"{f['clients_per_s']:,.0f}",
            f"{f['by_hand_per_s']:,.0f}",
            f"{f['by_hand_per_s'] / f['clients_per_s']:.2f}",
        )
    return table


def _checkpoints(checkpoints: dict) -> Table:
    table = Table(title="50 M float32 weights: rounds with a checkpoint beside rounds without")
    for column in (
        "model",
        "without",
        "with",
        "ratio",
        "95 %",
        "target",
        "processor",
        "thread",
        "target",
        "peak",
        "target",
        "3 checkpoints",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, m in checkpoints["models"].items():
        table.add_row(
            name,
            f"{m['plain_s']:.2f} s",
            f"{m['saved_s']:.2f} s",
            f"{m['ratio']:.2f}",
            f"{m['low']:.2f}–{m['high']:.2f}",
            f"≤ {checkpoints['target']:.2f}",
            f"{m['processor_ratio']:.2f}",
            f"{m['thread_share']:.1%}",
            "≤ 10 %",
            f"{m['copies']:+.1f} copies",
            f"≤ {checkpoints['target_copies']:.0f}",
            f"{m['three_checkpoints_copies']:.1f} copies",
        )
    return table


def _large(large: dict) -> Table:
    table = Table(title="large models, large clients and skewed cohorts: fedcore / a loop written by hand")
    for column in ("case", "memory over", "peak memory", "CPU s a round", "ratio", "first call, CPU s", "ratio"):
        table.add_column(column, justify="left" if column in ("case", "memory over") else "right")
    for name, sides in large["cases"].items():
        cells = [name, large["units"][name]]
        for key, digits in (("memory", 1), ("round_s", 2), ("first_s", 1)):
            ours, by_hand = (side[key] if side else float("nan") for side in sides.values())
            cells.append(f"{ours:.{digits}f} / {by_hand:.{digits}f}")
            cells += [] if key == "memory" else [f"{ours / by_hand:.2f}"]
        table.add_row(*cells)
    return table


def _plot(out: Path, results: dict) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if not results:
        return
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.8 * len(results)), layout="constrained")
    for row, (_, result) in enumerate(results.items()):
        for offset, kind, colour in ((-0.15, "resident", "#1f6feb"), (0.15, "fresh", "#8250df")):
            r = result[kind]
            errors = [[r["ratio"] - r["low"]], [r["high"] - r["ratio"]]]
            axes.errorbar(
                r["ratio"],
                row + offset,
                xerr=errors,
                fmt="o",
                color=colour,
                capsize=3,
                label=kind if row == 0 else None,
            )
        axes.plot([result["target"]] * 2, [row - 0.35, row + 0.35], color="#cf222e", lw=1.5)
    axes.axvline(1.0, color="#888888", lw=1)
    axes.set_yticks(range(len(results)), list(results))
    axes.invert_yaxis()
    axes.set_xlabel("seconds a round, fedcore over the best floor (red: target; 95 % interval of the median)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out / "ratios.png", dpi=150)
