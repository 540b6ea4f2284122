"""Pictures of the pages: what the terminal shows is found in what is written to it."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.live import Live
from rich.panel import Panel

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "take_screenshots.py"


def test_each_state_of_a_live_view_is_found_among_other_lines(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=40)
    console.print("before")
    with Live(console=console, auto_refresh=False) as live:
        for step in ("step 1", "step 2"):
            live.update(Panel(f"[bold red]{step}[/]", width=30), refresh=True)
    console.print("after")

    views = script["live_views"](output.getvalue().replace("\n", "\r\n"))
    steps = [re.findall(r"step \d", view) for view in views]
    assert steps[0] == ["step 1"]
    assert steps[-1] == ["step 2"]
    assert not any("before" in view or "after" in view for view in views)

    picture = tmp_path / "run.svg"
    script["write_terminal_picture"](views[0], picture, "title")
    text = picture.read_text()
    assert "step&#160;1" in text
    assert "╭" in text
    assert re.findall(r"https?://(?!www\.w3\.org|www\.textualize\.io)", text) == []
    ET.fromstring(text)


def test_a_page_without_content_is_not_taken_for_a_picture() -> None:
    is_drawn = runpy.run_path(str(SCRIPT))["is_drawn"]
    blank = Image.new("RGB", (1400, 900), "white")
    blank.paste((245, 246, 247), (0, 0, 1400, 100))
    assert not is_drawn(blank)
    drawn = Image.open(SCRIPT.parent / "images" / "report.png")
    assert is_drawn(drawn)
