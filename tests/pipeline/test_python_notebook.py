"""`icestream.stream` in a real Jupyter kernel: a cell run again, one that is interrupted, and the kernel's end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager, start_new_kernel
from muon_files import make_events, write_events

import icestream

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the kernel's warnings are not ours

WAIT_S = 60.0


class Notebook:
    """Cells that are run one after the other."""

    def __init__(self, manager: KernelManager, client: Any) -> None:
        self._manager = manager
        self._client = client

    def start(self, code: str) -> str:
        started: str = self._client.execute(code)
        return started

    def await_text(self, text: str) -> None:
        """Wait until the running cell has printed ``text``."""
        printed = ""
        while text not in printed:
            message = self._client.get_iopub_msg(timeout=WAIT_S)
            assert message["msg_type"] != "error", message["content"]
            printed += message["content"].get("text", "")

    def end_of(self, started: str) -> tuple[str, str]:
        """Printed text of a cell, and the name of the error that ended it."""
        printed, error = "", ""
        while True:
            message = self._client.get_iopub_msg(timeout=WAIT_S)
            if message["parent_header"].get("msg_id") != started:
                continue
            content = message["content"]
            printed += content.get("text", "")
            error = content.get("ename", error)
            if content.get("execution_state") == "idle":
                return printed.strip(), error

    def run(self, code: str) -> str:
        printed, error = self.end_of(self.start(code))
        assert not error, (error, printed)
        return printed

    def interrupt(self) -> None:
        """As the button with the square."""
        self._manager.interrupt_kernel()

    def shut_down(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(icestream.__file__).parents[1]),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    found = Notebook(*start_new_kernel(startup_timeout=WAIT_S, kernel_name="python3", env=environment))
    yield found
    found.shut_down()


CELL = """
stream = icestream.stream(files, device="cpu", decoders=1, batch_events=10)
print(len(next(iter(stream))), len(list(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())))
"""


def test_a_cell_is_run_again_interrupted_and_continued_as_one_does_in_a_notebook(
    notebook: Notebook, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    write_events(tmp_path / "files/one.parquet", make_events([number % 5 for number in range(60)], first=0))
    notebook.run(f"import os, time, icestream\nfrom pathlib import Path\nfiles = {str(tmp_path / 'files')!r}")
    assert notebook.run(CELL) == notebook.run(CELL) == "10 1", "the first stream ended when its name was given away"
    looping = notebook.start("for batch in stream:\n    print('batch', flush=True)\n    time.sleep(600)")
    notebook.await_text("batch")
    notebook.interrupt()
    assert notebook.end_of(looping)[1] == "KeyboardInterrupt"
    assert notebook.run("print(sum(len(batch) for batch in stream))") == "40", "all but the two that were handed out"
    folder = Path(notebook.run("print(stream.run_dir)"))
    notebook.shut_down()
    deadline_s = time.monotonic() + WAIT_S
    while folder.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not folder.exists()
