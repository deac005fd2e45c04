"""The observers that come with aiolock; see `aiolock.Observer` for one of your own.

Two are on by themselves, in clients that open when the program uses their library: `opentelemetry`
if there is a global tracer or meter provider; `prometheus` if `prometheus_client` was imported, and
no meter provider is there. The environment variable ``AIOLOCK_OBSERVE`` can be ``off``, or name
those that are always on (``prometheus,opentelemetry``). aiolock's pytest plugin sets it to ``off``.

Give them to `connect` for other registries and providers::

    aiolock.connect(url, observer=aiolock.observe.prometheus(registry=mine))
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from aiolock.observe._log import SLOW_HOLD, SLOW_WAIT, Log
from aiolock.observer import Observer

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

__all__ = ["log", "opentelemetry", "prometheus"]


def log(
    *,
    slow_wait: float | timedelta | None = SLOW_WAIT,
    slow_hold: float | timedelta | None = SLOW_HOLD,
) -> Observer:
    """A log of what goes wrong, to the logger ``aiolock``: on by default, with these defaults.

    It has one line for each loss, broken link and deadlock, for each wait of more than
    ``slow_wait`` seconds and each hold of more than ``slow_hold`` (None: no such lines), but not
    for elections, whose candidates wait and leaders lead for days. Give one to `connect` for other
    limits.
    """
    return Log(slow_wait=slow_wait, slow_hold=slow_hold)


def prometheus(
    *,
    registry: CollectorRegistry | None = None,
    share_label: Callable[[str], str] | None = None,
) -> Observer:
    """Metrics for Prometheus, of the extra ``prometheus``. One observer for each process is enough.

    ``registry`` is where they are registered, once; the default registry, if None. With
    ``share_label``, the waits and holds of shares have metrics of their own, ``aiolock_share_…``:
    it gets the share of a request, and returns the label ``share``. There may be many shares, so
    let it return few values, such as the plan of a tenant: all but the first 200 are ``(other)``,
    and so are shares for which it raises.
    """
    from aiolock.observe._prometheus import Prometheus

    return Prometheus(registry, share_label=share_label)


def opentelemetry(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    share_label: Callable[[str], str] | None = None,
) -> Observer:
    """Spans and metrics for OpenTelemetry, of the extra ``opentelemetry``.

    The providers are the global ones, if None. Spans have the share of a request; metrics have it
    with ``share_label``, which returns the value for a share, as for `prometheus`.
    """
    from aiolock.observe._opentelemetry import OpenTelemetry

    return OpenTelemetry(tracer_provider, meter_provider, share_label=share_label)
