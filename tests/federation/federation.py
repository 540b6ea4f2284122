"""Ties discovery, director, issuer and data servers together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from .certs import Certs
from .dataserver import DataServer
from .director import Director
from .issuer import Issuer
from .loop import LoopThread
from .namespaces import NAMESPACES
from .proxy import FaultProxy
from .server import Server
from .xrootd import XRootD, owner

Kind = Literal["light", "xrootd"]
TOKEN_VARIABLES = ("BEARER_TOKEN", "BEARER_TOKEN_FILE", "TOKEN", "_CONDOR_CREDS", "XDG_RUNTIME_DIR")


class Federation:
    """``with Federation(tmp_path) as federation: ...``; ``kind="xrootd"`` puts real XRootD behind fault proxies.

    ``origin`` and ``caches`` take faults, alike for both kinds; ``log`` has a dict for every request, in order.
    ``proxied=False`` hands out XRootD's own URLs: no faults, no log of it, but its bare speed.
    """

    def __init__(self, workdir: Path, caches: int, kind: Kind = "light", proxied: bool = True) -> None:
        self.workdir = workdir
        self.root = self.workdir / "data"
        self.kind = kind
        self.num_caches, self.proxied = caches, proxied
        self.log: list[dict[str, Any]] = []
        self.certs = Certs(self.workdir / "certs")
        self.issuer = Issuer()
        self.director = Director(self.log, self._sources, self.issuer)
        self.origin: Server
        self.caches: list[Server] = []
        self.processes: list[XRootD] = []
        """XRootD only: the origin's, then the caches'."""
        self._loop: LoopThread | None = None
        for namespace in NAMESPACES:
            self._folder(self.root / namespace.prefix.strip("/"))

    # -- life

    def __enter__(self) -> Federation:
        self._loop = LoopThread()
        context = self.certs.server_context()
        try:
            self.director.start(self._loop, context)
            servers = self._light() if self.kind == "light" else self._xrootd()
            self.origin, self.caches = servers[0], servers[1:]
            for server in servers:
                server.start(self._loop, context)
        except BaseException:
            self.stop()
            raise
        return self

    def _light(self) -> list[Server]:
        names = ["origin", *(f"cache{i}" for i in range(self.num_caches))]
        shared = (self.log, self.root, self.issuer)
        return [DataServer(name, *shared, writable=name == "origin") for name in names]

    def _xrootd(self) -> list[Server]:
        if owner() is not None:
            self.workdir.chmod(0o755)
            (self.workdir / "xrootd").mkdir(mode=0o755, exist_ok=True)
        for i in range(self.num_caches + 1):
            name = f"cache{i - 1}" if i else "origin"
            origin = self.processes[0] if i else None
            place = self.workdir / "xrootd" / name
            process = XRootD(name, place, self.root, self.certs, self.issuer, origin)
            self.processes.append(process)
            process.start()
        return [FaultProxy(process.name, self.log, process) for process in self.processes]

    def stop(self) -> None:
        if self._loop is None:
            return
        for server in [self.director, *([self.origin] if hasattr(self, "origin") else []), *self.caches]:
            server.stop()
        for process in self.processes:
            process.stop()
        self._loop.stop()
        self._loop = None

    def __exit__(self, *_: object) -> None:
        self.stop()

    def heal(self) -> None:
        """No faults, every server running."""
        for server in [self.director, self.origin, *self.caches]:
            server.heal()

    # -- for clients

    @property
    def discovery_host(self) -> str:
        return self.director.url.removeprefix("https://")

    @property
    def discovery(self) -> str:
        return f"pelican://{self.discovery_host}/"

    def url(self, path: str) -> str:
        return f"pelican://{self.discovery_host}{path}"

    def environment(self) -> dict[str, str]:
        """For a process that trusts the federation, and sees no token of this machine."""
        kept = {name: value for name, value in os.environ.items() if name not in TOKEN_VARIABLES}
        home = self.workdir / "home"
        home.mkdir(exist_ok=True)
        return {**kept, **self.certs.client_env(), "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}

    def requests(self) -> dict[str, int]:
        """How many since the last call, as {"cache0 GET": 3}; clears the log."""
        counts = Counter(f"{entry['server']} {entry['method']}" for entry in self.log)
        self.log.clear()
        return dict(counts)

    # -- data

    def put(self, path: str, content: bytes) -> Path:
        """A file at the origin. A Pfc cache that has the path already keeps what it has, as a real one does."""
        local = self.root / path.lstrip("/")
        self._folder(local.parent)
        local.unlink(missing_ok=True)
        local.write_bytes(content)
        self._give(local)
        return local

    def put_many(self, directory: str, names: Iterable[str], content: bytes) -> None:
        """Equal files, hard links of one: 100,000 take seconds. At most some 60,000 a call."""
        folder = self.root / directory.strip("/")
        self._folder(folder)
        first: Path | None = None
        for name in names:
            if first is None:
                first = self.put(f"{directory}/{name}", content)
            else:
                (folder / name).hardlink_to(first)

    def make_directory(self, path: str) -> None:
        self._folder(self.root / path.strip("/"))

    def _folder(self, folder: Path) -> None:
        missing = [parent for parent in [folder, *folder.parents] if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            made.chmod(0o755)
            if made.is_relative_to(self.root):
                self._give(made)

    def _give(self, path: Path) -> None:
        """To the user that XRootD runs as."""
        if self.kind == "xrootd" and (ids := owner()) is not None:
            os.chown(path, *ids)

    def _sources(self, from_origin: bool) -> list[str]:
        if self.processes and not self.proxied:
            return [process.url for process in (self.processes[:1] if from_origin else self.processes[1:])]
        return [server.url for server in ([self.origin] if from_origin else self.caches)]
