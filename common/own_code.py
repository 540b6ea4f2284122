"""Code of the user's own, named as `package.module:NAME`: check of the name, search and import of the module."""

from __future__ import annotations

import ast
import difflib
import os
import re
import symtable
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.machinery import SOURCE_SUFFIXES, PathFinder
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from common.errors import BadInputError, IcestreamError
from common.paths import require_private

OWN_SECTION = "own"
OWN_PATH_VARIABLE = "_ICESTREAM_OWN_PATH"
"""Folder in which children search for the user's code last: that of a script which is elsewhere."""
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_BIND_UNSEEN = frozenset({"globals", "vars", "locals", "exec", "eval", "setattr", "sys.modules"})
"""Names in a module's source with which it may bind names that can't be read from it."""


def is_own(name: str) -> bool:
    """True for `package.module:NAME`."""
    return bool(_NAME.fullmatch(name))


def search_path() -> list[str]:
    """Folders with modules: PYTHONPATH and installed packages, and, last, the current folder.

    Last, so that a file there that is called like a module of Python or of a package is never imported in its place.
    """
    here = os.fspath(Path.cwd())
    told = [folder for folder in os.environ.get(OWN_PATH_VARIABLE, "").split(os.pathsep) if folder]
    return [*(folder for folder in sys.path if folder not in ("", here, *told)), here, *told]


def folder_of(name: str) -> str:
    """Return the folder from which this process imported the module of ``name``; empty if it did not."""
    spec = getattr(sys.modules.get(name.partition(":")[0].partition(".")[0]), "__spec__", None)
    if spec is None or spec.origin is None:
        return ""
    return os.fspath(Path(spec.origin).absolute().parents[1 if spec.submodule_search_locations else 0])


def require_module(name: str, key: str = "trainer.model") -> None:
    """Raise BadInputError if the module of ``name`` is not to be found, or lacks the name, or if others can change it
    in the current folder; none of its code is run. ``key``: the setting that names it."""
    if not is_own(name):
        raise BadInputError(f"{key} = {name!r}: expected package.module:NAME, with names of Python")
    module, _, attribute = name.partition(":")
    if module in sys.modules:
        return
    top, *below = module.split(".")
    # All finders are asked: a package that was installed with `pip install -e` has its own.
    specs = (finder.find_spec(top, search_path()) for finder in sys.meta_path)
    spec = next((spec for spec in specs if spec is not None), None)
    if spec is None:
        raise BadInputError(
            f"{key} = {name!r}: there is no module {top!r} in the current folder ({Path.cwd()}), in PYTHONPATH"
            " or among the installed packages: go to its folder, or set PYTHONPATH"
        )
    for part in below:
        if not spec.submodule_search_locations:
            raise BadInputError(f"{key} = {name!r}: {spec.origin} is no package")
        folders = list(spec.submodule_search_locations)
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            raise BadInputError(f"{key} = {name!r}: there is no module {part!r} in {', '.join(folders)}")
    if spec.origin is not None and Path(spec.origin).is_relative_to(Path.cwd()):
        require_private(Path(spec.origin), "the code in the current folder,")
    if spec.origin is not None and spec.origin.endswith(tuple(SOURCE_SUFFIXES)):
        _require_name(name, spec.origin, attribute)


def _require_name(name: str, file: str, attribute: str) -> None:
    """Raise BadInputError if the source surely gives its module no such name, or is no Python."""
    try:
        source = decode_source(Path(file).read_bytes())
        nodes = list(ast.walk(ast.parse(source, file)))
        names = set(_bound(symtable.symtable(source, file, "exec")))
    except (SyntaxError, ValueError) as error:
        raise BadInputError(f"{name} can't be imported: {described(error)}") from error
    except OSError:
        return  # the import says why
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute | ast.alias)}
    if attribute not in names and not used & {"*", *_BIND_UNSEEN} and "__getattr__" not in names:
        raise _no_name(name, file, names)


def _bound(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that a module binds, also by `global` in a function."""
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if (symbol.is_assigned() or symbol.is_imported()) and (is_module or symbol.is_declared_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _bound(child)


def _no_name(name: str, file: str | None, names: Iterable[str]) -> BadInputError:
    """Error about a module without the name."""
    attribute = name.partition(":")[2]
    near = difflib.get_close_matches(attribute, sorted(names), n=1)
    near = near or [known for known in names if known.lower() == attribute.lower()]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return BadInputError(f"{name}: {file} has no {attribute!r}{hint}")


def import_own(name: str, key: str = "trainer.model") -> Any:
    """Object of that name, which the setting ``key`` has. Raises BadInputError, in one line, for an error in its code
    too."""
    require_module(name, key)
    module, _, attribute = name.partition(":")
    sys.path[:] = search_path()
    try:
        found = import_module(module)
    except IcestreamError:
        raise
    except Exception as error:
        raise BadInputError(f"{name} can't be imported: {described(error)}") from error
    try:
        return getattr(found, attribute)
    except AttributeError:
        raise _no_name(name, found.__file__, vars(found)) from None


def described(error: Exception) -> str:
    """Kind, text and place of an error in the user's code, in one line."""
    return " ".join(f"{type(error).__name__}: {error}{_place(error)}".split())


def _place(error: Exception) -> str:
    """File and line at which it was raised."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    # The user's line, not the one of a library that it calls.
    own = [one for one in frames[1:] if not one.filename.startswith(("<", sysconfig.get_path("stdlib")))]
    own = [one for one in own if "site-packages" not in one.filename]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
