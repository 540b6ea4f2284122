"""Library of hadronic interactions on air, made once by a model of the package chromo, and draws from it.

A shower draws whole interactions from the library, at a near energy, with all energies scaled to the projectile's: two
hundred times as fast as the model itself. P projectiles, S secondaries, F fragments of nuclei.
"""

from __future__ import annotations

import operator
import os
import tempfile
import warnings
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import BadInputError
from common.paths import cache_folder, changed_by_others, make_for_owner
from common.slow_progress import SlowProgress
from workloads.base.dataset import in_processes
from workloads.muons.showers.particles import FOLLOWED, Float64, Int64

MODELS = {"sibyll23d": "Sibyll23d", "sibyll23dstar": "Sibyll23dStarMixed", "sibyll23e": "Sibyll23e"}
"""Interaction models by name, and their classes in chromo: those that need no files beside the package. Others
are called and recorded otherwise (`_secondaries`). SIBYLL 2.3c has no cross section of kaons at 10 TeV there, 2.1 no
lambdas."""

FORMAT = 3
"""Version of the files; a library of another one is made anew."""

PROJECTILES = (2212, 2112, 211, -211, 321, -321, 130, 3122, -2212, -2112)
EVENTS = (
    (2.5, (3600, 3600, 1400, 1400, 400, 400, 400, 250, 150, 150)),
    (6.0, (2000, 800, 700, 700, 200, 200, 200, 100, 60, 60)),
)
"""Interactions of each projectile in a cell, from an lg(E / GeV) on. Most muons are of the first interactions of
nucleons, so that these have most: two libraries differ by less than 0.3 % in the mean number of muons."""

LG_MIN, LG_MAX, LG_STEP = 2.5, 8.0, 0.02
"""Cells of lg(E / GeV)."""
REACH = 2.5
"""Cells to each side of a projectile's energy from which its interaction is drawn: 0.05 decades."""
KEPT_ABOVE_GEV = 280.0
"""Secondaries below are left out of the library."""
LEAST_THRESHOLD_GEV = KEPT_ABOVE_GEV * 10 ** (REACH * LG_STEP)
"""Lowest threshold for which the library has all secondaries, however they are scaled."""

_CODE_STEP = 2.2e-4
"""Step of -ln of a share of the energy, which is kept as a whole number of 16 bits."""

_NITROGEN_SHARE = 0.78
_NUCLEAR_LG, _NUCLEAR_DRAWS = (3.0, 5.0, 7.0), 600
_MASSES = range(2, 57)
_SIGMA_LG = np.arange(2.0, 8.6, 0.2)
_SIGMA_OF = (2212, 211, 321)
_SIGMA_ROW = np.array([0, 0, 1, 1, 2, 2, 2, 0, 0, 0])
_GCM2_MB = 14.55 * 1660.54
"""Interaction length in g/cm² times cross section in millibarn, for the mean mass number of air."""


_ROWS = dict(zip(PROJECTILES, range(len(PROJECTILES)), strict=True)) | {310: 6, -3122: 9}
_ROWS |= {sign * hyperon: 8 - sign for hyperon in (3222, 3112, 3322, 3312) for sign in (-1, 1)}
PROJECTILE_ROWS = np.array([_ROWS.get(pid, -1) for pid in FOLLOWED.tolist()])
"""Row of PROJECTILES that stands for each of FOLLOWED, -1 for muons. K0L stands for K0S, the lambda for hyperons, the
antineutron for antihyperons."""


@dataclass(frozen=True)
class LibraryName:
    """The ingredients of a library, which its name tells."""

    model: str = "sibyll23d"
    seed: int = 1

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise BadInputError(f"unknown interaction model {self.model!r}: use one of {', '.join(MODELS)}")

    @property
    def provenance(self) -> dict[str, Any]:
        """Return the entries of a file's footer. Raises BadInputError without chromo."""
        try:
            chromo = version("chromo")
        except PackageNotFoundError:
            raise BadInputError(
                "real showers need the package chromo: pip install 'icestream[showers]', or use another --preset"
            ) from None
        return {"interactions": self.model, "chromo": chromo, "library": self.seed, "library_format": FORMAT}

    def folder(self) -> Path:
        """Return the library's folder, made now if it is missing: minutes, with progress. Raises BadInputError."""
        parent = cache_folder(os.environ) / "showers"
        folder = parent / f"{self.model}-{self.provenance['chromo']}-{self.seed}-v{FORMAT}"
        make_for_owner(parent)
        if reason := changed_by_others(parent):
            raise BadInputError(reason)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=parent) as made:
                make_library(Path(made) / "whole", self)
                try:
                    (Path(made) / "whole").rename(folder)
                except OSError:
                    if not folder.is_dir():  # else another process was faster
                        raise
        return folder


def make_library(folder: Path, name: LibraryName, part: float = 1.0) -> None:
    """Write all arrays of a library, of this part of the interactions, to a new folder."""
    cells = np.ndindex(len(PROJECTILES), len(EVENTS))
    jobs = [partial(_interactions, name, row, band, part) for row, band in cells]
    jobs += [partial(_cross_sections, name), partial(_nuclei, name.seed, part)]
    results: list[dict[str, np.ndarray]] = []
    with SlowProgress(f"interactions of {name.model}, kept for later: parts", len(jobs)) as progress:
        # A process for each job: the state of a model in Fortran would hang on those before.
        cores = len(os.sched_getaffinity(0))
        for result in in_processes(operator.call, jobs, cores, jobs_of_process=1):
            results.append(result())
            progress.advance(1)
    *pieces, sigma, nuclei = results
    joined = {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}
    folder.mkdir()
    for key, values in (joined | sigma | nuclei).items():
        np.save(folder / f"{key}.npy", values)


def _generator(model: str, seed: int) -> Any:
    """Return a model of chromo. Only once in a process, whose output is lost then: banners of the model, warnings."""
    from chromo import models
    from chromo.kinematics import FixedTarget

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    return getattr(models, MODELS[model])(FixedTarget(1e6, "proton", "N14"), seed=seed)


def _interactions(name: LibraryName, row: int, band: int, part: float) -> dict[str, np.ndarray]:
    """Return secondaries of interactions of one projectile, cell after cell of energy."""
    from chromo.kinematics import FixedTarget

    seeds = np.random.SeedSequence([name.seed, row, band])
    generator, rng = _generator(name.model, int(seeds.generate_state(1)[0])), np.random.default_rng(seeds)
    num = max(round(part * EVENTS[band][1][row]), 1)
    columns: list[list[np.ndarray]] = [[], [], [], [], []]
    cells = _cells(band)
    for lg in cells:
        on_nitrogen = rng.binomial(num, _NITROGEN_SHARE)
        for target, events in (("N14", on_nitrogen), ("O16", num - on_nitrogen)):
            if not events:
                continue
            generator.kinematics = FixedTarget(10**lg, PROJECTILES[row], target)
            for column, values in zip(columns, _secondaries(generator, events, 10**lg), strict=True):
                column.append(values)
    arrays = dict(zip(("kind", "share", "px_gev", "py_gev", "sizes"), map(np.concatenate, columns), strict=True))
    return arrays | {"per_cell": np.full(len(cells), num, np.int32)}


def _cells(band: int) -> Float64:
    """Return lg(E / GeV) of the cells of a band."""
    lg = np.arange(LG_MIN, LG_MAX + LG_STEP / 2, LG_STEP)
    ends = (*(first for first, _ in EVENTS), np.inf)
    return lg[(lg > ends[band] - LG_STEP / 2) & (lg < ends[band + 1] - LG_STEP / 2)]


def _secondaries(generator: Any, events: int, energy_gev: float) -> tuple[np.ndarray, ...]:
    """Return kind, coded share of the energy, and transverse momentum of all secondaries, and the size of each event.

    They are read from SIBYLL's own record: chromo's copy of an event takes three times as long as the event.
    """
    record = generator._lib.hepevt
    momenta, codes = list[np.ndarray](), list[np.ndarray]()
    library, kinematics = generator._lib, generator.kinematics
    projectile = library.isib_pdg2pid(int(kinematics.p1))
    for _ in range(events):
        # As chromo does, but for nucleons: it would make a proton of a neutron (version 0.11).
        library.sibyll(projectile, kinematics.p2.A, kinematics.ecm)
        library.decsib()
        library.sibhep()
        num = int(record.nhep)
        momenta.append(record.phep[:4, :num].copy())
        codes.append(record.idhep[:num] * (record.isthep[:num] == 1))
    px_gev, py_gev, pz_gev, record_gev = np.concatenate(momenta, 1)
    code = np.concatenate(codes)
    from_gev = kinematics._gamma_cm * record_gev + kinematics._betagamma_cm * pz_gev
    kept = (from_gev > KEPT_ABOVE_GEV) & np.isin(code, FOLLOWED)
    share = np.clip(-np.log(from_gev[kept] / energy_gev) / _CODE_STEP, 0, 65_535)
    event = np.repeat(np.arange(events), [len(each) for each in codes])
    return (
        np.searchsorted(FOLLOWED, code[kept]).astype(np.int8),
        np.rint(share).astype(np.uint16),
        px_gev[kept].astype(np.float16),
        py_gev[kept].astype(np.float16),
        np.bincount(event[kept], minlength=events).astype(np.int32),
    )


def _cross_sections(name: LibraryName) -> dict[str, np.ndarray]:
    """Return cross sections for production on air in millibarn, by projectile and energy."""
    from chromo.kinematics import FixedTarget
    from chromo.util import CompositeTarget

    air = CompositeTarget([("N14", _NITROGEN_SHARE), ("O16", 1 - _NITROGEN_SHARE)])
    generator = _generator(name.model, name.seed)
    sigma_mb = np.empty((len(_SIGMA_OF), len(_SIGMA_LG)))
    for row, column in np.ndindex(sigma_mb.shape):
        generator.kinematics = FixedTarget(10 ** _SIGMA_LG[column], _SIGMA_OF[row], air)
        sigma_mb[row, column] = generator.cross_section().prod
    return {"sigma_mb": sigma_mb}


def _nuclei(seed: int, part: float) -> dict[str, np.ndarray]:
    """Return numbers of wounded nucleons of nuclei, and mass numbers of their fragments.

    By SIBYLL's Glauber calculation and its abrasion and ablation, for all models. What chromo makes of an event's
    nucleons is not used: it keeps one interaction of them only (version 0.11).
    """
    from chromo.kinematics import FixedTarget

    generator = _generator("sibyll23d", seed)
    library, wounded, num_fragments, fragments = generator._lib, [], [], []
    draws = max(round(part * _NUCLEAR_DRAWS), 100)
    for mass in _MASSES:
        for lg in _NUCLEAR_LG:
            generator.kinematics = FixedTarget(10**lg, (mass, mass // 2), "N14")
            for _ in range(draws):
                library.sibnuc(mass, 14, generator.kinematics.ecm)
                codes = np.array(library.s_plnuc.lla[: int(library.s_plnuc.npa)])
                pieces = codes[codes > 1000] - 1000
                wounded.append(mass - pieces.sum())
                num_fragments.append(len(pieces))
                fragments.append(pieces.astype(np.int16))
    shape = (len(_MASSES), len(_NUCLEAR_LG), draws)
    return {
        "wounded": np.array(wounded).reshape(shape),
        "num_fragments": np.array(num_fragments).reshape(shape),
        "fragments": np.concatenate(fragments),
    }


class Library:
    """Draws of whole interactions. The arrays stay in files, which processes share in memory."""

    def __init__(self, folder: Path) -> None:
        arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
        self._kind, self._share, self._px_gev, self._py_gev = (
            arrays[key] for key in ("kind", "share", "px_gev", "py_gev")
        )
        self._decoded = np.exp(-_CODE_STEP * np.arange(65_536))
        self._sizes, self._starts = _sizes_and_starts(arrays["sizes"])
        self._per_cell, self._firsts = (
            each.reshape(len(PROJECTILES), -1) for each in _sizes_and_starts(arrays["per_cell"])
        )
        self._length_gcm2 = _GCM2_MB / arrays["sigma_mb"]
        self._wounded, self._fragments = np.array(arrays["wounded"]), np.array(arrays["fragments"])
        # A nucleon of a nucleus interacts as often as a free one: superposition, exact in the mean.
        self._wounded_share = self._wounded.mean(2) / np.array(_MASSES)[:, None]
        self._num_fragments, self._fragment_starts = _sizes_and_starts(arrays["num_fragments"])

    def length_gcm2(self, row_P: Int64, lg_energy_P: Float64) -> Float64:
        """Return the mean way in air to an interaction; ``row_P`` are rows of PROJECTILES. (P,)."""
        return _interpolated(self._length_gcm2, _SIGMA_ROW[row_P], (lg_energy_P - _SIGMA_LG[0]) / 0.2)

    def nuclear_length_gcm2(self, mass_P: Int64, lg_energy_P: Float64) -> Float64:
        """Return the same for nuclei of these mass numbers and energies per nucleon. (P,)."""
        at_P = (lg_energy_P - _NUCLEAR_LG[0]) / (_NUCLEAR_LG[1] - _NUCLEAR_LG[0])
        share_P = _interpolated(self._wounded_share, mass_P - _MASSES[0], at_P)
        return share_P * self.length_gcm2(np.zeros_like(mass_P), lg_energy_P)

    def interact(
        self, row_P: Int64, energy_gev_P: Float64, rng: np.random.Generator
    ) -> tuple[Int64, Int64, Float64, Float64, Float64]:
        """Return each secondary's projectile, PDG code, energy and transverse momentum in GeV. 5 times (S,)."""
        cell_P = (np.log10(energy_gev_P) - LG_MIN) / LG_STEP + rng.uniform(-REACH, REACH, len(energy_gev_P))
        at_P = row_P, np.clip(np.rint(cell_P).astype(np.int64), 0, self._firsts.shape[1] - 1)
        event_P = self._firsts[at_P] + (rng.random(len(energy_gev_P)) * self._per_cell[at_P]).astype(np.int64)
        angle_P = rng.uniform(0, 2 * np.pi, len(energy_gev_P))
        projectile_S, index_S = ragged(self._starts[event_P], self._sizes[event_P])
        cos_S, sin_S = np.cos(angle_P)[projectile_S], np.sin(angle_P)[projectile_S]
        px_S, py_S = self._px_gev[index_S].astype(np.float64), self._py_gev[index_S].astype(np.float64)
        return (
            projectile_S,
            FOLLOWED[self._kind[index_S]],
            energy_gev_P[projectile_S] * self._decoded[self._share[index_S]],
            cos_S * px_S - sin_S * py_S,
            sin_S * px_S + cos_S * py_S,
        )

    def break_up(self, mass_P: Int64, energy_gev_P: Float64, rng: np.random.Generator) -> tuple[Int64, Int64, Int64]:
        """Return each nucleus' number of wounded nucleons, and each fragment's nucleus and mass number.

        A fragment of mass number 1 is a nucleon that flies on. (P,), (F,), (F,).
        """
        at_P = (np.log10(energy_gev_P / mass_P) - _NUCLEAR_LG[0]) / (_NUCLEAR_LG[1] - _NUCLEAR_LG[0])
        column_P = np.clip(np.rint(at_P).astype(np.int64), 0, len(_NUCLEAR_LG) - 1)
        place_P = mass_P - _MASSES[0], column_P, rng.integers(0, self._wounded.shape[2], len(mass_P))
        nucleus_F, index_F = ragged(self._fragment_starts[place_P], self._num_fragments[place_P])
        return self._wounded[place_P], nucleus_F, self._fragments[index_F].astype(np.int64)


def ragged(starts: Int64, sizes: Int64) -> tuple[Int64, Int64]:
    """Return, for each item of several runs of items, the number of its run and its index."""
    run = np.repeat(np.arange(len(sizes)), sizes)
    return run, np.arange(len(run)) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)


def _sizes_and_starts(sizes: np.ndarray) -> tuple[Int64, Int64]:
    sizes = np.array(sizes, np.int64)
    return sizes, (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape)


def _interpolated(table: Float64, row_P: Int64, at_P: Float64) -> Float64:
    """Return values of rows of a table between two of its columns. (P,)."""
    at_P = np.clip(at_P, 0, table.shape[1] - 1.0001)
    low_P = at_P.astype(np.int64)
    part_P = at_P - low_P
    between_P: Float64 = table[row_P, low_P] * (1 - part_P) + table[row_P, low_P + 1] * part_P
    return between_P


library_of = lru_cache(2)(lambda name: Library(name.folder()))
"""Library of a name, opened once in a process."""
