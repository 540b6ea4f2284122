"""Images for the test: a stand-in of the base image where no registry is reached, and wheels of this machine."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

BASE = "python:3.11-slim"
_CA = Path("/etc/ssl/certs/ca-certificates.crt")
_PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"


@contextmanager
def base_image() -> Iterator[None]:
    """The image that ours build on; a stand-in where it can't be pulled, removed at the end."""
    commands = (["docker", "image", "inspect", BASE], ["docker", "pull", "--quiet", BASE])
    is_made = not any(subprocess.run(command, capture_output=True).returncode == 0 for command in commands)
    try:
        if is_made:
            _make_base(BASE)
        yield
    finally:
        if is_made:
            subprocess.run(["docker", "image", "rm", "--no-prune", BASE], capture_output=True)


def _make_base(image: str) -> None:
    """Debian 12 with its Python 3.11, made by mmdebstrap.

    It trusts what this machine trusts, since a mirror of the package index may have a CA of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        no_docs = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", *no_docs, "bookworm", str(root)],
            check=True,
        )
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
        shutil.copyfile(_CA, root / str(_CA).lstrip("/"))
        changes = ["--change", 'CMD ["python3"]', "--change", f"ENV LANG=C.UTF-8 PIP_CERT={_CA}"]
        archive = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(
            ["docker", "import", *changes, "-", image], stdin=archive.stdout, check=True, capture_output=True
        )
        if archive.wait() != 0:
            raise RuntimeError(f"tar ended with {archive.returncode}")


@contextmanager
def package_index() -> Iterator[dict[str, str]]:
    """Build arguments with this machine's pip settings; its folders of wheels are served on 127.0.0.1 meanwhile."""
    with ExitStack() as servers:
        arguments = {}
        for name in ("index-url", "extra-index-url", "find-links"):
            places = _pip_setting(name)
            served = [_served(place, servers) for place in places]
            if served:
                arguments["PIP_" + name.upper().replace("-", "_")] = " ".join(served)
        yield arguments


def _pip_setting(name: str) -> list[str]:
    if (variable := os.environ.get("PIP_" + name.upper().replace("-", "_"))) is not None:
        return variable.split()
    found = subprocess.run(["pip", "config", "get", f"global.{name}"], capture_output=True, text=True)
    return found.stdout.split() if found.returncode == 0 else []


def _served(place: str, servers: ExitStack) -> str:
    """Address of a folder that is served until ``servers`` closes; any other place as it is."""
    is_index = place.startswith("file://")
    if "://" in place and not is_index:
        return place
    folder = Path(urlsplit(place).path)
    # An index refers to its files by paths beside it: the folder above is served.
    handler = functools.partial(_Quiet, directory=str(folder.parent if is_index else folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    servers.callback(thread.join)
    servers.callback(server.server_close)
    servers.callback(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}/{folder.name + '/' if is_index else ''}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
