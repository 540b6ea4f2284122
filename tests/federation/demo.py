"""A federation to try icestream on: demo files, a token in a file, and the lines to type."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

from .federation import Federation

PUBLIC = "/public/sim/testing"
PROTECTED = "/icecube/wipac/sim/testing"
EMPTY_RANGE = "0002000-0002999"
TOKEN_LIFETIME_S = 7 * 86_400
CHAOS = (("status", 500), ("short", 20_000), ("reset", 20_000), ("corrupt", 5_000), ("stall", 10_000))


def fill(federation: Federation, events: int = 40_000, files: int = 6) -> None:
    """Two ranges of muon files and an empty one, alike in the public and in the protected namespace."""
    made = federation.workdir / "simulated"
    write_dataset(made, preset("bench"), DatasetPlan(events, files, seed=1))
    for namespace in (PUBLIC, PROTECTED):
        for file in sorted(made.glob("*/*.parquet")):
            federation.put(f"{namespace}/{file.parent.name}/{file.name}", file.read_bytes())
        federation.make_directory(f"{namespace}/{EMPTY_RANGE}")
    shutil.rmtree(made)


def write_token(federation: Federation) -> Path:
    """A token for every range of the protected namespace, for its owner only."""
    path = federation.workdir / "token"
    token = federation.issuer.mint("storage.read:/sim/testing", ttl=TOKEN_LIFETIME_S)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token + "\n")
    return path


def add_chaos(federation: Federation, chance: float, seed: int = 0) -> None:
    """Each request to a cache meets each kind of fault with probability ``chance``."""
    for number, cache in enumerate(federation.caches):
        for place, (kind, value) in enumerate(CHAOS):
            cache.fault(kind, value, chance=chance, seed=seed + 100 * number + place)


def instructions(federation: Federation, token: Path) -> str:
    server = "real XRootD, an origin and its disk caches" if federation.kind == "xrootd" else "the light data servers"
    bundle = federation.certs.bundle_pem
    return f"""\
A federation runs at {federation.discovery} (behind it: {server}). In another terminal:

  export SSL_CERT_FILE={bundle}

One range, public:
  icestream run -i '{federation.url(PUBLIC)}/0000000-0000999/*.parquet' --run-dir runs/federation

Three ranges in sequence, of which the last is empty:
  icestream run -i '{federation.url(PUBLIC)}/{{range}}/*.parquet' --ranges 0:2000:1000 --run-dir runs/ranges

The same behind a token:
  export BEARER_TOKEN_FILE={token}
  icestream run -i '{federation.url(PROTECTED)}/{{range}}/*.parquet' --ranges 0:2000:1000 --run-dir runs/protected

Ctrl-C ends it.
"""
