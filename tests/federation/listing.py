"""WebDAV listings as XrdHttp 5.5.3 writes them."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path
from xml.sax.saxutils import escape

HEAD = (
    '<?xml version="1.0" encoding="utf-8"?>\n'
    '<D:multistatus xmlns:D="DAV:" xmlns:ns1="http://apache.org/dav/props/" xmlns:ns0="DAV:">\n'
)


def multistatus(path: str, local: Path, depth: str) -> str:
    """The entry itself, and with depth 1 those in the directory; one answer, sizes included."""
    parts = [_entry(path, local)]
    if local.is_dir() and depth == "1":
        parts += [_entry(f"{path.rstrip('/')}/{child.name}", child) for child in sorted(local.iterdir())]
    return HEAD + "".join(parts) + "</D:multistatus>\n"


def _entry(path: str, local: Path) -> str:
    found = local.stat()
    folder = local.is_dir()
    kind = "<lp1:resourcetype><D:collection/></lp1:resourcetype>\n" if folder else ""
    return (
        '<D:response xmlns:lp1="DAV:" xmlns:lp2="http://apache.org/dav/props/" xmlns:lp3="LCGDM:">\n'
        f"<D:href>{escape(path)}</D:href>\n<D:propstat>\n<D:prop>\n"
        f"<lp1:getcontentlength>{4096 if folder else found.st_size}</lp1:getcontentlength>\n"
        f"<lp1:getlastmodified>{formatdate(found.st_mtime, usegmt=True)}</lp1:getlastmodified>\n"
        f"{kind}<lp1:iscollection>{int(folder)}</lp1:iscollection>\n"
        f"<lp1:executable>{'T' if folder else 'F'}</lp1:executable>\n"
        "</D:prop>\n<D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n</D:response>\n"
    )
