"""Who may import whom: the layers of the package, kept by reading its source."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import aiolock
import pytest_aiolock

ROOT = Path(aiolock.__file__).parent

# Each is made of locks, and knows nothing of the others.
PRIMITIVES = sorted(
    f"aiolock._locks.{path.stem}"
    for path in (ROOT / "_locks").glob("*.py")
    if path.stem
    not in {"__init__", "async_only", "acquire_context", "adoption", "finishing", "lock"}
    and path.stem
    not in {
        "passing",
        "placement",
        "group_view",
        "group_changes",
        "group_upkeep",
        "membership",
        "shard",
        "shard_part",
        "group",
        "multilock",
    }
)
# Each module of the core imports only those before it: the lower knows nothing of the higher.
CORE = [
    "aiolock._clock",
    "aiolock._futures",
    "aiolock.kinds",
    "aiolock.backoff",
    "aiolock.copying",
    "aiolock._prompt",
    "aiolock._dropped",
    "aiolock._urls",
    "aiolock._turns",
    "aiolock.text",
    "aiolock.status",
    "aiolock._rate",
    "aiolock.protocol",
    "aiolock.trees",
    "aiolock.store",
    "aiolock.errors",
    "aiolock.observer",
    "aiolock.options",
    "aiolock.validation",
    "aiolock.lease_token",
    "aiolock.naming",
    "aiolock._decorated",
    "aiolock.signatures",
    "aiolock._by_hand",
    "aiolock.entering",
    "aiolock.async_library",
    "aiolock.observe._log",
    "aiolock.observe._labels",
    "aiolock.observe._prometheus",
    "aiolock.observe._opentelemetry",
    "aiolock.observe._in_use",
    "aiolock.observe",
    "aiolock._engine",
    "aiolock._engine.timers",
    "aiolock._engine.limits",
    "aiolock._engine.shares",
    "aiolock._engine.policy",
    "aiolock._engine.diagnostics",
    "aiolock._engine.diagnostics.snapshot",
    "aiolock._engine.diagnostics.wait_graph",
    "aiolock._engine.lease_state",
    "aiolock._engine.renewals",
    "aiolock._engine.released",
    "aiolock._engine.error_factories",
    "aiolock._engine.acquisition",
    "aiolock._engine.backstop",
    "aiolock._engine.rate_queue",
    "aiolock._engine.diagnostics.events",
    "aiolock._engine.diagnostics.labels",
    "aiolock._engine.diagnostics.deadlock",
    "aiolock._engine.diagnostics.deadlock_cycles",
    "aiolock._engine.closed_store",
    "aiolock._engine.answer_deadlines",
    "aiolock._engine.releases",
    "aiolock._engine.pending_finishes",
    "aiolock._engine.timer_wheel",
    "aiolock._engine.local_handoff",
    "aiolock._engine.forgotten",
    "aiolock._engine.watchdog",
    "aiolock._engine.closing",
    "aiolock._engine.waiters",
    "aiolock._engine.diagnostics.deadlock_search",
    "aiolock._engine.diagnostics.slow_monitor",
    "aiolock._engine.scope",
    "aiolock._engine.detaching",
    "aiolock._engine.lease",
    "aiolock._engine.diagnostics.deadlock_watch",
    "aiolock._engine.late",
    "aiolock._engine.time_limit",
    "aiolock._engine.not_acquired",
    "aiolock._engine.acquirer",
    "aiolock._engine.tokens",
    "aiolock._engine.engine",
    "aiolock._engine.adopting",
    "aiolock._locks",
    "aiolock._locks.async_only",
    "aiolock._locks.acquire_context",
    "aiolock._locks.lock",
    "aiolock._locks.finishing",
    "aiolock._locks.adoption",
    "aiolock._locks.passing",
    "aiolock._locks.placement",
    "aiolock._locks.group_view",
    "aiolock._locks.group_changes",
    "aiolock._locks.group_upkeep",
    "aiolock._locks.membership",
    "aiolock._locks.shard",
    "aiolock._locks.shard_part",
    "aiolock._locks.group",
    "aiolock._locks.multilock",
    *PRIMITIVES,
    "aiolock._target",
    "aiolock._lifecycle",
    "aiolock._client",
    "aiolock._connect",
    "aiolock._own_client",
    "aiolock",
]
STORE = {
    *("aiolock._clock", "aiolock._futures", "aiolock.backoff", "aiolock.copying"),
    *("aiolock.kinds", "aiolock._prompt", "aiolock._turns", "aiolock._urls"),
    *("aiolock.text", "aiolock.status", "aiolock._rate", "aiolock.protocol"),
    *("aiolock.trees", "aiolock.store", "aiolock.errors"),
}
# What authors of wrappers need as well.
WRAPPERS = [
    "aiolock.options",
    "aiolock.validation",
    "aiolock.naming",
    "aiolock.signatures",
    "aiolock.entering",
    "aiolock.async_library",
]
MACHINE = "aiolock.stores.machine"
# The parts of the state machine; the lower knows nothing of the higher.
PARTS_OF_MACHINE = [
    "aiolock.stores._shares",
    "aiolock.stores._sessions",
    "aiolock.stores._holders",
    "aiolock.stores._delays",
    "aiolock.stores._bucket",
    "aiolock.stores._state",
    "aiolock.stores._tokens",
    "aiolock.stores._dead_waiters",
    "aiolock.stores._view",
    "aiolock.stores._effects",
]
# What several stores have in common; the lower knows nothing of the higher.
SHARED = [
    "aiolock.stores",
    *PARTS_OF_MACHINE,
    MACHINE,
    "aiolock.stores._retry_window",
    "aiolock.stores._codec",
    "aiolock.stores._link_state",
    "aiolock.stores._member",
    "aiolock.stores._opening",
    "aiolock.stores._protocols",
    "aiolock.stores._operations",
    "aiolock.stores._outcomes",
    "aiolock.stores._races",
    "aiolock.stores._batches",
    "aiolock.stores._by_name",
    "aiolock.stores._document",
    "aiolock.stores._worker",
    "aiolock.stores.authors",
]
# The same locks for threads, above all of the core.
SYNC = [
    "aiolock.sync._greenlets",
    "aiolock.sync._portal",
    "aiolock.sync._thread",
    "aiolock.sync.transactions",
    "aiolock.sync._body",
    "aiolock.sync._lease",
    "aiolock.sync._locks",
    "aiolock.sync._adoption",
    "aiolock.sync._meeting",
    "aiolock.sync._rate_limit",
    "aiolock.sync._jobs",
    "aiolock.sync._group",
    "aiolock.sync._client",
    "aiolock.sync._own_client",
    "aiolock.sync",
]
DRIVERS = {"redis", "hiredis", "fakeredis"}
BESIDE = (
    *("aiolock.stores", "aiolock.cli", "aiolock.testing", "aiolock.page", "aiolock.integrations"),
)
# What integrations have in common; the lower knows nothing of the higher.
WEB = [
    "aiolock.integrations._names",
    "aiolock.integrations._waiting",
    "aiolock.integrations._leases",
    "aiolock.integrations._kept",
    "aiolock.integrations._rates",
    "aiolock.integrations._problems",
    "aiolock.integrations._openapi",
    "aiolock.integrations._asgi",
    "aiolock.integrations._exchange",
    "aiolock.integrations._functions",
]
TASKS = ["aiolock.integrations._handing", "aiolock.integrations._tasks"]
# What decorators are made of, as those of the client are.
DECORATORS = {"aiolock.options", "aiolock.validation", "aiolock.naming"}
# Each framework's module, and whatever else of ours it builds on.
FRAMEWORKS = {
    "starlette": set[str](),
    "fastapi": {"aiolock.integrations.starlette", "aiolock.integrations._parameters"},
    "aiohttp": {"aiolock.integrations._handling"},
    "litestar": {"aiolock.integrations._operations"},
    "quart": set[str](),
    "django": {"aiolock.sync", "aiolock.sync.transactions", "aiolock.cli.main"},
}
# The parts of a framework's package; the lower knows nothing of the higher.
DJANGO = [
    "aiolock.integrations.django._clients",
    "aiolock.integrations.django._lifespan",
    "aiolock.integrations.django._transactions",
    "aiolock.integrations.django._views",
    "aiolock.integrations.django._rates",
    "aiolock.integrations.django._idempotency",
    "aiolock.integrations.django",
    "aiolock.integrations.django._checks",
    "aiolock.integrations.django.apps",
    "aiolock.integrations.django.management",
    "aiolock.integrations.django.management.commands",
    "aiolock.integrations.django.management.commands.aiolock",
]
# A part of one of these, which knows its framework, too.
PARTS = {"_parameters": "fastapi", "_handling": "aiohttp", "_operations": "litestar"}
TASK_FRAMEWORKS = {"arq", "saq", "taskiq", "celery", "apscheduler", "faststream", "procrastinate"}
# These import only what is public elsewhere: what they need, users who write wrappers need as well.
OUTSIDE = [
    "aiolock.integrations",
    "aiolock.sync",
    "aiolock.page",
    "aiolock.cli",
    "aiolock.observe",
    "pytest_aiolock",
]


def modules(root: Path) -> dict[str, Path]:
    """Every module of a package, by its name."""
    found = dict[str, Path]()
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules(ROOT)
PLUGIN = modules(Path(pytest_aiolock.__file__).parent)


def _parsed(source: str) -> ast.Module:
    # A collection in the middle of it can make CPython 3.11 lose count (SystemError).
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


def imports(module: str) -> set[str]:
    """The modules that a module imports, wherever in it, but for type checkers alone."""
    return _imported(module, _run_time(_parsed(MODULES[module].read_text("utf-8"))))


def _imported(module: str, nodes: Iterable[ast.AST]) -> set[str]:
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            base = node.module or ""
            # `from package import name` imports package.name where that is a module.
            found |= {
                f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names
            }
    return found


def _run_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            children: list[ast.AST] = [*child.orelse]
        else:
            children = [child]
        for each in children:
            yield each
            yield from _run_time(each)


def ours(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    return {name for name in imports(module) if name.partition(".")[0] == "aiolock"}


def test_modules_of_the_package_each_have_a_layer() -> None:
    """A new module is given its place here, and one that is gone is taken out."""
    beside = {name for name in MODULES if name.startswith(BESIDE) or name == "aiolock.__main__"}
    assert MODULES.keys() - beside == {*CORE, *SYNC}


@pytest.mark.parametrize("module", CORE)
def test_core_modules_import_only_modules_below(module: str) -> None:
    """A module of the core imports only modules of the core that are below it."""
    late = {"aiolock.page", "aiolock.sync"} if module == "aiolock" else set[str]()  # when asked for
    beside = set(PRIMITIVES) if module in PRIMITIVES else set[str]()
    assert ours(module) - late <= set(CORE[: CORE.index(module)]) - beside


@pytest.mark.parametrize("module", SYNC)
def test_sync_modules_import_only_modules_below(module: str) -> None:
    """What threads use imports only what is below it, and all of the core is."""
    assert ours(module) <= {*CORE, *SYNC[: SYNC.index(module)]}


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("aiolock.stores")])
def test_store_modules_import_only_the_protocol_and_their_own(module: str) -> None:
    """A store imports the protocol, its machine, the errors, its own modules; no other store."""
    own = ".".join(module.split(".")[:3])
    if module == "aiolock.stores.quorum._memory":
        own = "aiolock.stores"  # its servers are those of the memory store
    below = SHARED[: SHARED.index(module)] if module in SHARED else SHARED
    others = {name for name in ours(module) if module in SHARED or not name.startswith(own)}
    assert others <= STORE | set(below)


def test_redis_stores_without_cluster_import_no_cluster_modules() -> None:
    """Neither the pipeline nor what is above it knows of slots and redirects."""
    folder = "aiolock.stores.redis.cluster"
    cluster = {module for module in MODULES if module.startswith(folder)}
    assert {f"{folder}.{name}" for name in ("_slots", "_redirects", "_node")} <= cluster
    stores = ("_store", "_sentinel_store", "_replicated", "_member")
    found, todo = set[str](), {f"aiolock.stores.redis.{name}" for name in stores}
    while todo:
        found |= todo
        todo = {each for module in todo for each in ours(module)} - found
    assert "aiolock.stores.redis._pipeline" in found
    assert not found & cluster


def test_machine_modules_import_only_the_protocol_and_pure_modules() -> None:
    """The protocol's state machine has no clock, no event loop and no I/O."""
    low = {"aiolock.protocol", "aiolock.status", "aiolock._rate", "aiolock.trees"}
    machine = [*PARTS_OF_MACHINE, MACHINE]
    each = set[str]().union(*map(imports, machine))
    assert {name for name in each if name.startswith("aiolock")} <= low | {*PARTS_OF_MACHINE}
    beside = {name for name in each if not name.startswith("aiolock")}
    pure = ("__future__", "bisect", "collections", "collections.abc", "dataclasses", "math")
    assert beside == {*pure, "typing"}


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("aiolock.testing")])
def test_testing_modules_import_no_store_and_no_core(module: str) -> None:
    """What store authors test with knows no store, and nothing of the core."""
    own = "aiolock.testing"
    of_leases = {"aiolock._dropped"} if module == own else set[str]()  # for their users' tests
    assert {name for name in ours(module) if not name.startswith(own)} <= STORE | of_leases


@pytest.mark.parametrize("module", ["aiolock._locks", "aiolock._engine"])
def test_locks_and_engine_import_only_layers_below_and_no_store(module: str) -> None:
    """What users hold may know the engine, which knows nothing of that; neither knows a store."""
    below_all = ["aiolock.observer", "aiolock._dropped", "aiolock.lease_token", *WRAPPERS, *STORE]
    layers = [
        "aiolock._connect",
        "aiolock._client",
        "aiolock._locks",
        "aiolock._engine",
        *below_all,
    ]
    below = tuple(layers[layers.index(module) :])
    for name in MODULES:
        if name.startswith(module):
            assert all(other.startswith(below) for other in ours(name)), name


@pytest.mark.parametrize("module", [m for m in MODULES if ".cli" in m or m.endswith("__main__")])
def test_cli_modules_import_only_public_modules(module: str) -> None:
    """The commands use aiolock as anybody would."""
    assert not [name for name in ours(module) if "._" in name]


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("aiolock.page")])
def test_page_modules_import_only_the_public_package(module: str) -> None:
    """So does the page."""
    assert {name for name in ours(module) if not name.startswith("aiolock.page")} <= {"aiolock"}


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("aiolock.integrations.")])
def test_integration_modules_import_only_their_framework_and_below(module: str) -> None:
    """What they have in common imports no framework, and each framework's module no other."""
    name = "django" if module in DJANGO else module.rpartition(".")[2]
    below = {"aiolock", *DECORATORS}
    if module in DJANGO:
        below |= set(DJANGO[: DJANGO.index(module)])
    below |= set(WEB[: WEB.index(module)] if module in WEB else WEB) | FRAMEWORKS.get(name, set())
    if module in TASKS or name in TASK_FRAMEWORKS:
        below = {"aiolock", *DECORATORS, *({*TASKS} - {module})}
        below |= {"aiolock.sync"} if name == "celery" else set()
    assert ours(module) <= below
    roots = {imported.partition(".")[0] for imported in imports(module)}
    assert roots & TASK_FRAMEWORKS <= {name}
    allowed = {PARTS.get(name, name)} | {
        other.rpartition(".")[2] for other in FRAMEWORKS.get(name, set())
    }
    assert roots & FRAMEWORKS.keys() <= (allowed & FRAMEWORKS.keys())


@pytest.mark.parametrize("package", OUTSIDE)
def test_outside_packages_import_no_private_names(package: str) -> None:
    """No private module, and no private name, of another package; not even for type checkers."""
    found = list[str]()
    for module, path in (MODULES | PLUGIN).items():
        if f"{module}.".startswith(f"{package}."):
            for name in _names(path.read_text("utf-8")):
                if "._" in name and not name.startswith(f"{package}."):
                    found.append(f"{module} imports {name}")
    assert not found


def _names(source: str) -> set[str]:
    """All that is imported from aiolock: modules, and names of modules."""
    names = set[str]()
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith(("aiolock.", "pytest_aiolock."))}


def test_imported_names_include_private_names_of_public_modules() -> None:
    """The test above sees those as well."""
    source = "def f():\n    from aiolock.store import _hidden\n    import aiolock._client\n"
    assert _names(source) == {"aiolock.store._hidden", "aiolock._client"}


def test_drivers_are_imported_only_by_their_store() -> None:
    """Only the store that needs it imports a driver."""
    for module in MODULES:
        roots = {name.partition(".")[0] for name in imports(module)}
        if not module.startswith(("aiolock.stores.redis", "aiolock.cli")):
            assert not roots & DRIVERS, module
        if not module.startswith("aiolock.stores.postgres"):
            assert "psycopg" not in roots, module
        if not module.startswith("aiolock.stores.etcd"):
            assert "hpack" not in roots, module


def test_importlib_is_used_only_by_the_target_module() -> None:
    """Stores are loaded by name, in one module, so that nobody loads a driver in vain."""
    assert [m for m in CORE if "importlib" in imports(m)] == ["aiolock._target"]


def test_run_time_imports_include_inner_ones_and_exclude_type_checking() -> None:
    """These tests see an import inside a function, and do not see one for type checkers."""
    tree = _parsed(
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\ndef f():\n    from c import d\n"
    )
    seen = [ast.unparse(n) for n in _run_time(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert seen == ["import b", "from c import d"]
