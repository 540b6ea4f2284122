"""Pictures of docs/images, from a real run in a real terminal and a real browser: `make screenshots` (three minutes).

Needs Chromium (Debian: `apt-get install chromium`). The run is that of docs/tutorial/1-first-run.md.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from fcntl import ioctl
from io import StringIO
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
ICESTREAM = (sys.executable, "-m", "icestream")
COLUMNS, ROWS = 104, 40
SIMULATE = ("--preset", "bench", "--events")
SHOWN = "train/(m_loss|muon_nll|kl$)"  # tags in the picture of TensorBoard
TENSORBOARD_WAIT_S = 60.0
BUDGETS_S = (20, 40, 80, 160)
"""Seconds of the browser's clock, which runs ahead of a busy machine's."""
_CURSOR = re.compile(r"(?:\r|\x1b\[\d*[ABCDGJKH]|\x1b\[\?\d+[hl])+")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def live_views(written: str) -> list[str]:
    """Every state of the live view in a terminal's output, with its colours: boxes that are redrawn in place."""
    parts = _CURSOR.split(written.replace("\r\n", "\n"))
    return [part.strip("\n") for part in parts if "╭" in part and "╯" in part]


def terminal_output(command: Sequence[str], folder: Path) -> str:
    """Return what a command writes to a terminal of COLUMNS × ROWS. Raises RuntimeError if it fails."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"})
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux' end of a terminal
            break
        written += piece
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{written.decode(errors='replace')}")
    return written.decode()


def write_terminal_picture(written: str, path: Path, title: str) -> None:
    """Write coloured text as an SVG picture of a terminal."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(written))
    path.write_text(_FONT.sub("", console.export_svg(title=title)))  # nothing is loaded from elsewhere


def is_drawn(picture: Image.Image) -> bool:
    """True if the middle of a picture of a page has more than its light background: TensorBoard's cards fill late."""
    width, height = picture.size
    middle = picture.convert("L").crop((width // 4, height // 5, width * 3 // 4, height * 4 // 5))
    return sum(middle.histogram()[:200]) > 0.01 * middle.width * middle.height


def page_picture(url: str, width: int, height: int, browser: str, budget_s: int) -> Image.Image:
    """Picture of a page as the browser shows it after that time of its own clock."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        options = ["--headless=new", "--hide-scrollbars", f"--virtual-time-budget={1000 * budget_s}"]
        options += ["--disable-3d-apis", f"--user-data-dir={folder}/user"]  # TensorBoard draws as SVG then
        command = [browser, *sandbox, *options, f"--window-size={width},{height}", f"--screenshot={shot}", url]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return Image.open(shot).convert("RGB")


def write_page_picture(url: str, path: Path, width: int, height: int, browser: str) -> None:
    """Write a PNG of a page. Raises RuntimeError if it stays blank."""
    for budget_s in BUDGETS_S:
        picture = page_picture(url, width, height, browser, budget_s)
        if is_drawn(picture):
            picture.quantize(128).save(path, "PNG", optimize=True)
            return
    raise RuntimeError(f"{url}: nothing is drawn")


def write_tensorboard_picture(folder: Path, path: Path, browser: str) -> None:
    """Write a PNG of TensorBoard with the runs of a folder."""
    log = folder / "tensorboard.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder / "runs"), "--port", "0"]
        server = subprocess.Popen([*command, "--host", "127.0.0.1"], stdout=output, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + TENSORBOARD_WAIT_S
            while not (found := re.search(r"http://[\d.:]+/", log.read_text())):
                if time.monotonic() > until or server.poll() is not None:
                    raise RuntimeError(f"TensorBoard did not start:\n{log.read_text()}")
                time.sleep(0.2)
            write_page_picture(f"{found[0]}?darkMode=false&tagFilter={SHOWN}#timeseries", path, 1400, 900, browser)
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    """Simulate, train, evaluate, and write the pictures."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("Error: make screenshots needs Chromium (Debian: apt-get install chromium)")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)

        def call(*arguments: str) -> None:
            subprocess.run([*ICESTREAM, *arguments], cwd=folder, check=True)

        call("simulate", "demo", *SIMULATE, "40000", "--files", "4", "--seed", "1")
        call("simulate", "held-out", *SIMULATE, "10000", "--files", "2", "--seed", "2")
        run = ("run", "-i", "demo", "--model", "likelihood", "--epochs", "8", "--set", "stream.batch_events=256")
        run += ("--set", "trainer.likelihood.schedule_steps=1248")
        written = terminal_output([*ICESTREAM, *run, "--run-dir", "runs/first"], folder)
        training = [view for view in live_views(written) if "training on" in view]
        write_terminal_picture(training[len(training) * 3 // 5], IMAGES / "run.svg", "icestream run")
        call("evaluate", "runs/first", "-i", "held-out", "--simulated", "bench")
        page = (folder / "runs/first/evaluation/report.html").as_uri()
        write_page_picture(page, IMAGES / "report.png", 1200, 1500, browser)
        write_tensorboard_picture(folder, IMAGES / "tensorboard.png", browser)


if __name__ == "__main__":
    main()
