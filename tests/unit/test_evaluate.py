"""Head evaluation: what its figures count, its table, card and plots."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from jetspec_build.train.card import write_card
from jetspec_build.train.evaluate import evaluate, reliability, stated_and_true
from jetspec_build.train.known_text import KnownText
from jetspec_build.train.report import by_temperature, plot_evaluation, plot_training, table

from .tiny_checkpoint import QUESTIONS, write_head, write_target

SETS = {"first": QUESTIONS[:2], "second": QUESTIONS[2:]}
BUDGETS = (4, 16)


class FixedDrafts:
    """The same two candidates a depth at every anchor of a text."""

    def __init__(self, tokens, ids, probs):
        self.text, self._row = KnownText(np.array(tokens), 1, None), (np.array(ids), np.log(probs))

    def at(self, anchor):
        return self._row


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    target = write_target(folder / "target")
    head = write_head(folder / "head", target)
    return evaluate(head, target, SETS, folder / "texts", tokens=24, budgets=BUDGETS)


def test_a_result_has_every_figure(result):
    assert result == json.loads(json.dumps(result))
    for part in by_temperature(result).values():
        assert part["sets"].keys() == SETS.keys()
        for mode in ("as_served", "head_alone"):
            for nodes in map(str, BUDGETS):
                figures = [part["sets"][name][mode][nodes] for name in SETS]
                assert min(figures) >= 1
                assert mode == "as_served" or max(figures) <= result["depth"] + 1
                assert part["mean"][mode][nodes] == pytest.approx(np.mean(figures))
                # every round emits its accepted tokens and one more; only the last token of a text can be cut off
                accepted = np.mean([sum(part["sets"][n][f"accepted_by_depth_{mode}"][nodes]) for n in SETS])
                assert accepted <= part["mean"][mode][nodes] <= accepted + 1 + 1e-9
        assert 1 <= part["mean"]["head_alone"]["chain"] <= result["depth"] + 1
    ratio = result["temperature_1"]["mean"]["as_served"]["16"] / result["mean"]["as_served"]["16"]
    assert result["temperature_1_over_0"]["16"] == pytest.approx(ratio)


def test_prompts_beyond_the_context_are_left_out_and_a_set_of_them_is_refused(tmp_path):
    target = write_target(tmp_path / "target")
    head = write_head(tmp_path / "head", target)
    options = {"tokens": 4, "budgets": (4,), "temperatures": (0.0,)}
    some = evaluate(head, target, {"some": ["short", "long " * 80]}, tmp_path / "texts", **options)
    assert some["prompts_per_set"] == {"some": 1}
    with pytest.raises(ValueError, match="no prompt of long has at most 252 tokens"):
        evaluate(head, target, {"long": ["long " * 80]}, tmp_path / "texts", **options)


def test_larger_trees_emit_at_least_as_much_per_round(result):
    for part in by_temperature(result).values():
        assert part["mean"]["head_alone"]["16"] >= part["mean"]["head_alone"]["4"]


def test_only_depths_below_true_tokens_count():
    drafts = FixedDrafts([9, 5, 1, 2, 3], ids=[[1, 2], [3, 4]], probs=[[0.75, 0.25], [0.5, 0.125]])
    seen = [(probs.round(6).tolist(), true.tolist()) for probs, true in stated_and_true(drafts)]
    assert seen == [
        ([0.75, 0.25], [True, False]),  # after 5 comes 1: right
        ([0.5, 0.125], [False, False]),  # below 1 comes 2: neither
        ([0.75, 0.25], [False, True]),  # after 1 comes 2
        ([0.5, 0.125], [True, False]),  # below 2 comes 3: right
        ([0.75, 0.25], [False, False]),  # after 2 comes 3; nothing below a miss counts
    ]


def test_reliability_compares_stated_with_came_true():
    drafts = FixedDrafts([9, 5, 1, 2, 3], ids=[[1, 2], [3, 4]], probs=[[0.75, 0.25], [0.5, 0.125]])
    found = reliability(iter([drafts]))
    rows = {row["from"]: (row["count"], pytest.approx(row["stated"]), row["came_true"]) for row in found["table"]}
    assert rows == {0.1: (2, 0.125, 0.0), 0.2: (3, 0.25, 1 / 3), 0.5: (2, 0.5, 0.5), 0.7: (3, 0.75, 1 / 3)}
    error = (2 * 0.125 + 3 * abs(0.25 - 1 / 3) + 0 + 3 * (0.75 - 1 / 3)) / 10
    assert math.isclose(found["expected_error"], error)


def test_the_table_and_the_card_say_what_the_result_says(result, tmp_path):
    text = table(result)
    assert f"| 1 | as served | 16 | {result['temperature_1']['sets']['first']['as_served']['16']:.2f} |" in text
    assert "paper |" not in text  # these sets are none of the paper's
    sets = {name: result["sets"]["first"] for name in ("humaneval", "mtbench", "gsm8k")}
    named = {"temperature": 0.0, "sets": sets, "mean": result["mean"]}
    assert "| 0 | paper | 16 | 5.32 | 3.98 | 6.00 | 5.10 |" in table(named)
    training = {"tokens": 10, "conversations": 2, "minutes": 3.0, "prompts": None, "command": "jetspec train"}
    card = write_card(tmp_path, result, training).read_text()
    assert result["target"]["sha256"] in card and text in card and "reasoning-gym (Apache-2.0)" in card


def test_plots_are_written(result, tmp_path):
    pytest.importorskip("matplotlib", reason="install the plots extra")
    log = [{"step": i, "seconds": i, "loss": 3 - i / 10, "anchors": 1} for i in range(9)]
    log.append({"step": 9, "seconds": 9, "tokens_per_round": 2.0})
    paths = plot_evaluation(result, tmp_path) + plot_training(log, tmp_path)
    assert len(paths) == 4
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
