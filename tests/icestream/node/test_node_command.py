"""Mistakes with `icestream node`: one line, before anything starts."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from federation.free_ports import free_port

from common.config import StreamConfig
from common.errors import BadInputError
from common.locks import RunLock, begin_attempt
from common.process import StopFlag
from icestream.commands.checks import refuse_folder_of_nodes, require_shares
from icestream.commands.node.command import node
from icestream.commands.node.session import Node
from icestream.commands.node.settings import refuse_outputs, require_inputs, require_same
from icestream.commands.options import checked_nodes
from services.config.root import Config, load_config
from services.supervisor.nodes.beats import Beats
from services.supervisor.nodes.master import parse_master
from services.supervisor.nodes.meeting import NodePlace
from services.supervisor.nodes.own_folder import claim_run_dir, require_shared, run_id
from services.supervisor.supervisor import NodeGroup


def config(*assignments: str, **flags: Any) -> Config:
    return load_config({}, assignments=("input=['/data/*.parquet']", *assignments), flags=flags, environment={})


def refused(place: Path, *arguments: str, number: int = 0, nodes: int = 1, master: str = "") -> str:
    """Error of the command, which has started nothing."""
    of_all = ["--node", str(number), "--nodes", str(nodes), "--master", master or f"127.0.0.1:{free_port()}"]
    folders = ["--shared", str(place / "shared"), "--run-dir", str(place / "run")]
    result = CliRunner().invoke(node, [*of_all, *folders, *arguments])
    assert isinstance(result.exception, BadInputError), result.output
    assert not (place / "run" / "logs").exists()
    return str(result.exception)


def test_a_number_that_there_is_not(tmp_path: Path) -> None:
    assert refused(tmp_path, number=2, nodes=2) == "--node 2: of --nodes 2 the last one is 1"


def test_a_host_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "the host 'gpu-z' is not known here" in refused(tmp_path, master="gpu-z:29500")


def test_a_port_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.commands.node.session.PORT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        master = f"127.0.0.1:{other.getsockname()[1]}"
        assert "can't listen there (Address already in use)" in refused(tmp_path, master=master)


def test_a_run_directory_in_use_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard has 20 s to end a former node, and a restart may come first."""
    monkeypatch.setattr("icestream.commands.node.session.FORMER_S", 0.0)
    (tmp_path / "run").mkdir()
    with RunLock(tmp_path / "run", "run", "icestream node") as former:
        assert "the run is in use by" in refused(tmp_path, "-i", "x")

        def ends(text: str) -> None:
            former.close()

        monkeypatch.setattr("icestream.commands.node.session.FORMER_S", 60.0)
        monkeypatch.setattr("icestream.commands.node.session.NodeSession._say", lambda self, text: ends(text))
        assert "x: " in refused(tmp_path, "-i", "x")


@pytest.mark.process
def test_a_signal_that_comes_before_the_supervisor_listens_is_not_lost(tmp_path: Path) -> None:
    attempt, stop = begin_attempt(tmp_path), StopFlag()
    place = NodePlace(0, 1, tmp_path, parse_master("127.0.0.1:1"), 1.0, lambda: False, lambda text: None)
    beats = Beats(tmp_path, place.note(attempt.number))
    one = Node(NodeGroup(1, 0, 1, "127.0.0.1", 1, attempt), beats, lambda: bool(stop))
    assert one.ending() is None
    os.kill(os.getpid(), signal.SIGTERM)
    assert one.ending() == (130, "asked before the start")
    beats.close(130, "")


@pytest.mark.process
def test_an_error_of_each_start_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.commands.node.session.RECORD_S", 60.0)
    how, error = "trainer ended with exit code 1", "ValueError: width 128"
    for _ in range(5):
        attempt = begin_attempt(tmp_path)
        place = NodePlace(0, 1, tmp_path, parse_master("127.0.0.1:1"), 1.0, lambda: False, lambda text: None)
        beats = Beats(tmp_path, place.note(attempt.number))
        one = Node(NodeGroup(1, 0, 1, "127.0.0.1", 1, attempt), beats, lambda: False)
        assert one.end_after_trainers(-9, "trainer was killed", "") == (75, "trainer was killed; start all nodes again")
        end = one.end_after_trainers(1, how, error)
        beats.close(*end)
        if attempt.number < 5:
            assert end == (75, f"{how}: {error}; start all nodes again")
    assert end == (1, f"{how}: {error}; so did 5 starts in a row, without a checkpoint in between")
    begin_attempt(tmp_path)  # this one is of an older attempt now
    assert one.end_after_trainers(1, how, error)[0] == 75


@pytest.mark.process
def test_a_file_server_that_does_not_answer_holds_up_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, was_asked = threading.Event(), threading.Event()

    def newest_step(shared: Path) -> int:
        was_asked.set()
        answers.wait(60.0)
        return 0

    monkeypatch.setattr("icestream.commands.node.session.newest_step", newest_step)
    monkeypatch.setattr("icestream.commands.node.session.RECORD_S", 0.1)
    attempt = begin_attempt(tmp_path)
    place = NodePlace(0, 1, tmp_path, parse_master("127.0.0.1:1"), 1.0, lambda: False, lambda text: None)
    beats = Beats(tmp_path, place.note(attempt.number))
    one = Node(NodeGroup(1, 0, 1, "127.0.0.1", 1, attempt), beats, lambda: False)
    assert one.end_after_trainers(1, "trainer ended", "KeyError: 'x'")[0] == 75
    assert was_asked.wait(60.0)
    assert not answers.is_set()
    answers.set()
    beats.close(75, "")


def test_no_input_and_a_mistake_of_the_settings(tmp_path: Path) -> None:
    assert "no input given" in refused(tmp_path)
    assert "--set stream.shards" in refused(tmp_path, "-i", "x", nodes=2)


def test_a_shared_folder_in_which_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    with pytest.raises(BadInputError, match=r"shared/below: can't write there .Not a directory.; choose a folder"):
        require_shared(tmp_path / "shared" / "below", tmp_path / "run")


def test_a_shared_folder_that_others_can_change(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(BadInputError, match=r"--shared .*shared \(mode 0777.*can be changed by every user"):
        require_shared(tmp_path / "shared", tmp_path / "run")
    with pytest.raises(BadInputError, match=r"--shared .*can be changed by every user"):
        checked_nodes(2, tmp_path / "shared", None, [], [])


def test_a_run_directory_that_is_the_shared_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="must be a folder of each node"):
        require_shared(tmp_path, tmp_path / "." / "")


def test_folders_inside_of_an_input(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    shared = tmp_path.with_name(f"{tmp_path.name}-shared")
    inputs = ("-i", f"{tmp_path}/**/*.parquet")
    assert re.match("the run directory .*/shared lies inside of the input", refused(tmp_path, *inputs))
    assert re.match("the run directory .*/run lies inside of", refused(tmp_path, *inputs, "--shared", str(shared)))
    assert not (shared / "config.json").exists()


def test_several_nodes_of_a_run_without_shards_are_told_what_to_set() -> None:
    with pytest.raises(BadInputError, match=r"new run: --set stream.shards=2, or a multiple of it$"):
        require_shares(StreamConfig(), 2, 3)
    require_shares(StreamConfig(shards=2), 2, 3)


def test_a_copy_of_the_outputs_is_not_for_nodes() -> None:
    with pytest.raises(BadInputError, match=r"outputs.destination: results of several nodes are in --shared"):
        refuse_outputs(config("outputs.destination=/copies"))


@pytest.mark.parametrize(
    ("assignment", "key"),
    [("seed=5", "seed"), ("stream.unit_events=99", "stream.unit_events"), ("epochs=7", "epochs")],
)
def test_a_setting_that_is_not_that_of_node_0(assignment: str, key: str) -> None:
    with pytest.raises(BadInputError, match=rf"{key} = \d+, but node 0 has \d+: give all nodes the same settings"):
        require_same(config(), config(assignment))


@pytest.mark.parametrize(
    "assignments",
    [("fetcher.ranges=0:3000:1000",), ("fetcher.done=/done.txt",)],
)
def test_files_that_are_not_those_of_node_0(assignments: tuple[str, ...]) -> None:
    """The fetchers of the other nodes would wait for lists that node 0 never makes."""
    with pytest.raises(BadInputError, match=r"^fetcher\.\w+ = .*, but node 0 has .*: give all nodes the same settings"):
        require_same(config("fetcher.ranges=0:2000:1000"), config("fetcher.ranges=0:2000:1000", *assignments))


def test_settings_of_a_machine_may_differ() -> None:
    require_same(config(), config("trainer.device=cpu", "trainer.threads=3", "local.decoders=7", "decoder.threads=2"))
    with pytest.raises(BadInputError, match="--trainers 2, but node 0 has 1"):
        require_same(config(), config("local.trainers=2"))


def test_inputs_that_this_machine_does_not_see(tmp_path: Path) -> None:
    for text in (tmp_path, tmp_path / "*.parquet", tmp_path / "**" / "x-[0-9].parquet"):
        require_inputs(config(input=(str(text),)))
        with pytest.raises(BadInputError, match=r"gone is not on this machine; all nodes need the inputs"):
            require_inputs(config(input=(str(text).replace(str(tmp_path), str(tmp_path / "gone")),)))
    require_inputs(config(input=("pelican://osg-htc.org/x/*.parquet",)))


def test_a_run_directory_belongs_to_one_run_and_nothing_is_deleted(tmp_path: Path) -> None:
    shared, other, run_dir = tmp_path / "shared", tmp_path / "other", tmp_path / "run"
    for folder in (shared, other, run_dir):
        folder.mkdir()
    name = run_id(shared, begins=True)
    assert run_id(shared, begins=False) == run_id(shared, begins=True) == name
    claim_run_dir(run_dir, name, shared)
    claim_run_dir(run_dir, name, shared)
    (run_dir / "mine.txt").write_text("of a user")
    with pytest.raises(BadInputError, match="of a node of another run"):
        claim_run_dir(run_dir, run_id(other, begins=True), other)
    assert (run_dir / "mine.txt").read_text() == "of a user"


@pytest.mark.parametrize("name", ["run-id", "node.json"])
def test_a_folder_of_nodes_is_no_run_of_one_machine(tmp_path: Path, name: str) -> None:
    refuse_folder_of_nodes(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(BadInputError, match="go on with `icestream node`"):
        refuse_folder_of_nodes(tmp_path)


def test_a_run_directory_of_one_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(BadInputError, match="a run of one machine"):
        claim_run_dir(tmp_path, "x", tmp_path / "shared")
