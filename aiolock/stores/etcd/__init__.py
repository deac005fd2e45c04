"""Locks in etcd 3.4 and newer: the extra ``etcd``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiolock.stores.etcd._store import EtcdStore

__all__ = ["facts", "from_url"]


def from_url(url: str, prefix: str) -> EtcdStore:
    """A store in the etcd cluster at ``url``; `ValueError` says what is wrong with a URL."""
    _check_driver()
    from aiolock.stores.etcd import _settings
    from aiolock.stores.etcd._store import EtcdStore

    return EtcdStore(_settings.from_url(url), prefix)


async def facts(url: str) -> dict[str, str]:
    """The version of a server that answers, for a report; no secrets. An `OSError` if none does."""
    _check_driver()
    from aiolock.stores.etcd import _settings
    from aiolock.stores.etcd._facts import facts_of

    return await facts_of(_settings.from_url(url))


def _check_driver() -> None:
    try:
        import hpack as hpack
    except ImportError as error:
        raise ImportError("locks in etcd need hpack: pip install 'aiolock-redis[etcd]'") from error
