"""A build goes on where it stopped: finished parts are kept while their inputs, settings and files are unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jetspec_build.parts import STATE, Part, build_parts, sha256_of, size_text
from jetspec_triton.errors import ConfigError


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "input"
    path.write_text("weights")
    return path


class Workshop:
    """Two parts that read `source`; notes which are written. `broken` names one that fails half way."""

    def __init__(self, source: Path):
        self.source, self.settings, self.written, self.broken, self.told = source, {"int8": True}, [], "", []

    def build(self, out: Path) -> dict[str, str]:
        parts = [Part(n, (self.source,), self.settings, {f"{n}.bin": 7}, self.writer(n)) for n in ("one", "two")]
        return build_parts(parts, out, self.told.append)

    def writer(self, name: str):
        def write(out: Path) -> None:
            (out / f"{name}.bin").write_text(self.source.read_text() + name)
            if name == self.broken:
                raise OSError("no space left")
            self.written.append(name)

        return write


@pytest.fixture
def workshop(source) -> Workshop:
    return Workshop(source)


def test_the_hashes_are_those_of_the_files(workshop, tmp_path):
    files = workshop.build(tmp_path / "out")
    assert files == {name: sha256_of([tmp_path / "out" / name]) for name in ("one.bin", "two.bin")}
    assert (tmp_path / "out" / "one.bin").read_text() == "weightsone"


def test_a_second_build_writes_nothing_and_says_so(workshop, tmp_path):
    first = workshop.build(tmp_path / "out")
    workshop.told.clear()
    assert workshop.build(tmp_path / "out") == first
    assert workshop.written == ["one", "two"]
    assert workshop.told[1:] == ["[1/2] one: unchanged, kept", "[2/2] two: unchanged, kept"]


def test_a_stopped_build_goes_on_after_the_finished_part(workshop, tmp_path):
    workshop.broken = "two"
    with pytest.raises(OSError):
        workshop.build(tmp_path / "out")
    workshop.broken = ""
    workshop.build(tmp_path / "out")
    assert workshop.written == ["one", "two"]  # the half-written file of the second was not taken for finished


@pytest.mark.parametrize("changed", ["input", "settings", "output", "lost"])
def test_what_changed_is_built_again(workshop, source, tmp_path, changed):
    out = tmp_path / "out"
    workshop.build(out)
    workshop.written.clear()
    if changed == "input":
        source.write_text("other weights")
    elif changed == "settings":
        workshop.settings = {"int8": False}
    elif changed == "output":
        (out / "two.bin").write_text("damaged")
    else:
        (out / "two.bin").unlink()
    workshop.build(out)
    assert workshop.written == (["one", "two"] if changed in ("input", "settings") else ["two"])
    assert (out / "two.bin").read_text() == source.read_text() + "two"


def test_a_part_being_rewritten_is_not_known_as_finished(workshop, source, tmp_path):
    workshop.build(tmp_path / "out")
    source.write_text("other weights")
    workshop.broken = "one"
    with pytest.raises(OSError):
        workshop.build(tmp_path / "out")
    assert list(json.loads((tmp_path / "out" / STATE).read_text())) == ["two"]


def test_sizes_read_well():
    assert [size_text(n) for n in (12, 4_000, 1_500_000, 8_190_000_000)] == ["12 bytes", "4 KB", "1.5 MB", "8.2 GB"]


def test_a_second_build_into_the_same_directory_is_refused_while_the_first_runs(workshop, tmp_path):
    refused = []

    def write(out: Path) -> None:
        with pytest.raises(ConfigError, match="another build is writing to") as error:
            workshop.build(out)
        refused.append(str(error.value))
        (out / "slow.bin").write_text("done")

    slow = Part("slow", (workshop.source,), {}, {"slow.bin": 4}, write)
    build_parts([slow], tmp_path / "out", lambda line: None)
    assert refused and not workshop.written
    assert workshop.build(tmp_path / "out") and workshop.written == ["one", "two"]
