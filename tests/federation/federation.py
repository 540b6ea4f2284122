"""Ties discovery, director, issuer and data servers together; runs them on one event loop in a thread."""
import argparse
import asyncio
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass

from aiohttp import web

from tests.federation.certs import Certs
from tests.federation.dataserver import DataServer
from tests.federation.director import Director
from tests.federation.issuer import Issuer


@dataclass
class Namespace:
    prefix: str
    public: bool = True
    writes: bool = False
    listings: bool = True
    direct_reads: bool = True
    base_path: str = ""
    anon_status: int = 403          # what XRootD 5.5.3 answers without, with an expired, or with a wrong token


class Federation:
    def __init__(self, workdir=None, namespaces=(Namespace("/public"),), caches=3, host="localhost", ports=None,
                 origin_urls=None, cache_urls=None, origin_prefix="", data_root=None):
        self.workdir = pathlib.Path(workdir or tempfile.mkdtemp(prefix="minifed-"))
        self.root = pathlib.Path(data_root or self.workdir / "data")
        for ns in namespaces:
            (self.root / ns.prefix.strip("/")).mkdir(parents=True, exist_ok=True)
        self.namespaces = list(namespaces)
        self.certs = Certs(self.workdir / "certs", [host])
        self.issuer = Issuer()
        self.director = Director(self)
        self.origin = DataServer("origin", self.root, self, writable=True, prefix=origin_prefix)
        self.caches = [DataServer(f"cache{i}", self.root, self) for i in range(caches)]
        self.host, self.ports = host, list(ports or [])
        self._origin_urls, self._cache_urls = origin_urls, cache_urls
        self.log = []
        self.loop = None

    # -- lookup -----------------------------------------------------------
    def namespace_for(self, path):
        best = None
        for ns in self.namespaces:
            if (path == ns.prefix or path.startswith(ns.prefix.rstrip("/") + "/")) and (best is None or len(ns.prefix) > len(best.prefix)):
                best = ns
        return best

    def origin_urls(self, ns):
        return self._origin_urls or [self.origin.url]

    def cache_urls(self, ns):
        return self._cache_urls if self._cache_urls is not None else [c.url for c in self.caches]

    # -- request log --------------------------------------------------------
    def log_request(self, server, req, path):
        e = {"t": time.time(), "server": server, "method": req.method, "path": path,
             "range": req.headers.get("Range"), "depth": req.headers.get("Depth"),
             "auth": (req.headers.get("Authorization") or "")[:16], "query": req.query_string[:40], "status": None}
        self.log.append(e)
        return e

    def requests(self):
        """Requests since the last call, as {'server METHOD': n}; clears the log."""
        c = Counter(f"{e['server']} {e['method']}" for e in self.log)
        self.log.clear()
        return dict(c)

    # -- life cycle ---------------------------------------------------------
    def start(self):
        ready = threading.Event()
        self._error = None

        def run():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._start())
            except BaseException as e:  # noqa: BLE001
                self._error = e
                ready.set()
                return
            ready.set()
            self.loop.run_forever()
            self.loop.run_until_complete(self._stop())
            self.loop.close()

        self.thread = threading.Thread(target=run, name="minifed", daemon=True)
        self.thread.start()
        ready.wait()
        if self._error:
            raise self._error
        return self

    async def _start(self):
        ctx = self.certs.server_context()
        self._runners = []

        async def serve(app, path=""):
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1" if self.host == "localhost" else "0.0.0.0", self.ports.pop(0) if self.ports else 0, ssl_context=ctx)
            await site.start()
            self._runners.append(runner)
            port = site._server.sockets[0].getsockname()[1]
            return f"https://{self.host}{'' if port == 443 else f':{port}'}{path}"

        self.director_url = await serve(self.director.app)
        self.issuer.url = self.director_url + "/issuer"
        self.origin.url = await serve(self.origin.app, self.origin.prefix)
        for c in self.caches:
            c.url = await serve(c.app)

    async def _stop(self):
        me = asyncio.current_task()
        for t in asyncio.all_tasks():       # handlers asleep in an injected hang
            if t is not me:
                t.cancel()
        for r in self._runners:
            await r.cleanup()

    def stop(self):
        if self.loop:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(10)

    __enter__ = start

    def __exit__(self, *a):
        self.stop()

    # -- for clients --------------------------------------------------------
    @property
    def discovery(self):
        return "pelican://" + self.director_url.removeprefix("https://") + "/"

    def url(self, path):
        return self.discovery.rstrip("/") + path

    def env(self):
        return self.certs.client_env()

    def put(self, path, data):
        p = self.root / path.lstrip("/")
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_bytes(data)
        return p

    def heal(self):
        self.director.heal()
        self.origin.heal()
        for c in self.caches:
            c.heal()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--dir", required=True)
    ap.add_argument("--caches", type=int, default=3)
    ap.add_argument("--host", default="localhost")
    ap.add_argument("--ports", default="")
    ap.add_argument("--demo-mb", type=int, default=0)
    a = ap.parse_args(argv)
    fed = Federation(a.dir, [Namespace("/public", writes=True), Namespace("/private", public=False, writes=True)], caches=a.caches,
                     host=a.host, ports=[int(p) for p in a.ports.split(",") if p])
    if a.demo_mb:
        fed.put("/public/demo.bin", os.urandom(a.demo_mb << 20))
        fed.put("/private/demo.bin", os.urandom(a.demo_mb << 20))
    fed.start()
    info = {"discovery": fed.discovery, "root": str(fed.root), "origin": fed.origin.url, "caches": [c.url for c in fed.caches], "env": fed.env(),
            "token": fed.issuer.mint("storage.read:/ storage.create:/ storage.modify:/", ttl=86400)}
    (fed.workdir / "federation.json").write_text(json.dumps(info, indent=1))
    print(json.dumps(info), flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        fed.stop()


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
