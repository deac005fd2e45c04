"""The checks of ``manage.py check``: of the settings, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from aiolock import connect
from aiolock.integrations.django import _clients, _idempotency

_EXAMPLE: Final = f'{_clients.SETTING} = {{"target": "redis://localhost:6379/0"}}'
_CHECK: Final = "Whether the server can be used is told by: manage.py aiolock check"


def check_settings(**_: object) -> Sequence[checks.CheckMessage]:
    """Errors for settings by which no client can be made; no I/O."""
    return [*_client(), *_keys()]


def check_deployment(**_: object) -> Sequence[checks.CheckMessage]:
    """Warnings about settings that are for development: ``manage.py check --deploy``."""
    target = (_clients.setting(_clients.SETTING) or {}).get("target")
    if isinstance(target, str) and target.startswith("memory:"):
        text = f"the target of settings.{_clients.SETTING} is the memory of each process"
        hint = "Other processes do not see these locks: use the URL of a server."
        return [checks.Warning(text, hint=hint, id="aiolock.W001")]
    return []


def _client() -> list[checks.CheckMessage]:
    name = f"settings.{_clients.SETTING}"
    try:
        options = _clients.options()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), hint=f"For example: {_EXAMPLE}", id="aiolock.E001")]
    try:
        connect(options.pop("target"), **options)
    except (ValueError, TypeError, ImportError) as error:
        return [checks.Error(f"{name}: {error}", hint=_CHECK, id="aiolock.E002")]
    return []


def _keys() -> list[checks.CheckMessage]:
    used = f"{_idempotency.IdempotencyMiddleware.__name__}"
    if not any(path.endswith(f".{used}") for path in settings.MIDDLEWARE):
        return []
    try:
        _idempotency.Keys.of_settings()
    except ImproperlyConfigured as error:
        hint = f"{used} is among settings.MIDDLEWARE, and needs it."
        return [checks.Error(str(error), hint=hint, id="aiolock.E003")]
    return []
