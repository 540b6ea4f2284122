"""New files in the inputs of a run that goes on: they are not read, which is said once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from common.errors import IcestreamError
from common.files.inputs import named_inputs
from common.plan import SourceFile
from common.redact import shown
from services.fetcher.inventory.ledger import Ledger
from services.fetcher.inventory.ranges import InputRange

logger = logging.getLogger(__name__)


class GrownInputs:
    """Comparison of local inputs with the lists that were frozen when the run began: call turn() often.

    Remote inputs are not compared: to list them again takes as long as the first time, and loads their server. The
    listing has a daemon thread: a folder on a slow file server must not delay the end of a run.
    """

    def __init__(
        self, ranges: Sequence[InputRange], ledger: Ledger, list_files: Callable[[InputRange], list[SourceFile]]
    ) -> None:
        """``ranges``: those with a list; ``list_files``: called in the thread, see listed()."""
        self._ledger = ledger
        self._list_files = list_files
        self._found: list[tuple[InputRange, list[str]]] = []
        self._thread: threading.Thread | None = threading.Thread(target=self._list, args=(ranges,), daemon=True)
        self._thread.start()

    @property
    def is_listing(self) -> bool:
        """True while the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def turn(self) -> None:
        """Compare once the inputs are listed, and say it if there are more files."""
        if self._thread is None or self.is_listing:
            return
        self._thread = None
        new = [url for one, urls in self._found for url in self._ledger.unknown(one, urls)]
        self._found = []
        if new:
            logger.warning(
                "new files in the inputs: %d, the first is %s; they are not read, since this run's list of files was"
                " made when it began: a new run directory reads them",
                len(new),
                shown(new[0]),
            )

    def _list(self, ranges: Sequence[InputRange]) -> None:
        for one in ranges:
            local = tuple(text for text in named_inputs(one.inputs) if "://" not in text.removeprefix("file://"))
            if not local:
                continue
            try:
                files = self._list_files(replace(one, inputs=local))
            except IcestreamError as error:  # what is gone is told by what stages it
                logger.info("the inputs are not compared with the run's list of files: %s", shown(str(error)))
                continue
            self._found.append((one, [file.url for file in files]))
