"""Names of local copies of remote files."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import PurePosixPath

from common.plan import SourceFile
from common.redact import without_secrets, without_tokens


def name_of(source: SourceFile) -> str:
    """Name of the file's copy in the cache. A digest makes it unique, and no remote name can leave the directory.

    A URL with another token gives the same name; another size or checksum gives another one.
    """
    identity = json.dumps([without_tokens(source.url), source.size_bytes, source.checksum])
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    remote_name = PurePosixPath(without_secrets(source.url)).name
    return f"{digest}-{re.sub(r'[^A-Za-z0-9._-]', '_', remote_name)[-80:].lstrip('.')}"
