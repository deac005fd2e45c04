"""Locks in views of Django, synchronous and asynchronous; in transactions; in ``manage.py``.

::

    # settings.py
    AIOLOCK = {"target": "redis://localhost:6379/0", "ttl": 10}
    INSTALLED_APPS = [..., "aiolock.integrations.django"]  # manage.py aiolock, manage.py check


    # views.py
    @locked("order:{order}", timeout=2)
    def pay(request: HttpRequest, order: str, lease: aiolock.sync.Lease) -> HttpResponse: ...
"""

from aiolock.integrations.django._clients import client, close, sync_client
from aiolock.integrations.django._idempotency import IdempotencyMiddleware
from aiolock.integrations.django._lifespan import with_locks
from aiolock.integrations.django._rates import rate_limited
from aiolock.integrations.django._transactions import hold_until_commit
from aiolock.integrations.django._views import locked
from aiolock.sync.transactions import ignore_transactions

__all__ = [
    "IdempotencyMiddleware",
    "client",
    "close",
    "hold_until_commit",
    "ignore_transactions",
    "locked",
    "rate_limited",
    "sync_client",
    "with_locks",
]
