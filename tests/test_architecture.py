"""What may import what, read from the sources."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PURE = (
    "common/bounds.py",
    "common/errors.py",
    "common/held_out.py",
    "workloads/muons/geometry.py",
    "common/input_errors.py",
    "common/measurements.py",
    "common/messages/codec.py",
    "common/messages/decoder.py",
    "common/messages/trainer.py",
    "common/messages/values.py",
    "common/metrics.py",
    "common/files/parquet/columns.py",
    "common/conservation.py",
    "common/fetchers_together.py",
    "common/plan_hash.py",
    "common/planned.py",
    "common/ragged.py",
    "common/redact.py",
    "common/run_words.py",
    "common/schema.py",
    "common/secret_variables.py",
    "common/streams.py",
    "common/unit_arrays.py",
    "common/rank_variables.py",
    "common/status.py",
    "common/transport/endpoint.py",
    "common/transport/events.py",
    "common/transport/wire.py",
    "services/decoder/decode.py",
    "common/files/gather.py",
    "services/decoder/length_buckets.py",
    "services/decoder/microbatch.py",
    "common/files/parquet/batches.py",
    "common/files/checks.py",
    "common/files/parquet/lists.py",
    "common/files/reader.py",
    "common/files/rows.py",
    "workloads/base/report/beside.py",
    "workloads/base/report/html.py",
    "workloads/base/report/numbers.py",
    "workloads/muons/evaluation/plots/events.py",
    "workloads/muons/evaluation/plots/resample.py",
    "workloads/muons/evaluation/settings.py",
    "workloads/base/report/text.py",
    "workloads/base/report/metric.py",
    "workloads/base/report/verdict.py",
    "workloads/base/report/words.py",
    "services/fetcher/inventory/claims.py",
    "services/fetcher/commit_requests.py",
    "services/fetcher/dispatcher/actions.py",
    "services/fetcher/dispatcher/decoder_pool.py",
    "services/fetcher/dispatcher/dispatcher.py",
    "services/fetcher/dispatcher/grants.py",
    "services/fetcher/dispatcher/history.py",
    "services/fetcher/dispatcher/invariants.py",
    "services/fetcher/dispatcher/trainers.py",
    "services/fetcher/dispatcher/unit_failures.py",
    "services/fetcher/dispatcher/unit_table.py",
    "services/fetcher/hops.py",
    "icestream/commands/plan/mixing.py",
    "services/fetcher/staging/next_use.py",
    "common/files/parquet/footer_claims.py",
    "common/mistakes.py",
    "common/plan.py",
    "icestream/commands/plan/plan_summary.py",
    "services/fetcher/inventory/ranges.py",
    "services/fetcher/inventory/stored_footer.py",
    "services/fetcher/scaling.py",
    "services/fetcher/staging/stage_ahead.py",
    "services/supervisor/environment.py",
    "services/supervisor/nodes/node_watch.py",
    "services/supervisor/nodes/note.py",
    "services/supervisor/restart.py",
    "icestream/commands/ray/driver.py",
    "icestream/commands/slurm/script.py",
    "icestream/commands/outliers/merge.py",
    "icestream/commands/outliers/schema.py",
    "services/outputs/manifest.py",
    "common/pelican/director.py",
    "common/pelican/errors.py",
    "common/pelican/glob_walk.py",
    "common/pelican/limits.py",
    "common/pelican/url.py",
    "common/pelican/webdav.py",
    "workloads/direction/metrics/angles.py",
    "workloads/direction/metrics/calibration.py",
    "workloads/direction/metrics/definitions.py",
    "workloads/direction/metrics/evaluate.py",
    "workloads/direction/metrics/predicted.py",
    "workloads/direction/metrics/resolution.py",
    "workloads/direction/metrics/topology.py",
    "workloads/direction/metrics/von_mises_fisher.py",
    "workloads/direction/evaluation/words.py",
    "workloads/base/evaluation/options.py",
    "workloads/muons/metrics/bootstrap.py",
    "workloads/muons/metrics/bundles.py",
    "workloads/muons/metrics/calibration.py",
    "workloads/muons/metrics/comparison.py",
    "workloads/muons/metrics/conditional.py",
    "workloads/muons/metrics/counts.py",
    "workloads/muons/metrics/decoherence.py",
    "workloads/muons/metrics/definitions.py",
    "workloads/muons/metrics/evaluate.py",
    "workloads/muons/metrics/design.py",
    "workloads/muons/metrics/event_features.py",
    "workloads/muons/metrics/frechet.py",
    "workloads/muons/metrics/intra_event.py",
    "workloads/muons/metrics/kernel_distance.py",
    "workloads/muons/metrics/metrics.py",
    "workloads/muons/metrics/prepare.py",
    "workloads/muons/metrics/sample.py",
    "workloads/muons/metrics/settings.py",
    "workloads/muons/metrics/splits.py",
    "workloads/muons/metrics/two_sample/auc.py",
    "workloads/muons/metrics/wasserstein.py",
    "common/tensorboard_names.py",
    "services/trainer/stream/ahead.py",
    "services/trainer/stream/one_inventory.py",
    "services/trainer/stream/sharded_position.py",
    "workloads/base/batch.py",
    "services/trainer/ranks/agreement.py",
    "services/trainer/checkpoints/changed_settings.py",
    "services/trainer/checkpoints/commit_policy.py",
    "services/trainer/speed/device_environment.py",
    "services/trainer/health/health.py",
    "services/config/health.py",
    "services/trainer/telemetry/hyperparameters.py",
    "services/trainer/stream/shares.py",
    "services/trainer/stream/microbatch_copy.py",
    "workloads/base/noise.py",
    "workloads/base/random_streams.py",
    "workloads/direction/purposes.py",
    "workloads/muons/purposes.py",
    "services/trainer/speed/pace.py",
    "services/trainer/stream/position.py",
    "services/trainer/progress.py",
    "services/trainer/ranks/rank_group.py",
    "services/trainer/ranks/rank_place.py",
    "workloads/base/schedule.py",
    "workloads/base/segments.py",
    "services/trainer/stream/waits.py",
    "workloads/muons/models/wgan/adaptive.py",
    "workloads/base/schedule.py",
    "services/trainer/telemetry/window.py",
)
OUTSIDE_WORLD = ("socket", "time", "threading", "subprocess", "sqlite3", "zmq", "signal", "asyncio", "multiprocessing")

ROOMS = ("common", "workloads", "services", "icestream")
"""From the ground up: a file imports from its own room and from those before it."""
SERVICES = ("fetcher", "decoder", "trainer", "supervisor", "outputs")


def sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every imported module, with the imported name behind a module that it is taken from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_the_sources_are_found() -> None:
    assert len(sources()) > 50
    assert "common.errors.BadInputError" in set(imports(ROOT / "common/plan.py"))


def test_every_package_is_in_a_room() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages == set(ROOMS)


def test_imports_go_down_only() -> None:
    for path in sources():
        above = ROOMS[ROOMS.index(path.relative_to(ROOT).parts[0]) + 1 :]
        found = [module for module in imports(path) if module.split(".")[0] in above]
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_never_imports_another(service: str) -> None:
    paths = list(ROOT.glob(f"services/{service}/**/*.py"))
    assert paths
    for path in paths:
        for other in SERVICES:
            if other != service:
                found = [module for module in imports(path) if is_in(module, f"services.{other}")]
                assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_the_configuration_imports_no_service() -> None:
    for path in ROOT.glob("services/config/*.py"):
        found = [module for module in imports(path) for service in SERVICES if is_in(module, f"services.{service}")]
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def workloads() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("workloads/*/__init__.py"))


@pytest.mark.parametrize("workload", workloads())
def test_a_workload_imports_what_workloads_share_and_itself(workload: str) -> None:
    for path in ROOT.glob(f"workloads/{workload}/**/*.py"):
        for other in set(workloads()) - {workload, "base"}:
            found = [module for module in imports(path) if is_in(module, f"workloads.{other}")]
            assert not found, f"{path.relative_to(ROOT)} imports {found}"


@pytest.mark.parametrize(("model", "other"), [("wgan", "likelihood"), ("likelihood", "wgan")])
def test_a_model_imports_nothing_of_another(model: str, other: str) -> None:
    paths = list(ROOT.glob(f"workloads/muons/models/{model}/*.py"))
    assert paths
    for path in paths:
        found = [module for module in imports(path) if is_in(module, f"workloads.muons.models.{other}")]
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_common_and_configuration_do_not_import_torch() -> None:
    for path in sources():
        name = path.relative_to(ROOT)
        if name.parts[0] == "common" or name.parts[:2] == ("services", "config") or name.name == "config.py":
            found = [module for module in imports(path) if is_in(module, "torch")]
            assert not found, f"{name} imports {found}"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_at_start(path: Path) -> set[str]:
    """What a module imports as it is loaded: neither in a function nor for type checkers alone."""
    found: set[str] = set()
    statements = list(ast.parse(path.read_text()).body)
    while statements:
        match statements.pop():
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {f"{module}.{alias.name}" for alias in names}
            case ast.If(test=test, body=body, orelse=orelse):
                statements += orelse if "TYPE_CHECKING" in ast.unparse(test) else [*body, *orelse]
            case ast.Try(body=body, handlers=handlers):
                statements += [*body, *(one for handler in handlers for one in handler.body)]
    return found


GRAPH = {module_of(path): imports_at_start(path) for path in sources()}


def foreign_imports(module: str) -> dict[str, str]:
    """Packages from elsewhere that are imported with a module, by it or by one of ours, and by which."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for name in GRAPH[one]:
            ours = name if name in GRAPH else name.rpartition(".")[0]
            if ours in GRAPH:
                waiting.append(ours)
            else:
                found.setdefault(name.split(".")[0], one)
    return found


def test_the_graph_of_imports_reaches_through_modules() -> None:
    assert foreign_imports("services.fetcher.service")["sqlite3"] == "services.fetcher.inventory.ledger"
    assert "torch" in foreign_imports("services.trainer.service")


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_knows_no_outside_world_itself_or_through_another(name: str) -> None:
    found = foreign_imports(module_of(ROOT / name))
    assert not found.keys() & set(OUTSIDE_WORLD), {what: by for what, by in found.items() if what in OUTSIDE_WORLD}


TORCH_FREE = (
    "common",
    "icestream.cli",
    "workloads.registry",
    "services.config",
    "services.decoder",
    "services.fetcher",
)


@pytest.mark.parametrize(
    "package", [*TORCH_FREE, "services.outputs", "services.supervisor", "services.trainer.counting"]
)
def test_torch_is_not_imported_there_or_through_another(package: str) -> None:
    modules = [module for module in GRAPH if is_in(module, package)]
    assert modules
    for module in modules:
        assert "torch" not in (found := foreign_imports(module)), f"{module}, through {found['torch']}"


def test_no_pickle_is_read() -> None:
    for path in sources():
        tree = ast.parse(path.read_text())
        name = path.relative_to(ROOT)
        modules = [module for module in imports(path) if module.split(".")[0] in ("pickle", "cloudpickle", "dill")]
        assert modules in ([], ["pickle"]), name
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pickle":
                assert node.attr == "UnpicklingError", f"{name}: pickle.{node.attr}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords)


def test_no_child_imports_from_the_working_directory() -> None:
    """Each command of a module is made in one place, which says where the module may come from."""
    place = ROOT / "common" / "python_command.py"
    for path in sources():
        words = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert path == place or "-m" not in words, f"{path.relative_to(ROOT)}: use python_command()"


def modules_after(code: str) -> set[str]:
    """What is imported in a fresh interpreter that ran ``code``."""
    script = f"{code}\nimport sys\nprint('MODULES', *sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("MODULES ")[2].split())


@pytest.mark.process
def test_a_decoder_and_a_fetcher_start_without_torch() -> None:
    assert "torch" not in modules_after("import services.decoder.service")
    assert "torch" not in modules_after("import services.fetcher.service, icestream.commands.fetcher")


@pytest.mark.process
def test_a_decoder_imports_nothing_that_it_starts_slower_with() -> None:
    modules = modules_after("import icestream.commands.decoder, services.decoder.service")
    assert "pyarrow" in modules
    assert not modules & {"torch", "scipy", "h5py", "tensorboard", "matplotlib", "fsspec", "rich", "prometheus_client"}


@pytest.mark.process
def test_a_decoder_knows_its_number_of_threads_before_numpy_or_arrow_is_imported() -> None:
    modules = modules_after("import icestream.commands.decoder, services.config.root, icestream.cli")
    assert "services.decoder.cores" in modules
    assert not modules & {"numpy", "pyarrow"}


@pytest.mark.process
def test_the_help_text_needs_no_heavy_import() -> None:
    code = "from icestream.cli import cli\ntry:\n    cli(['--help'], prog_name='icestream')\nexcept SystemExit: pass"
    assert not {"torch", "pyarrow", "pydantic", "numpy", "zmq"} & modules_after(code)


@pytest.mark.process
def test_a_trainer_that_only_counts_starts_without_torch() -> None:
    modules = modules_after("import icestream.commands.trainer, services.trainer.counting.service, common.summary")
    assert "services.trainer.stream.feed" in modules
    assert "torch" not in modules


@pytest.mark.process
def test_the_python_package_is_imported_at_once_and_its_functions_when_used() -> None:
    code = (
        "import icestream\nassert icestream.__version__[0].isdigit() and set(icestream.__all__) <= set(dir(icestream))"
    )
    assert not {"torch", "numpy", "pyarrow", "pydantic", "click"} & modules_after(code)
    assert "torch" not in modules_after("from icestream import BadInputError, evaluate, load, simulate")
