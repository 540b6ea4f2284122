"""Progress of all nodes in one view: a table on a terminal, otherwise a line for each node at intervals."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from common.text import shown
from icestream.commands.ray.driver import NodeEnded, NodeGone, NodeRunning, NodeState, exit_words

PLAIN_LINE_S = 30.0
"""Seconds between two lines of one node without a terminal."""
_LAST_LINES = 8
"""Lines of a node that failed, shown at the end."""


class NodesView:
    """View of the nodes of one command. ``clock``: seconds from any start."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._lines: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=_LAST_LINES))
        self._next_line_s = clock() + PLAIN_LINE_S
        self._said: dict[int, str] = {}
        self._live = (
            Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
            if console.is_interactive
            else None
        )

    def __enter__(self) -> NodesView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays; an empty text is none."""
        if text:
            self._console.print(Text(shown(text)), soft_wrap=True)

    def heard(self, node: int, lines: Sequence[str]) -> None:
        """Take new lines of a node's output. What a node complains about is printed at once."""
        for line in lines:
            self._lines[node].append(line)
            if line.startswith(("Error", "Warning")):
                self.say(f"node {node} | {line}")

    def last_lines(self, node: int) -> None:
        """Print the last lines of a node that failed."""
        for line in self._lines[node]:
            self.say(f"node {node} | {line}")

    def new_attempt(self) -> None:
        """Forget the output of the former nodes."""
        self._lines.clear()
        self._said.clear()

    def show(self, states: Sequence[NodeState], places: Sequence[str]) -> None:
        """Show the newest line of every node; to be called often."""
        if self._live is not None:
            self._live.update(self._table(states, places), refresh=True)
        elif self._clock() >= self._next_line_s:
            self._next_line_s = self._clock() + PLAIN_LINE_S
            for node in range(len(states)):
                newest = self._newest(node)
                if newest and self._said.get(node) != newest:
                    self.say(f"node {node} | {newest}")
                    self._said[node] = newest

    def _newest(self, node: int) -> str:
        return self._lines[node][-1] if self._lines[node] else ""

    def _table(self, states: Sequence[NodeState], places: Sequence[str]) -> Panel:
        table = Table.grid(padding=(0, 2))
        for node, (state, place) in enumerate(zip(states, places, strict=True)):
            table.add_row(str(node), place, state_words(state), Text(shown(self._newest(node)), overflow="ellipsis"))
        if not states:
            table.add_row("waiting for machines")
        return Panel(table, title="icestream", title_align="left", expand=False)


def state_words(state: NodeState) -> str:
    """Short text on the state of a node."""
    match state:
        case NodeRunning():
            return "runs"
        case NodeGone():
            return "lost"
        case NodeEnded(0):
            return "finished"
        case NodeEnded(code):
            return exit_words(code)
