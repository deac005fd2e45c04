"""Metrics for Prometheus: times of waiting and holding, how many do so now, what goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from aiolock.observe._labels import (
    BUCKETS,
    LOSSES,
    PASSES,
    Key,
    PerFamily,
    ShareLabels,
    key_of,
)
from aiolock.observer import Deadlock, GaveUp, Link, LockRequest, Loss, LostBody, Observer

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ImportError(
        "metrics for Prometheus need prometheus-client: pip install 'aiolock-redis[prometheus]'"
    ) from error

_OF: Final = ("family", "kind")


class _Times:
    """The metrics of waits and holds, by the same labels."""

    def __init__(self, registry: CollectorRegistry, prefix: str, of: tuple[str, ...]) -> None:
        def histogram(name: str, text: str) -> Histogram:
            return Histogram(
                f"{prefix}_{name}_seconds",
                text,
                (*of, "outcome"),
                buckets=BUCKETS,
                registry=registry,
            )

        def gauge(name: str, text: str) -> Gauge:
            # If processes share a registry's files, only the living ones count.
            return Gauge(
                f"{prefix}_{name}", text, of, registry=registry, multiprocess_mode="livesum"
            )

        self.wait = histogram("wait", "From the request to the end of the wait, by outcome.")
        self.hold = histogram("hold", "From the grant to the release, or the loss.")
        self.waiting = gauge("waiting", "Acquisitions that wait in a queue now.")
        self.held = gauge("held", "Leases that are held now.")
        self.oldest_wait = gauge(
            "oldest_wait_seconds", "The longest wait that goes on now; 0: none."
        )
        self.oldest_hold = gauge(
            "oldest_hold_seconds", "The longest hold that goes on now; 0: none."
        )


class _Metrics:
    """All metrics of one registry, which several observers may share."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.times = _Times(registry, "aiolock", _OF)
        self.lost = Counter(
            "aiolock_lost",
            "Leases that were lost: two may have worked at the same time.",
            (*_OF, "why"),
            registry=registry,
        )
        self.deadlocks = Counter(
            "aiolock_deadlocks",
            "Cycles of tasks that wait for each other, one of this process among them.",
            registry=registry,
        )
        self.link_breaks = Counter(
            "aiolock_link_breaks", "Times that a link to the store broke.", registry=registry
        )
        self.links_down = Gauge(
            "aiolock_links_down",
            "Links to the store that are broken now.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.families = PerFamily(partial(_Family, self))
        self.shares: PerFamily[_Going] | None = None
        """The waits and holds by share, once an observer is to count these."""

    def count_shares(self, registry: CollectorRegistry) -> PerFamily[_Going]:
        """Make the metrics of shares, if there are none yet."""
        if self.shares is None:
            times = _Times(registry, "aiolock_share", (*_OF, "share"))
            self.shares = PerFamily(
                lambda kind, family, share: _Going(times, (family, kind, share))
            )
        return self.shares


class _Going:
    """The waits and holds of one kind and family, or share of that, and which of them go on."""

    def __init__(self, times: _Times, each: tuple[str, ...]) -> None:
        self.wait = _PerOutcome(times.wait, each)
        self.hold = _PerOutcome(times.hold, each)
        self.waiting = times.waiting.labels(*each)
        self.held = times.held.labels(*each)
        self.waits = dict[Key, float]()
        self.holds = dict[Key, float]()
        """The holds (above: waits) that go on, and since when."""
        times.oldest_wait.labels(*each).set_function(partial(_longest, self.waits))
        times.oldest_hold.labels(*each).set_function(partial(_longest, self.holds))

    def begins_to_wait(self, key: Key) -> None:
        self.waits[key] = _now()
        self.waiting.inc()

    def waits_no_more(self, key: Key, waited: float, outcome: str) -> None:
        if self.waits.pop(key, None) is not None:
            self.waiting.dec()
        self.wait[outcome].observe(waited)

    def begins_to_hold(self, key: Key) -> None:
        self.holds[key] = _now()
        self.held.inc()

    def holds_no_more(self, key: Key, held: float, outcome: str) -> None:
        # A loss may be known only from the answer to the release: the hold has ended before then.
        if self.holds.pop(key, None) is not None:
            self.held.dec()
            self.hold[outcome].observe(held)


class _Family(_Going):
    """The metrics of one kind and family."""

    def __init__(self, metrics: _Metrics, kind: str, family: str, _: str) -> None:
        super().__init__(metrics.times, (family, kind))
        # Made before the first loss: to Prometheus, a counter that was not there has not increased.
        self.lost = {why: metrics.lost.labels(family, kind, why) for why in LOSSES}


class _PerOutcome(dict[str, Histogram]):
    """A histogram's children by outcome; each is looked up once."""

    def __init__(self, parent: Histogram, labels: tuple[str, ...]) -> None:
        super().__init__()
        self._parent, self._labels = parent, labels

    def __missing__(self, outcome: str) -> Histogram:
        child = self[outcome] = self._parent.labels(*self._labels, outcome)
        return child


_metrics: WeakKeyDictionary[CollectorRegistry, _Metrics] = WeakKeyDictionary()
_lock = threading.Lock()


class Prometheus(Observer):
    """Counts; all observers of one registry count together."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        share_label: Callable[[str], str] | None = None,
    ) -> None:
        self._labels = ShareLabels(share_label)
        registry = REGISTRY if registry is None else registry
        with _lock:
            if registry not in _metrics:
                _metrics[registry] = _Metrics(registry)
            self._metrics = _metrics[registry]
            self._shares = self._metrics.count_shares(registry) if self._labels else None
        self._of = self._metrics.families.of

    def _each(self, request: LockRequest, *, ends: bool) -> Iterator[_Going]:
        """All that count the waits and holds of this request; see `ShareLabels.of`."""
        yield self._of(request)
        if request.share and self._shares is not None:
            yield self._shares.of(request, self._labels.of(request, ends=ends))

    def waiting(self, request: LockRequest) -> None:
        """An acquisition begins to wait."""
        key = key_of(request)
        for each in self._each(request, ends=False):
            each.begins_to_wait(key)

    def acquired(
        self,
        request: LockRequest,
        *,
        fence: int,  # noqa: ARG002  # see `Observer`
        waited: float,
        handed_on_by: LockRequest | None,  # noqa: ARG002
    ) -> None:
        """A hold begins."""
        key, passes = key_of(request), request.kind in PASSES
        for each in self._each(request, ends=passes):
            each.waits_no_more(key, waited, "acquired")
            if not passes:
                each.begins_to_hold(key)

    def gave_up(self, request: LockRequest, *, waited: float, why: GaveUp) -> None:
        """A wait ends without a grant."""
        for each in self._each(request, ends=True):
            each.waits_no_more(key_of(request), waited, why)

    def released(
        self,
        request: LockRequest,
        *,
        fence: int,  # noqa: ARG002
        held: float,
    ) -> None:
        """A hold ends."""
        for each in self._each(request, ends=True):
            each.holds_no_more(key_of(request), held, "released")

    def lost(
        self,
        request: LockRequest,
        *,
        fence: int,  # noqa: ARG002
        held: float,
        reason: Loss,
        why: str,  # noqa: ARG002
        body: LostBody,  # noqa: ARG002
    ) -> None:
        """A hold ends with a loss."""
        for each in self._each(request, ends=True):
            each.holds_no_more(key_of(request), held, "lost")
        self._of(request).lost[reason].inc()

    def link(self, state: Link, error: Exception | None) -> None:  # noqa: ARG002
        """The link to the store broke, or is no longer broken."""
        if state == "down":
            self._metrics.link_breaks.inc()
            self._metrics.links_down.inc()
        else:
            self._metrics.links_down.dec()

    def deadlock(self, deadlock: Deadlock) -> None:  # noqa: ARG002
        """Count the deadlock."""
        self._metrics.deadlocks.inc()


def _now() -> float:
    return time.monotonic()


def _longest(since: Mapping[Key, float]) -> float:
    """The age of the oldest of these, in seconds. Called by the thread that is scraped."""
    began = list(since.values())  # a copy in one step, for the event loop goes on
    return _now() - min(began) if began else 0.0
