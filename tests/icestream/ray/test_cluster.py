"""Places of nodes in a Ray cluster, and the view of all of them."""

from __future__ import annotations

import io
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner
from rich.console import Console

from common.errors import BadInputError
from icestream.commands.ray import cluster
from icestream.commands.ray.cluster import ANSWERS_WITHIN_S, STARTS_WITHIN_S, RayNodes, in_former_order
from icestream.commands.ray.command import ray as ray_command
from icestream.commands.ray.driver import NodeEnded, NodeGone, NodeRunning
from icestream.commands.ray.session import RaySession, require_listener, require_named
from icestream.commands.ray.view import PLAIN_LINE_S, NodesView, state_words


@pytest.mark.parametrize(
    ("machines", "former", "order"),
    [
        (["a", "b"], {}, [0, 1]),
        (["b", "a"], {"a": 0, "b": 1}, [1, 0]),
        (["c", "b"], {"a": 0, "b": 1}, [0, 1]),
        (["b"], {"a": 0, "b": 1}, [0]),
        (["c", "a", "b"], {"a": 0, "b": 1}, [1, 2, 0]),
    ],
)
def test_a_machine_is_the_node_that_it_was_where_it_can(
    machines: list[str], former: dict[str, int], order: list[int]
) -> None:
    assert in_former_order(machines, former) == order


@pytest.mark.parametrize("address", ["auto", "local", "", " AUTO"])
def test_a_cluster_of_any_user_is_never_looked_for(address: str) -> None:
    with pytest.raises(BadInputError, match=f"--address {address}: Ray would take any user's cluster on this machine"):
        require_named(address)


def test_without_an_address_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    result = CliRunner().invoke(ray_command, ["--nodes", "1", "--shared", "s", "--run-dir", "r"])
    assert result.exit_code == 2
    assert "Missing option '--address'" in result.output


@pytest.mark.parametrize("address", ["gpu-a", "gpu-a:port"])
def test_an_address_without_a_port_is_a_mistake(address: str, tmp_path: Path) -> None:
    nothing = RaySession(1, (1,), 1, 0, 0.0, tmp_path, tmp_path, (), None, {})
    with pytest.raises(BadInputError, match=f"no Ray cluster at --address {address} .*: start one with `ray start"):
        nothing.run(address)


@pytest.mark.parametrize("port", ["1", "99999"])
def test_an_address_where_nobody_listens_is_a_mistake_at_once(port: str) -> None:
    with pytest.raises(BadInputError, match=f"no Ray cluster at --address 127.0.0.1:{port}"):
        require_listener(f"127.0.0.1:{port}")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_an_actor_that_ray_still_starts_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(cluster.time, "monotonic", clock)
    monkeypatch.setattr(cluster, "placement_group", mock.MagicMock())
    monkeypatch.setattr(cluster, "PlacementGroupSchedulingStrategy", mock.Mock())
    monkeypatch.setattr(cluster.ray, "remote", mock.Mock())
    nodes = RayNodes(1, 0, Path("shared"), mock.Mock(), mock.Mock())
    nodes.reserve(1)
    monkeypatch.setattr(cluster, "_is_there", lambda call: call is nodes._reserving)
    nodes.advance()
    for clock.now_s in (2 * ANSWERS_WITHIN_S, STARTS_WITHIN_S):
        nodes.advance()
        assert nodes.states == [NodeRunning()]
    clock.now_s += 1.0
    nodes.advance()
    assert nodes.states == [NodeGone()]


def test_without_a_terminal_each_node_shows_its_newest_line_at_intervals_and_complaints_at_once() -> None:
    output, clock = io.StringIO(), Clock()
    states, places = [NodeRunning()] * 2, ["10.0.0.1", "10.0.0.2"]
    with NodesView(Console(file=output, width=200), clock) as view:
        view.heard(0, ["step 1", "step 2"])
        view.heard(1, ["Warning: slow disk"])
        view.show(states, places)
        assert output.getvalue() == "node 1 | Warning: slow disk\n"
        clock.now_s = PLAIN_LINE_S
        view.show(states, places)
        assert output.getvalue().splitlines()[1:] == ["node 0 | step 2", "node 1 | Warning: slow disk"]
        clock.now_s = 2 * PLAIN_LINE_S
        view.heard(0, ["step 3"])
        view.show(states, places)
        assert output.getvalue().splitlines()[3:] == ["node 0 | step 3"], "nothing new of node 1"


def test_on_a_terminal_all_nodes_are_rows_of_one_table() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True, color_system=None)
    with NodesView(console) as view:
        view.heard(1, ["step 7 of https://me:hunter2@host.example/x"])
        view.show([NodeEnded(75), NodeRunning()], ["10.0.0.1", "10.0.0.2"])
    shown = output.getvalue()
    assert "lost another node" in shown
    assert "10.0.0.2" in shown
    assert "step 7" in shown
    assert "hunter2" not in shown


def test_states_have_short_words() -> None:
    states = [NodeRunning(), NodeGone(), NodeEnded(0), NodeEnded(-9), NodeEnded(137)]
    words = [state_words(state) for state in states]
    assert words == ["runs", "lost", "finished", "was killed by signal 9", "ended with exit code 137"]
