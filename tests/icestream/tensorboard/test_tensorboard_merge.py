"""`icestream tensorboard merge`: names, links, copies, and what it keeps its hands off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from torch.utils.tensorboard import SummaryWriter

from common.errors import BadInputError
from common.tensorboard_names import run_and_rest, sanitised, since_s, unique
from icestream.commands.tensorboard.command import tensorboard

DAY_S = 86_400


def event_file(folder: Path, number: int = 1, text: str = "x", mtime_s: float | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{number}.host.1.0"
    path.write_text(text)
    if mtime_s is not None:
        os.utime(path, (mtime_s, mtime_s))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(tensorboard, ["merge", *map(str, arguments)], catch_exceptions=False)


def merged(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()[-1]


def tree(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("events*"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs; one of today's layout, one with a folder for each start."""
    event_file(tmp_path / "runs" / "a" / "tensorboard")
    event_file(tmp_path / "runs" / "b" / "tensorboard" / "2026-11-20_10-00-00", 1)
    event_file(tmp_path / "runs" / "b" / "tensorboard" / "2026-11-21_10-00-00", 2)
    (tmp_path / "runs" / "b" / "checkpoints").mkdir()
    return tmp_path / "runs"


FILES = [
    "a/events.out.tfevents.1.host.1.0",
    "b/2026-11-20_10-00-00/events.out.tfevents.1.host.1.0",
    "b/2026-11-21_10-00-00/events.out.tfevents.2.host.1.0",
]


@pytest.mark.parametrize("how", ["--link", "--copy"])
def test_runs_are_collected_under_their_names_however_they_are_named(runs: Path, tmp_path: Path, how: str) -> None:
    for number, sources in enumerate(
        (
            [runs],
            [runs / "a", runs / "b"],
            [runs / "a" / "tensorboard", runs / "b" / "tensorboard"],
            ["--glob", f"{runs}/*"],
            [runs, runs / "a", "--glob", f"{runs}/b*"],
        )
    ):
        out = tmp_path / f"out{number}"
        assert "2 runs, 3 folders, 3 files: 3 new, 0 changed, 0 as they were" in merged(*sources, how, "-o", out)
        assert tree(out) == FILES
        assert all((out / name).is_symlink() == (how == "--link") for name in FILES)
        assert all((out / name).read_text() == "x" for name in FILES)


def test_tensorboard_itself_reads_what_was_linked(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 2.0)):
        with SummaryWriter(str(tmp_path / "runs" / name / "tensorboard" / "start")) as writer:
            writer.add_scalar("train/w_gap", value, 7)
    merged(tmp_path / "runs", "-o", tmp_path / "out")
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "out"))
    multiplexer.Reload()
    assert set(multiplexer.Runs()) == {"one/start", "two/start"}
    (tensor,) = multiplexer.Tensors("two/start", "train/w_gap")
    assert tensor.step == 7


@pytest.mark.parametrize("how", ["--link", "--copy"])
def test_a_second_merge_does_only_what_is_new(runs: Path, tmp_path: Path, how: str) -> None:
    out = tmp_path / "out"
    merged(runs, how, "-o", out)
    before = {name: (out / name).lstat() for name in FILES}
    assert "0 new, 0 changed, 3 as they were" in merged(runs, how, "-o", out)
    assert {name: (out / name).lstat() for name in FILES} == before

    event_file(runs / "a" / "tensorboard", 1, "grown", mtime_s=2e9)
    event_file(runs / "c" / "tensorboard", 3)
    assert ("1 new, 0 changed, 3" if how == "--link" else "1 new, 1 changed, 2") in merged(runs, how, "-o", out)
    assert (out / FILES[0]).read_text() == "grown"
    assert not list(out.rglob("*.part*"))


def test_links_become_copies_and_back_on_request(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merged(runs, "-o", out)
    assert "0 new, 3 changed" in merged(runs, "--copy", "-o", out)
    assert not (out / FILES[0]).is_symlink()
    assert (runs / "a" / "tensorboard" / Path(FILES[0]).name).read_text() == "x", "a link's file is not written through"
    assert "0 new, 3 changed" in merged(runs, "--link", "-o", out)
    assert (out / FILES[0]).is_symlink()


def test_runs_of_the_same_name_get_names_of_their_own_and_keep_them(tmp_path: Path) -> None:
    for place in ("x", "y", "z/x"):
        event_file(tmp_path / place / "run" / "tensorboard", text=place)
    out = tmp_path / "out"
    merged(tmp_path / "y" / "run", "-o", out)
    merged(tmp_path / "x" / "run", tmp_path / "y" / "run", tmp_path / "z" / "x" / "run", "-o", out)
    found = {path.parent.name: path.read_text() for path in out.rglob("events*")}
    assert found == {"run": "y", "x-run": "x", "x-run-2": "z/x"}
    assert "0 new, 0 changed, 1 as they were" in merged(tmp_path / "z" / "x" / "run", "-o", out)


def test_only_what_is_new_enough_and_what_matches_is_taken(runs: Path, tmp_path: Path) -> None:
    now_s = (runs / "a").stat().st_mtime
    event_file(runs / "old" / "tensorboard", mtime_s=now_s - 8 * DAY_S)
    merged(runs, "--since", "7d", "-o", tmp_path / "recent")
    assert tree(tmp_path / "recent") == FILES
    merged(runs, "--match", "^(old|b)$", "-o", tmp_path / "some")
    assert {name.split("/")[0] for name in tree(tmp_path / "some")} == {"old", "b"}
    assert "0 runs" in merged(runs, "--match", "nothing", "-o", tmp_path / "none")


def test_links_in_a_run_are_not_followed(runs: Path, tmp_path: Path) -> None:
    secret = event_file(tmp_path / "elsewhere", 9)
    (runs / "a" / "tensorboard" / "events.out.tfevents.9.link").symlink_to(secret)
    (runs / "a" / "tensorboard" / "linked").symlink_to(secret.parent)
    merged(runs, "-o", tmp_path / "out")
    assert tree(tmp_path / "out") == FILES


def test_nothing_is_written_through_a_link_or_into_somebody_elses_folder(runs: Path, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    foreign = event_file(out / "a", 1, "foreign")
    elsewhere.mkdir()
    (out / "b").symlink_to(elsewhere)
    merged(runs, "-o", out)
    assert foreign.read_text() == "foreign"
    assert not list(elsewhere.iterdir())
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == {"a", "b", "runs-a", "runs-b"}

    for path in sorted((out / "runs-a").rglob("*")):
        path.unlink()
    (out / "runs-a").rmdir()
    (out / "runs-a").symlink_to(elsewhere)
    with pytest.raises(BadInputError, match="is a link: nothing is written through it"):
        run(runs, "-o", out)
    assert not list(elsewhere.iterdir())


def test_the_output_is_never_its_own_input(runs: Path) -> None:
    for _ in range(2):
        assert "2 runs, 3 folders, 3 files" in merged(runs, "--glob", f"{runs}/*", "--copy", "-o", runs / "all")


def test_links_to_files_that_are_gone_are_removed_and_copies_stay(runs: Path, tmp_path: Path) -> None:
    merged(runs, "-o", tmp_path / "links")
    merged(runs, "--copy", "-o", tmp_path / "copies")
    next((runs / "a" / "tensorboard").iterdir()).unlink()
    assert "1 links to files that are gone removed" in merged(runs, "-o", tmp_path / "links")
    merged(runs, "--copy", "-o", tmp_path / "copies")
    assert tree(tmp_path / "links") == FILES[1:]
    assert tree(tmp_path / "copies") == FILES


def test_a_dry_run_names_the_folders_and_changes_nothing(runs: Path, tmp_path: Path) -> None:
    output = run(runs, "--dry-run", "-o", tmp_path / "out").output
    assert str(runs / "a" / "tensorboard") in output
    assert "nothing was changed" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["missing"], "missing: no such directory"),
        (["empty"], "no TensorBoard files"),
        (["--glob", "nothing*"], "no directory matches"),
        (["a", "--match", "("], "not a regular expression"),
        (["a", "--since", "yesterday"], "expected a date"),
    ],
)
def test_mistakes_are_told_in_a_line(
    runs: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], problem: str
) -> None:
    monkeypatch.chdir(runs)
    (runs / "empty").mkdir()
    with pytest.raises(BadInputError, match=problem):
        run(*arguments, "-o", "out")
    assert run("-o", "out").exit_code == 2


@pytest.mark.parametrize("text", ["[]", "{", '{"folders": {"a": "../up"}}', '{"folders": {"a": "/etc"}}'])
def test_a_note_that_leads_elsewhere_is_refused(runs: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".icestream-merge.json").write_text(text)
    with pytest.raises(BadInputError, match="not a note of"):
        run(runs, "-o", tmp_path / "out")


def test_names_are_safe_and_unique() -> None:
    assert sanitised("muons λ=10 / try #2") == "muons_λ=10_try_2"
    assert [sanitised(name) for name in ("..", ".hidden", "", "a/b")] == ["_", "hidden", "_", "a_b"]
    assert unique("a", ("x y",), "p", lambda _: False) == "a/x_y"
    assert unique("a", (), "p", lambda name: name in ("a", "p-a", "p-a-2")) == "p-a-3"
    assert run_and_rest(Path("/r"), Path("/r/m/n/tensorboard/s/t")) == ("m-n", ("s", "t"))
    assert run_and_rest(Path("/r/m"), Path("/r/m/logs")) == ("logs", ())


def test_a_time_is_a_date_or_an_age() -> None:
    assert since_s("12h", 1e9) == 1e9 - 12 * 3600
    assert since_s("1.5d", 1e9) == 1e9 - 1.5 * DAY_S
    assert since_s("2026-11-21T08:00+00:00", 0.0) == 1_795_248_000.0
    assert since_s("2026-11-22", 0.0) - since_s("2026-11-21", 0.0) == DAY_S


def test_folders_of_a_log_directory_are_runs_of_their_own(tmp_path: Path) -> None:
    logs = tmp_path / "logs_tensorboard"
    for name in ("20260105-120000", "20260106-080000", "wide"):
        event_file(logs / name)
    event_file(logs)
    assert "4 runs, 4 folders, 4 files" in merged(logs, "-o", tmp_path / "out")
    names = {path.parent.name for path in (tmp_path / "out").rglob("events*")}
    assert names == {"20260105-120000", "20260106-080000", "wide", "logs_tensorboard"}
    assert "2 runs" in merged(logs, "--match", "^2026", "-o", tmp_path / "some")
    assert since_s("20260105-120000", 0) == since_s("2026-01-05T12:00:00", 0)
