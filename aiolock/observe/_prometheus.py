"""Metrics for Prometheus: times of waiting and holding, how many do so now, what goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from aiolock.observe._labels import BUCKETS, LOSSES, PASSES, Key, PerFamily, key_of
from aiolock.observer import Deadlock, GaveUp, Link, LockRequest, Loss, LostBody, Observer

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ImportError(
        "metrics for Prometheus need prometheus-client: pip install 'aiolock-redis[prometheus]'"
    ) from error

_OF: Final = ("family", "kind")


class _Metrics:
    """All metrics of one registry, which several observers may share."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.wait = Histogram(
            "aiolock_wait_seconds",
            "From the request to the end of the wait, by outcome.",
            (*_OF, "outcome"),
            buckets=BUCKETS,
            registry=registry,
        )
        self.hold = Histogram(
            "aiolock_hold_seconds",
            "From the grant to the release, or the loss.",
            (*_OF, "outcome"),
            buckets=BUCKETS,
            registry=registry,
        )

        def gauge(name: str, text: str, labels: tuple[str, ...] = _OF) -> Gauge:
            # If processes share a registry's files, only the living ones count.
            return Gauge(name, text, labels, registry=registry, multiprocess_mode="livesum")

        self.waiting = gauge("aiolock_waiting", "Acquisitions that wait in a queue now.")
        self.held = gauge("aiolock_held", "Leases that are held now.")
        self.oldest_wait = gauge(
            "aiolock_oldest_wait_seconds", "The longest wait that goes on now; 0: none."
        )
        self.oldest_hold = gauge(
            "aiolock_oldest_hold_seconds", "The longest hold that goes on now; 0: none."
        )
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
        self.links_down = gauge("aiolock_links_down", "Links to the store that are broken now.", ())
        self.families = PerFamily(partial(_Family, self))


class _Family:
    """The metrics of one kind and family, and its waits and holds that go on."""

    def __init__(self, metrics: _Metrics, kind: str, family: str) -> None:
        each = (family, kind)
        self.wait = _PerOutcome(metrics.wait, each)
        self.hold = _PerOutcome(metrics.hold, each)
        self.waiting = metrics.waiting.labels(*each)
        self.held = metrics.held.labels(*each)
        # Made before the first loss: to Prometheus, a counter that was not there has not increased.
        self.lost = {why: metrics.lost.labels(*each, why) for why in LOSSES}
        self.waits = dict[Key, float]()
        self.holds = dict[Key, float]()
        """The holds (above: waits) that go on, and since when."""
        metrics.oldest_wait.labels(*each).set_function(partial(_longest, self.waits))
        metrics.oldest_hold.labels(*each).set_function(partial(_longest, self.holds))

    def waits_no_more(self, key: Key) -> None:
        if self.waits.pop(key, None) is not None:
            self.waiting.dec()

    def holds_no_more(self, key: Key, held: float, outcome: str) -> None:
        # A loss may be known only from the answer to the release: the hold has ended before then.
        if self.holds.pop(key, None) is not None:
            self.held.dec()
            self.hold[outcome].observe(held)


class _PerOutcome(dict[str, Histogram]):
    """A histogram's children by outcome; each is looked up once."""

    def __init__(self, parent: Histogram, labels: tuple[str, str]) -> None:
        super().__init__()
        self._parent, self._labels = parent, labels

    def __missing__(self, outcome: str) -> Histogram:
        child = self[outcome] = self._parent.labels(*self._labels, outcome)
        return child


_metrics: WeakKeyDictionary[CollectorRegistry, _Metrics] = WeakKeyDictionary()
_lock = threading.Lock()


class Prometheus(Observer):
    """Counts; all observers of one registry count together."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = REGISTRY if registry is None else registry
        with _lock:
            if registry not in _metrics:
                _metrics[registry] = _Metrics(registry)
        self._metrics = _metrics[registry]
        self._of = self._metrics.families.of

    def waiting(self, request: LockRequest) -> None:
        """An acquisition begins to wait."""
        family = self._of(request)
        family.waits[key_of(request)] = _now()
        family.waiting.inc()

    def acquired(
        self,
        request: LockRequest,
        *,
        fence: int,  # noqa: ARG002  # see `Observer`
        waited: float,
        handed_on_by: LockRequest | None,  # noqa: ARG002
    ) -> None:
        """A hold begins."""
        family, key = self._of(request), key_of(request)
        family.waits_no_more(key)
        family.wait["acquired"].observe(waited)
        if request.kind not in PASSES:
            family.holds[key] = _now()
            family.held.inc()

    def gave_up(self, request: LockRequest, *, waited: float, why: GaveUp) -> None:
        """A wait ends without a grant."""
        family = self._of(request)
        family.waits_no_more(key_of(request))
        family.wait[why].observe(waited)

    def released(
        self,
        request: LockRequest,
        *,
        fence: int,  # noqa: ARG002
        held: float,
    ) -> None:
        """A hold ends."""
        self._of(request).holds_no_more(key_of(request), held, "released")

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
        family = self._of(request)
        family.holds_no_more(key_of(request), held, "lost")
        family.lost[reason].inc()

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
