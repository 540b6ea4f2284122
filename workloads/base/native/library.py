"""Library of the layers in C++ (common/native); torch computes them where it can't be built."""

from __future__ import annotations

import ctypes
from pathlib import Path

from common.native.library import NativeLibrary, NativeSources

_HERE = Path(__file__).parent
LAYERS = NativeLibrary(
    NativeSources(
        "layers",
        files=(_HERE / "dense.cpp", _HERE / "particles.cpp"),
        headers=(_HERE / "rows.h",),
        functions={
            "dense_forward": "p ll p l ppp ff ppp",
            "dense_backward": "pppppp ll p l p f ppppp",
            "pullback_forward": "pppp ll p l p f pp",
            "pullback_backward": "pppppp ll p l p f pppp",
            "chain_forward": "p ll p l pp pppp l f pp ll",
            "chain_backward": "ppp lll ppp pp l f pppppp",
            "pooled_forward": "p ll p l ppp pp f pppp f f pppp",
            "pooled_backward": "ppp p ll p l ppp pp f ppp f ppp ppppppppp",
            "slope_forward": "pp ll p l ppp pp f ppp f ppp pp",
            "slope_backward": "ppp ll p l ppp pp f ppp f ppp p ppp pppp",
        },
    ),
    without="layers on the CPU: torch, slower than C++",
)


def used() -> ctypes.CDLL | None:
    """Library that computes the layers on the CPU, None: torch does."""
    return LAYERS.used


def use() -> bool:
    """Let the library compute the layers on the CPU from now on; True if it does. Builds it on first use: 3 s."""
    return LAYERS.use()


def use_torch() -> None:
    """Let torch compute the layers, as before `use`."""
    LAYERS.used = None
