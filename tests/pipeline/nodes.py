"""Nodes of one run as processes of this machine, each with a run directory of its own, started by real torchruns."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty_services import STEP_TIMEOUT_VARIABLE
from runs import Process, Processes, kill
from zygote import MODULE, PADDING

from common.locks import newest_number

WORKER = str(Path(__file__).with_name("torchrun_worker.py"))


class Network:
    """Network of two machines: a namespace for each, and one for what is between them."""

    def __init__(self, name: str) -> None:
        self._hub = f"{name}-hub"
        self.namespaces = [f"{name}-{machine}" for machine in range(2)]

    def address(self, machine: int) -> str:
        return f"192.0.2.{machine + 1}"

    def within(self, machine: int) -> list[str]:
        return ["ip", "netns", "exec", self.namespaces[machine]]

    def cut(self, state: str) -> None:
        """Pull the cable of the second machine ("down"), or put it in again ("up")."""
        _ip(f"-n {self._hub} link set port1 {state}")

    def listening(self, machine: int) -> set[str]:
        """Addresses at which processes of the machine listen."""
        told = subprocess.check_output([*self.within(machine), "ss", "-Hltn"], text=True, timeout=60)
        return {line.split()[3].rpartition(":")[0] for line in told.splitlines()}

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Network]:
        """Network that is gone at the end. Skips the test where none can be made."""
        network = cls(f"ice{secrets.token_hex(3)}")
        if not shutil.which("ip") or subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0:
            pytest.skip("network namespaces need iproute2, root, and a kernel that allows them")
        try:
            _ip(f"netns add {network._hub}")
            _ip(f"-n {network._hub} link add bridge up type bridge")
            for machine, name in enumerate(network.namespaces):
                _ip(f"netns add {name}")
                _ip(f"-n {network._hub} link add eth0 netns {name} type veth peer name port{machine}")
                _ip(f"-n {network._hub} link set port{machine} master bridge up")
                _ip(f"-n {name} address add {network.address(machine)}/24 dev eth0")
                for interface in ("lo", "eth0"):
                    _ip(f"-n {name} link set {interface} up")
            yield network
        finally:
            for name in (network._hub, *network.namespaces):
                if Path("/run/netns", name).exists():
                    _ip(f"netns delete {name}")


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, timeout=60)


class Nodes:
    """All starts of a run: of each, its torchruns."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self.folder = folder
        self.network: Network | None = None
        self.shared = folder / "shared"
        self.shared.mkdir(mode=0o700, parents=True)
        self.results = Processes(self.shared, folder)
        """What the run leaves in the folder that the nodes share."""
        self._arguments = list(arguments)
        self._places: list[Processes] = []

    def node(self, place: int) -> Processes:
        """Machine with this number: a run directory, with the logs of what was started there."""
        while len(self._places) <= place:
            number = len(self._places)
            logs = self.folder / f"logs-{number}"
            logs.mkdir(parents=True)
            self._places.append(Processes(self.folder / f"node-{number}", logs))
        return self._places[place]

    def start(
        self,
        place: int,
        nodes: str,
        *,
        trainers: int = 1,
        brake_after: int | None = None,
        launch: str = "of-the-test",
        more: Sequence[str] = (),
    ) -> Process:
        """Start torchrun on a machine. With ``brake_after``, its trainers are slow from this step on."""
        machine = self.node(place)
        environment = machine.brake(brake_after) if brake_after is not None else {}
        environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", STEP_TIMEOUT_VARIABLE: "8"}
        torchrun = (
            *("--nnodes", nodes, "--nproc-per-node", str(trainers), "--max-restarts", "9", "--rdzv-backend", "c10d"),
            *("--rdzv-id", launch, "--rdzv-endpoint", str(self.shared / "rendezvous")),
            *("--rdzv-conf", "store_type=file,last_call_timeout=1"),
            *("--local-addr", self.network.address(place) if self.network else "127.0.0.1"),
        )
        program = ("-m", "torch.distributed.run", *torchrun, WORKER, PADDING, MODULE)
        arguments = ("--shared", str(self.shared), *self._arguments, *more)
        within = self.network.within(place) if self.network else ()
        return machine.start("run", *arguments, environment=environment, program=program, within=within)

    def train(self, nodes: int, *, trainers: int = 1, launch: str = "of-the-test", more: Sequence[str] = ()) -> None:
        """Start all nodes, which have to come to a good end."""
        options = {"trainers": trainers, "launch": launch, "more": more}
        self.finish([self.start(node, str(nodes), **options) for node in range(nodes)])

    def finish(self, started: Sequence[Process]) -> None:
        """Wait for a good end."""
        assert self.ends(started) == [0] * len(started), self.report()

    def ends(self, started: Sequence[Process]) -> list[int]:
        """Exit codes of torchruns, at their ends."""
        return [self.node(0).finish(one) for one in started]

    def reach(self, step: int, started: Sequence[Process]) -> None:
        """Wait for a checkpoint of ``step`` or later, of a run whose brakes hold it there."""
        self.wait(lambda: self.results.checkpoint_step() >= step or any(one.ended() for one in started), f"step {step}")
        assert not any(one.ended() for one in started), self.report()

    def reach_attempt(self, number: int, nodes: int) -> None:
        """Wait until the trainers of ``nodes`` nodes make steps in this attempt."""

        def runs() -> bool:
            running = [one for one in self._places if one.trainer.state == "training" and one.pids("trainer")]
            return newest_number(self.shared) >= number and len(running) == nodes

        self.wait(runs, f"attempt {number}")

    def wait(self, event: Callable[[], object], what: str) -> None:
        try:
            self.node(0).wait_for(event, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from None

    def release(self) -> None:
        for machine in self._places:
            machine.release()

    def lose(self, place: int) -> None:
        """Kill every process of a machine, torchrun first."""
        self.node(place).kill_all()

    def freeze(self, place: int) -> list[int]:
        """Stop every process of a machine, torchrun first."""
        machine = self.node(place)
        pids = list(dict.fromkeys([*machine.pids("run"), *machine.pids()]))
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        return pids

    # ------------------------------------------------------------ results

    def audits(self) -> dict[str, str]:
        """Audits by their place in the shared folder, one for each trainer of a shard."""
        return {str(path.relative_to(self.shared)): path.read_text() for path in self.shared.rglob("audit*.jsonl")}

    # ------------------------------------------------------------ ends

    def assert_nothing_is_left(self) -> None:
        for machine in self._places:
            machine.assert_nothing_is_left()
        assert not [path for path in self.folder.rglob("*.part") if "logs" not in path.parts]

    def end(self) -> None:
        for machine in self._places:
            machine.end()

    def report(self) -> str:
        return "\n".join(f"=== {machine.run_dir}\n{machine.report()}" for machine in self._places)
