"""One flag of the old training script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Takes = Literal["switch", "int", "float", "text", "texts"]


@dataclass(frozen=True)
class OldFlag:
    """Flag of cr_muons' `training/train.py` with its counterpart."""

    name: str
    takes: Takes
    keys: tuple[str, ...] = ()
    """Keys of icestream that get its value."""
    note: str = ""
    """Difference; without a counterpart the reason."""
    values: Mapping[Any, Any] = field(default_factory=dict)
    """New values of old ones, if they differ. None: nothing to set."""
    option: str = ""
    """Option, command or file of icestream that takes its place, as Markdown."""
    alias_of: str = ""

    @property
    def counterpart(self) -> str:
        """Counterpart as Markdown; empty: there is none."""
        return ", ".join([*([self.option] if self.option else []), *(f"`{key}`" for key in self.keys)])


def switch(name: str, *keys: str, **rest: Any) -> OldFlag:
    """Flag without a value: it sets the keys to true."""
    return OldFlag(name, "switch", keys, **rest)


def whole(name: str, *keys: str, zero_is_off: bool = False, **rest: Any) -> OldFlag:
    """Flag with a whole number. ``zero_is_off``: 0 sets nothing."""
    return OldFlag(name, "int", keys, values={0: None} if zero_is_off else {}, **rest)


def number(name: str, *keys: str, **rest: Any) -> OldFlag:
    """Flag with a number."""
    return OldFlag(name, "float", keys, **rest)


def text(name: str, *keys: str, **rest: Any) -> OldFlag:
    """Flag with a text."""
    return OldFlag(name, "text", keys, **rest)
