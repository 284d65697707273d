"""An evaluation as a table, beside what the method's paper reports, and as plots."""

from __future__ import annotations

from pathlib import Path

PAPER = "JetSpec, arXiv 2606.18394 v3, Qwen3-8B"
PAPER_ROWS = {  # mean tokens per round by temperature and nodes
    (0.0, "16"): {"gsm8k": 6.00, "humaneval": 5.32, "mtbench": 3.98},
    (0.0, "64"): {"gsm8k": 6.56, "humaneval": 6.06, "mtbench": 4.77},
    (0.0, "256"): {"gsm8k": 8.62, "humaneval": 7.78, "mtbench": 5.94},
    (1.0, "256"): {"gsm8k": 8.03, "humaneval": 6.85, "mtbench": 5.22},
}
MODES = {"as_served": "as served", "head_alone": "head alone"}


def by_temperature(result: dict) -> dict[float, dict]:
    """The parts of an evaluation (`evaluate`) by their temperature."""
    parts = {result["temperature"]: result}
    for key, value in result.items():
        if key.startswith("temperature_") and isinstance(value, dict) and "sets" in value:
            parts[float(key.removeprefix("temperature_"))] = value
    return parts


def table(result: dict) -> str:
    """A Markdown table: tokens per round by temperature, way of drafting and nodes; one column a set."""
    names = list(result["sets"])
    lines = ["| T | drafts | nodes | " + " | ".join(names) + " | mean |", "|" + "---|" * (len(names) + 4)]
    for temperature, part in by_temperature(result).items():
        for mode, said in MODES.items():
            for nodes, mean in part["mean"][mode].items():
                values = [part["sets"][name][mode][nodes] for name in names] + [mean]
                lines.append(_row(temperature, said, nodes, values))
        for (at, nodes), values in PAPER_ROWS.items():
            if at == temperature and all(name in values for name in names):
                some = [values[name] for name in names]
                lines.append(_row(temperature, "paper", nodes, [*some, sum(some) / len(some)]))
    return "\n".join([*lines, "", f"paper: {PAPER}"])


def _row(temperature: float, drafts: str, nodes: str, values: list[float]) -> str:
    return f"| {temperature:g} | {drafts} | {nodes} | " + " | ".join(f"{value:.2f}" for value in values) + " |"


def plot_evaluation(result: dict, out: Path) -> list[Path]:
    """Reliability, acceptance by depth and tokens per round by nodes, one PNG each. Raises ModuleNotFoundError
    without matplotlib."""
    figures = {"reliability": _reliability, "acceptance": _acceptance, "tokens_per_round": _tokens_per_round}
    return [_figure(out / f"{name}.png", draw, result) for name, draw in figures.items()]


def plot_training(log: list[dict], out: Path) -> list[Path]:
    """The loss and, where the log has them, held-out tokens per round over the training's seconds."""
    return [_figure(out / "training.png", _training, log)]


def _figure(path: Path, draw, data) -> Path:
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    draw(figure.subplots(), data)
    figure.savefig(path, dpi=120)
    return path


def _reliability(axes, result: dict) -> None:
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="perfect")
    for temperature, part in by_temperature(result).items():
        rows = part["reliability"]["table"]
        error = part["reliability"]["expected_error"]
        label = f"temperature {temperature:g}, error {error:.3f}"
        axes.plot([r["stated"] for r in rows], [r["came_true"] for r in rows], marker="o", label=label)
    axes.set(xlabel="probability that the head states", ylabel="share that came true", xlim=(0, 1), ylim=(0, 1))
    axes.legend()


def _acceptance(axes, result: dict) -> None:
    for temperature, part in by_temperature(result).items():
        for color, (nodes, accepted) in enumerate(part["mean"]["accepted_by_depth_head_alone"].items()):
            depths = range(1, len(accepted) + 1)
            style = "-" if temperature == 0 else "--"
            axes.plot(depths, accepted, f"C{color}{style}", marker=".", label=f"{nodes} nodes, T={temperature:g}")
    axes.set(xlabel="depth", ylabel="share of rounds that accept this deep (head alone)", ylim=(0, 1))
    axes.legend(fontsize="small", ncols=2)


def _tokens_per_round(axes, result: dict) -> None:
    for temperature, part in by_temperature(result).items():
        for mode, said in MODES.items():
            points = {int(nodes): value for nodes, value in part["mean"][mode].items() if nodes != "chain"}
            style = "-" if temperature == 0 else "--"
            axes.plot(list(points), list(points.values()), style, marker="o", label=f"{said}, T={temperature:g}")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="nodes of the tree, root included", ylabel="tokens per round, mean of the sets")
    axes.legend()


def _training(axes, log: list[dict]) -> None:
    losses = [entry for entry in log if "loss" in entry]
    axes.plot([e["seconds"] / 60 for e in losses], [e["loss"] for e in losses], linewidth=0.5, label="loss")
    axes.set(xlabel="minutes of training", ylabel="loss")
    held_out = [entry for entry in log if "tokens_per_round" in entry]
    lines = axes.get_lines()
    if held_out:
        right = axes.twinx()
        values = [_value(entry["tokens_per_round"]) for entry in held_out]
        lines = lines + right.plot(
            [e["seconds"] / 60 for e in held_out], values, "C1o-", label="held-out tokens per round"
        )
        right.set_ylabel("tokens per round")
    axes.legend(handles=list(lines))


def _value(tokens_per_round: float | dict) -> float:
    """A log entry's figure; of a table by nodes its largest tree's."""
    return list(tokens_per_round.values())[-1] if isinstance(tokens_per_round, dict) else tokens_per_round
