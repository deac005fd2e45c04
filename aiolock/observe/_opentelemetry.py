"""Spans and metrics for OpenTelemetry, by its API alone: the program chooses the SDK."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from aiolock.observe._labels import (
    BUCKETS,
    FAILURES,
    PASSES,
    Key,
    PerFamily,
    ShareLabels,
    key_of,
)
from aiolock.observer import Deadlock, GaveUp, Link, LockRequest, Loss, LostBody, Observer

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, StatusCode
except ImportError as error:
    raise ImportError(
        "spans and metrics for OpenTelemetry need opentelemetry-api:"
        " pip install 'aiolock-redis[opentelemetry]'"
    ) from error

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

Attributes = dict[str, str | bool | int | float]

_NAME: Final = "aiolock.lock.name"
_KIND: Final = "aiolock.lock.kind"
_FAMILY: Final = "aiolock.lock.family"
_SHARED: Final = "aiolock.lock.shared"
_SHARE: Final = "aiolock.lock.share"
_FENCE: Final = "aiolock.fence"
_WAITED: Final = "aiolock.waited"
_OUTCOME: Final = "aiolock.outcome"
_LINK: Final = "aiolock.link"
_ERROR: Final = "error.type"

_NOTICEABLE: Final = 0.01
"""Seconds after which an acquisition gets a span though it was not queued."""
_REMEMBERED: Final = 1000
"""Ended holds that can still be linked to. The next holder of a lock comes at once."""


class OpenTelemetry(Observer):
    """A span for each wait and for each hold, linked to the hold before; and metrics."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        share_label: Callable[[str], str] | None = None,
    ) -> None:
        self._labels = ShareLabels(share_label)
        self._tracer = trace.get_tracer("aiolock", _version(), tracer_provider)
        self._count = _Instruments(metrics.get_meter("aiolock", _version(), meter_provider))
        self._families = PerFamily(_attributes)
        self._shares = PerFamily(_attributes)  # apart: however many there are, families have room
        self._waiting = set[Key]()
        self._held = dict[Key, Span]()
        self._ended: OrderedDict[Key, SpanContext] = OrderedDict()

    def _of(self, request: LockRequest, *, ends: bool) -> Attributes:
        """The attributes of its metrics; see `ShareLabels.of`."""
        share = self._labels.of(request, ends=ends)
        return self._shares.of(request, share) if share else self._families.of(request)

    def waiting(self, request: LockRequest) -> None:
        """An acquisition begins to wait."""
        self._waiting.add(key_of(request))
        self._count.waiting.add(1, self._of(request, ends=False))

    def acquired(
        self,
        request: LockRequest,
        *,
        fence: int,
        waited: float,
        handed_on_by: LockRequest | None,
    ) -> None:
        """The wait ends, and the hold begins, in the context of the acquiring task."""
        now = time.time_ns()
        family = self._of(request, ends=request.kind in PASSES)
        queued = self._waited(request, waited, "acquired", family)
        links = self._link(handed_on_by)
        if queued or waited >= _NOTICEABLE:
            self._span_of_wait(request, waited, "acquired", now, links)
        if request.kind not in PASSES:
            about = {**_about(request), _FENCE: fence, _WAITED: waited}
            self._held[key_of(request)] = self._tracer.start_span(
                f"hold {request.kind}", attributes=about, links=links, start_time=now
            )
            self._count.held.add(1, family)

    def gave_up(self, request: LockRequest, *, waited: float, why: GaveUp) -> None:
        """The wait ends without a grant."""
        self._waited(request, waited, why, self._of(request, ends=True))
        self._span_of_wait(request, waited, why, time.time_ns(), [])

    def released(
        self,
        request: LockRequest,
        *,
        fence: int,  # noqa: ARG002  # see `Observer`
        held: float,
    ) -> None:
        """The hold ends."""
        family = self._of(request, ends=True)
        span = self._holds_no_more(request, held, "released", family)
        if span is not None:
            self._end(request, span)

    def lost(
        self,
        request: LockRequest,
        *,
        fence: int,
        held: float,
        reason: Loss,
        why: str,
        body: LostBody,  # noqa: ARG002
    ) -> None:
        """The hold ends with an error."""
        family = self._of(request, ends=True)
        span = self._holds_no_more(request, held, "lost", family)
        if span is None:
            # Only the answer to its release revealed the loss: its span has ended.
            span = self._tracer.start_span(
                f"lost {request.kind}",
                self._within(request),
                attributes={**_about(request), _FENCE: fence, _OUTCOME: "lost"},
            )
        span.set_attribute(_ERROR, reason)
        span.set_status(StatusCode.ERROR, why)
        self._end(request, span)
        self._count.lost.add(1, {**family, _ERROR: reason})

    def link(self, state: Link, error: Exception | None) -> None:  # noqa: ARG002
        """The link to the store broke, or is no longer broken."""
        if state == "down":
            self._count.link_breaks.add(1)
        self._count.links_down.add(1 if state == "down" else -1)

    def deadlock(self, deadlock: Deadlock) -> None:  # noqa: ARG002
        """Count the deadlock."""
        self._count.deadlocks.add(1)

    def _waited(
        self, request: LockRequest, waited: float, outcome: str, family: Attributes
    ) -> bool:
        """End the wait in the metrics; True if it was in the queue."""
        key = key_of(request)
        attributes = {**family, _OUTCOME: outcome}
        if outcome in FAILURES:
            attributes[_ERROR] = outcome
        self._count.wait.record(waited, attributes)
        if key not in self._waiting:
            return False
        self._waiting.discard(key)
        self._count.waiting.add(-1, family)
        return True

    def _span_of_wait(
        self, request: LockRequest, waited: float, outcome: str, now: int, links: list[trace.Link]
    ) -> None:
        """The span of a wait that has ended: made now, in the task that waited."""
        about = {**_about(request), _OUTCOME: outcome}
        if outcome in FAILURES:
            about[_ERROR] = outcome
        span = self._tracer.start_span(
            f"wait_for {request.kind}",
            attributes=about,
            links=links,
            start_time=now - int(waited * 1e9),
        )
        if outcome in FAILURES:
            span.set_status(StatusCode.ERROR)
        span.end(now)

    def _holds_no_more(
        self, request: LockRequest, held: float, outcome: str, family: Attributes
    ) -> Span | None:
        """End its hold in the metrics; returns its span, unless that has ended before."""
        span = self._held.pop(key_of(request), None)
        if span is not None:
            self._count.held.add(-1, family)
            self._count.hold.record(held, {**family, _OUTCOME: outcome})
            span.set_attribute(_OUTCOME, outcome)
        return span

    def _end(self, request: LockRequest, span: Span) -> None:
        """End the span, and remember it for the next holder."""
        span.end()
        context = span.get_span_context()
        if context.is_valid and context.trace_flags.sampled:
            self._ended.setdefault(key_of(request), context)  # that of the hold, not a late loss
            if len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)

    def _link(self, before: LockRequest | None) -> list[trace.Link]:
        """A link to the hold of the acquisition before, if that has a span."""
        context = None if before is None else self._ended.get(key_of(before))
        return [] if context is None else [trace.Link(context, {_LINK: "handed_on_by"})]

    def _within(self, request: LockRequest) -> Context | None:
        """The context of its hold, which has ended."""
        context = self._ended.get(key_of(request))
        return context and trace.set_span_in_context(NonRecordingSpan(context))


class _Instruments:
    """The metrics."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.wait = meter.create_histogram(
            "aiolock.wait.duration",
            "s",
            "From the request to the end of the wait, by outcome.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self.hold = meter.create_histogram(
            "aiolock.hold.duration",
            "s",
            "From the grant to the release, or the loss.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self.waiting = meter.create_up_down_counter(
            "aiolock.waiting", "{waiter}", "Acquisitions that wait in a queue now."
        )
        self.held = meter.create_up_down_counter(
            "aiolock.held", "{lease}", "Leases that are held now."
        )
        self.lost = meter.create_counter(
            "aiolock.lost", "{lease}", "Leases that were lost: two may have worked at once."
        )
        self.deadlocks = meter.create_counter(
            "aiolock.deadlocks",
            "{deadlock}",
            "Cycles of tasks that wait for each other, one of this process among them.",
        )
        self.link_breaks = meter.create_counter(
            "aiolock.link.breaks", "{break}", "Times that a link to the store broke."
        )
        self.links_down = meter.create_up_down_counter(
            "aiolock.link.down", "{link}", "Links to the store that are broken now."
        )


def _attributes(kind: str, family: str, share: str) -> Attributes:
    attributes: Attributes = {_KIND: kind, _FAMILY: family}
    if share:
        attributes[_SHARE] = share
    return attributes


def _about(request: LockRequest) -> Attributes:
    """The attributes of its spans. They may hold the name: the number of names does not matter."""
    about: Attributes = {
        _KIND: request.kind,
        _NAME: request.name,
        _FAMILY: request.family,
    }
    if request.shared:
        about[_SHARED] = True
    if request.share:
        about[_SHARE] = request.share
    return about


def _version() -> str:
    try:
        return version("aiolock-redis")
    except PackageNotFoundError:  # a copy of the sources
        return ""
