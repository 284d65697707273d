"""Training prompts: none overlaps a held-out set, and they stand in the target's own chat template."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from jetspec_build.train.openers import OPENERS
from jetspec_build.train.prompt_file import PromptFile, encode_prompts, make_prompts
from jetspec_build.train.prompt_sets import SETS, load_prompts, spread
from jetspec_build.train.prompt_sources import (
    MATHS,
    PUZZLES,
    SHARES,
    Prompt,
    generated_problems,
    library_functions,
    overlapping,
    python_prompts,
    user_prompts,
)
from jetspec_triton.chat import PromptEncoder

from .byte_level import byte_level
from .tiny_checkpoint import QUESTIONS, write_held_out, write_target

COUNT = 32_000  # the mixture's default


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("prompts") / "target")


@pytest.fixture(scope="module")
def held_out():
    cache = Path(__file__).resolve().parents[2] / ".cache" / "train" / "heldout"
    try:
        return {name: load_prompts(name, cache) for name in SETS}
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no package index here: {error}")


def test_held_out_sets_are_whole(held_out):
    for prompts in held_out.values():
        assert len(set(prompts)) > 50
        assert len(spread(prompts, 15)) == 15


def test_library_prompts_and_openers_overlap_no_held_out_prompt(held_out):
    functions = list(library_functions())
    texts = python_prompts(functions)
    assert len(functions) > 2000 and len(set(texts)) > SHARES["python"] * COUNT * 0.8
    everything = [prompt for prompts in held_out.values() for prompt in prompts]
    assert overlapping(texts, everything) == []
    assert overlapping(OPENERS, everything) == []


def test_generated_problems_overlap_no_held_out_prompt(held_out):
    pytest.importorskip("reasoning_gym", reason="install the prompts extra")
    everything = [prompt for prompts in held_out.values() for prompt in prompts]
    for names, share in ((MATHS, SHARES["maths"]), (PUZZLES, SHARES["puzzles"])):
        problems = generated_problems(names, round(share * COUNT), seed=1)
        assert len(set(problems)) > 0.8 * share * COUNT
        assert overlapping(problems, everything) == []


def test_overlap_is_found_whatever_case_and_punctuation():
    held = ["How many apples does Tom have after he gives three to Ann?", "Say hello!"]
    found = ["So: how MANY apples, does Tom have after he... sold all?", "say hello"]
    apart = ["How many apples does Tom have if he sold all?", "say hello to me"]
    assert overlapping(found + apart, held) == found


def test_prompts_stand_in_the_targets_template(target):
    encoder = PromptEncoder(target, 256)
    file = encode_prompts(target, [Prompt("hello"), Prompt("Write a", opening=True), Prompt("x" * 200)], longest=40)
    assert len(file) == 2  # the third is too long
    whole, opening = file[0]
    assert whole == encoder.encode("hello", chat=True) and not opening
    begun, opening = file[1]
    assert opening and begun + file.suffix.tolist() == encoder.encode("Write a", chat=True)
    assert begun[: len(file.prefix)] == whole[: len(file.prefix)] == file.prefix.tolist()


def test_a_target_without_a_template_continues_its_prompts(target, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text((target / "config.json").read_text())
    byte_level().save(str(plain / "tokenizer.json"))
    file = encode_prompts(plain, [Prompt("hello", opening=True)])
    assert file[0] == (PromptEncoder(plain, 256).encode("hello", chat=False), False)


def test_a_prompt_file_is_read_back(target, tmp_path):
    file = encode_prompts(target, [Prompt("hello"), Prompt("", opening=True)])
    file.save(tmp_path / "prompts.npz")
    again = PromptFile.load(tmp_path / "prompts.npz")
    assert again.digest == file.digest and [again[i] for i in range(2)] == [file[i] for i in range(2)]


def test_own_prompts_that_are_held_out_are_dropped(target, tmp_path, capsys):
    own = tmp_path / "own.jsonl"
    own.write_text(f'{{"prompt": "Tell me: {QUESTIONS[0]}"}}\n\n{{"prompt": "something else"}}\n')
    file = make_prompts(target, own, heldout=write_held_out(tmp_path / "heldout"))
    assert len(file) == 1 and "1 prompts overlap" in capsys.readouterr().out


def test_a_bad_line_of_own_prompts_is_named(tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "fine"}\n{"question": "what"}\n')
    with pytest.raises(ValueError, match="own.jsonl:2"):
        user_prompts(own)
    own.write_text("")
    with pytest.raises(ValueError, match="holds no prompt"):
        user_prompts(own)


@pytest.mark.parametrize("line", ["3", "[]", "{", '"x"'])
def test_a_line_that_is_no_prompt_is_named(tmp_path, line):
    (tmp_path / "own.jsonl").write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match="own.jsonl:2: expected"):
        user_prompts(tmp_path / "own.jsonl")
