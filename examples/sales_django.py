"""A stock in a database, in Django: 20 requests at once sell 20. A project in one file.

    export AIOLOCK_URL=redis://localhost
    python examples/sales_django.py

The transaction of `ATOMIC_REQUESTS` begins after the lock is acquired, and is committed before it
is released. The requests come from Django's test client, in threads as under a WSGI server.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import django
from django.conf import settings
from django.db import connection, connections, models
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from aiolock.integrations.django import locked

DATABASE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": Path(tempfile.mkdtemp(), "shop.db"),
    "ATOMIC_REQUESTS": True,
}
settings.configure(
    AIOLOCK={"target": os.environ.get("AIOLOCK_URL", "redis://localhost"), "ttl": 10},
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": DATABASE},
    INSTALLED_APPS=["aiolock.integrations.django"],
    ROOT_URLCONF=__name__,
)
django.setup()


class Item(models.Model):
    """How many of an item were sold."""

    name: models.TextField[str, str] = models.TextField(primary_key=True)
    sold: models.IntegerField[int, int] = models.IntegerField(default=0)

    class Meta:
        """It belongs to no application of the settings."""

        app_label = "shop"

    def __str__(self) -> str:
        return self.name


@locked("item:{name}", timeout=5)
def sell(_: HttpRequest, name: str) -> HttpResponse:
    """Sell one: without the lock, two requests would read the same number."""
    item = Item.objects.get(name=name)
    item.sold += 1
    item.save()
    return HttpResponse(item.sold)


urlpatterns = [path("items/<str:name>/sales", sell)]


def ask(_: int) -> int:
    """Make one request, in a thread of its own."""
    try:
        return Client().post("/items/pen/sales").status_code
    finally:
        connections.close_all()


def main() -> None:
    """Make 20 requests at once."""
    with connection.schema_editor() as editor:
        editor.create_model(Item)
    Item.objects.create(name="pen")
    with ThreadPoolExecutor(20) as threads:
        replies = list(threads.map(ask, range(20)))
    print(replies.count(200), "requests have sold", Item.objects.get(name="pen").sold)


if __name__ == "__main__":
    main()
