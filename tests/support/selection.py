"""The selection of tests: the tree or the wheel, alone or beside others, and by their stores."""

from __future__ import annotations

from pathlib import Path

import pytest

import aiolock

ON_THE_TREE = Path(aiolock.__file__).is_relative_to(Path(__file__).resolve().parents[2])
"""Whether the package is this tree's, and not the installed wheel: that is tested with less."""
STORES = ("redis", "sqlite", "postgres", "mysql", "etcd")
"""Those that are not in this process; what is about none of them is always tested."""

_NAMED = {
    **{store: store for store in STORES},
    "fakeredis": "redis",
    "cluster": "redis",
    "sentinel": "redis",
    "replicas": "redis",
    "mariadb": "mysql",
}
_FIXTURES = {
    "redis_server": "redis",
    "own_server": "redis",
    "lone_node": "redis",
    "cluster": "redis",
    "postgres_server": "postgres",
    "own_postgres": "postgres",
    "mariadb_server": "mysql",
    "own_mariadb": "mysql",
    "etcd_server": "etcd",
    "etcd_three": "etcd",
    "own_etcd": "etcd",
}


def chosen(text: str) -> set[str]:
    """The stores that are written there, with commas; `ValueError` for another one."""
    found = set(text.split(","))
    if unknown := found - set(STORES):
        raise ValueError(f"no store {', '.join(sorted(unknown))}: there are {', '.join(STORES)}")
    return found


def stores_of(item: pytest.Item) -> set[str]:
    """The stores that a test needs."""
    found = {_FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in _FIXTURES}
    names = (item.path.parent.name, item.path.stem.removeprefix("test_").partition("_")[0])
    found |= {_NAMED[name] for name in names if name in _NAMED}
    found |= {store for store in STORES if store in item.nodeid.partition("::Test")[2].lower()[:12]}
    for value in getattr(getattr(item, "callspec", None), "params", {}).values():
        named = value if isinstance(value, str) else getattr(value, "file", "").partition("/")[2]
        if (kind := named.partition("/")[0]) in _NAMED:
            found.add(_NAMED[kind])
    return found


def leave_out(config: pytest.Config, items: list[pytest.Item], stores: set[str]) -> None:
    """Leave out the tests that need another store than these; pytest says how many."""
    _leave_out(config, items, [item for item in items if stores_of(item) - stores])


def leave_out_alone(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that run alone, in a process of several; or all others, with --alone."""
    alone = [item for item in items if item.get_closest_marker("alone")]
    if config.getoption("--alone"):
        _leave_out(config, items, [item for item in items if not item.get_closest_marker("alone")])
    elif hasattr(config, "workerinput"):
        _leave_out(config, items, alone)


def _leave_out(config: pytest.Config, items: list[pytest.Item], out: list[pytest.Item]) -> None:
    if out:
        config.hook.pytest_deselected(items=out)
        left_out = set(out)
        items[:] = [item for item in items if item not in left_out]
