"""The spans and metrics for OpenTelemetry, as an exporter gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import aiolock
import aiolock.sync
from aiolock.observe import _labels, _opentelemetry
from aiolock.observe._opentelemetry import OpenTelemetry
from aiolock.observer import Observer
from aiolock.stores.memory import MemoryServer
from tests.support.observed import GAVE_UP, LOST, Scene
from tests.support.worlds import asking, queued, virtual


class Exported:
    """A program with an SDK, and what that exports."""

    def __init__(self, *, sampled: bool = True) -> None:
        self._spans = InMemorySpanExporter()
        self.tracing = TracerProvider() if sampled else TracerProvider(ALWAYS_OFF)
        self.tracing.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.tracing.get_tracer("program")
        self._reader = InMemoryMetricReader()
        self.metering = MeterProvider([self._reader])
        self.observer = aiolock.observe.opentelemetry(
            tracer_provider=self.tracing, meter_provider=self.metering
        )

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Those of this name that have ended, in that order."""
        return [span for span in self._spans.get_finished_spans() if name in (None, span.name)]

    def span(self, name: str) -> ReadableSpan:
        """The only one of this name."""
        (span,) = self.spans(name)
        return span

    def points(self, name: str) -> dict[str, float]:
        """The values of a metric, or how often it was measured, by its attributes."""
        found = dict[str, float]()
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            value = point.count if isinstance(point, HistogramDataPoint) else None
                            key = " ".join(str(each) for each in (point.attributes or {}).values())
                            found[key] = point.value if value is None else value  # type: ignore[union-attr]
        return found

    def names(self) -> set[str]:
        """All metrics, with their units."""
        data = self._reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        return {f"{metric.name} {metric.unit}" for metric in scope.metrics}

    @property
    def nothing_left(self) -> bool:
        """Whether nothing is held or waited for, and nothing is kept of it."""
        assert isinstance(self.observer, OpenTelemetry)
        gauges = (*self.points("aiolock.waiting").values(), *self.points("aiolock.held").values())
        return not any((*gauges, self.observer._waiting, self.observer._held))


@pytest.fixture
def exported() -> Exported:
    """A program of the test's own."""
    return Exported()


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    """What the span says."""
    assert span.attributes is not None
    return span.attributes


def lasted(span: ReadableSpan) -> float:
    """For how many seconds the span says that it lasted."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def parent_of(span: ReadableSpan) -> int | None:
    """The span that it is in."""
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    """What others call it."""
    return span.get_span_context().span_id  # type: ignore[union-attr]


@virtual
async def test_lock_that_is_free_makes_one_hold_span_in_the_current_span(
    exported: Exported,
) -> None:
    """Its hold, in the span of the task that acquired it."""
    async with aiolock.connect(MemoryServer(), observer=exported.observer) as client:
        with exported.tracer.start_as_current_span("request"):
            async with client.lock("order:1") as lease:
                pass
        assert [span.name for span in exported.spans()] == ["hold lock", "request"]
        hold = exported.span("hold lock")
        assert parent_of(hold) == id_of(exported.span("request"))
        assert hold.kind is SpanKind.INTERNAL
        assert hold.status.status_code is StatusCode.UNSET
        assert attributes(hold) == {
            "aiolock.lock.kind": "lock",
            "aiolock.lock.name": "order:1",
            "aiolock.lock.family": "order",
            "aiolock.fence": lease.fence,
            "aiolock.waited": 0.0,
            "aiolock.outcome": "released",
        }
        assert not hold.links
    assert exported.nothing_left


@virtual
async def test_wait_and_hold_spans_after_a_handoff_link_to_the_hold_before(
    exported: Exported,
) -> None:
    """Each wait and each hold is in the span of its own task, and links to the hold before."""
    async with aiolock.connect(MemoryServer(), observer=exported.observer) as client:

        async def request(number: int) -> None:
            with exported.tracer.start_as_current_span(f"request {number}"):
                async with client.lock("order:1"):
                    await asyncio.sleep(1)

        await asyncio.gather(*[request(number) for number in range(3)])
    holds, waits = exported.spans("hold lock"), exported.spans("wait_for lock")
    requests = [id_of(exported.span(f"request {number}")) for number in range(3)]
    assert [parent_of(hold) for hold in holds] == requests
    assert [parent_of(wait) for wait in waits] == requests[1:]
    for before, hold, wait in zip(holds, holds[1:], waits, strict=False):
        for span in (hold, wait):
            (link,) = span.links
            assert link.context == before.get_span_context()
            assert link.attributes == {"aiolock.link": "handed_on_by"}
    assert [lasted(wait) for wait in waits] == pytest.approx([1, 2])
    assert attributes(waits[0])["aiolock.outcome"] == "acquired"
    assert attributes(holds[2])["aiolock.waited"] == pytest.approx(2)
    assert exported.nothing_left


@virtual
async def test_wait_span_after_a_handoff_of_another_client_has_no_link(exported: Exported) -> None:
    """Nothing is carried through the store: who waited for another client is not linked."""
    async with Scene(exported.observer) as scene:
        async with scene.theirs.lock("order:1"):
            waits = asking(scene.ours.lock("order:1"))
            await queued(scene.ours.lock("order:1"), 1)
        await (await waits).release()
    assert not exported.span("wait_for lock").links
    assert not exported.span("hold lock").links


@virtual
async def test_acquire_that_takes_long_on_a_free_lock_makes_a_wait_span(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that was free, but long in coming, has a span of that, too."""
    monkeypatch.setattr(_opentelemetry, "_NOTICEABLE", 0.0)
    async with (
        aiolock.connect(MemoryServer(), observer=exported.observer) as client,
        client.lock("order:1"),
    ):
        assert attributes(exported.span("wait_for lock"))["aiolock.outcome"] == "acquired"


@pytest.mark.parametrize("why", GAVE_UP)
def test_wait_span_of_an_ended_wait_has_its_outcome_and_error(exported: Exported, why: str) -> None:
    """A span each; an error is what its caller did not want."""

    @virtual
    async def give_up() -> None:
        async with Scene(exported.observer) as scene:
            await scene.give_up(why)

    give_up()
    (wait,) = (
        span
        for span in exported.spans()
        if span.name.startswith("wait_for") and attributes(span)["aiolock.outcome"] == why
    )
    failed = why not in ("busy", "cancelled", "done")
    assert attributes(wait).get("error.type") == (why if failed else None)
    assert wait.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    points = exported.points("aiolock.wait.duration")
    ends = f"{why} {why}" if failed else why  # the outcome and the type of the error
    assert [value for labels, value in points.items() if labels.endswith(ends)] == [1]
    assert exported.nothing_left


@pytest.mark.parametrize("why", LOST)
def test_hold_span_of_a_lost_lease_ends_with_the_reason_as_error(
    exported: Exported, why: str
) -> None:
    """The hold ends with an error that says why, wherever it was noticed."""

    @virtual
    async def lose() -> None:
        async with Scene(exported.observer) as scene:
            with exported.tracer.start_as_current_span("request"):
                await scene.lose(why)

    lose()
    hold = exported.span("hold lock")
    assert parent_of(hold) == id_of(exported.span("request"))
    assert attributes(hold)["error.type"] == why
    assert attributes(hold)["aiolock.outcome"] == "lost"
    assert hold.status.status_code is StatusCode.ERROR
    assert hold.status.description
    assert exported.points("aiolock.lost") == {f"lock order {why}": 1}
    assert exported.points("aiolock.hold.duration") == {"lock order lost": 1}
    assert exported.nothing_left


@virtual
async def test_loss_known_after_the_release_makes_a_lost_span_in_its_hold(
    exported: Exported,
) -> None:
    """The hold has ended when the loss is known: a span in it says so."""
    async with Scene(exported.observer) as scene:
        await scene.lose("known from the answer to the release")
    hold, lost = exported.span("hold lock"), exported.span("lost lock")
    assert attributes(hold)["aiolock.outcome"] == "released"
    assert parent_of(lost) == id_of(hold)
    assert attributes(lost)["error.type"] == "refused"
    assert lost.status.status_code is StatusCode.ERROR
    assert exported.points("aiolock.lost") == {"lock order refused": 1}
    assert exported.points("aiolock.hold.duration") == {"lock order released": 1}
    assert exported.nothing_left


@virtual
async def test_latch_wait_makes_a_wait_span_and_no_hold(exported: Exported) -> None:
    """It is waited for, and passed."""
    async with Scene(exported.observer) as scene:
        await scene.pass_by()
    assert [span.name for span in exported.spans()] == ["wait_for latch"]
    assert exported.points("aiolock.wait.duration") == {"latch ready acquired": 1}
    assert not exported.points("aiolock.held")


@virtual
async def test_metrics_have_the_agreed_names_and_units_and_no_lock_names(
    exported: Exported,
) -> None:
    """Their names and units, and never the name of a lock."""
    async with Scene(exported.observer) as scene:
        await scene.everything()
        assert exported.names() == {
            "aiolock.wait.duration s",
            "aiolock.hold.duration s",
            "aiolock.waiting {waiter}",
            "aiolock.held {lease}",
            "aiolock.lost {lease}",
            "aiolock.deadlocks {deadlock}",
            "aiolock.link.breaks {break}",
            "aiolock.link.down {link}",
        }
        assert exported.points("aiolock.link.breaks") == {"": 1}
        assert exported.points("aiolock.link.down") == {"": 0}
        assert exported.points("aiolock.deadlocks") == {"": 1}
        for name in ("aiolock.wait.duration", "aiolock.held", "aiolock.lost"):
            assert not any(":" in labels for labels in exported.points(name))
        assert exported.nothing_left


@virtual
async def test_gauges_count_current_holders_and_waiters(exported: Exported) -> None:
    """How many hold and wait now."""
    async with Scene(exported.observer) as scene:
        lock = scene.ours.lock("order:1")
        async with lock:
            waits = [asking(lock), asking(lock)]
            await queued(lock, 2)
            assert exported.points("aiolock.held") == {"lock order": 1}
            assert exported.points("aiolock.waiting") == {"lock order": 2}
        for task in waits:
            await (await task).release()
        assert exported.nothing_left


async def test_families_above_the_limit_are_counted_together_but_named_in_spans(
    exported: Exported,
) -> None:
    """Those above the limit are counted together, and their spans tell them apart."""
    async with aiolock.connect(MemoryServer(), observer=exported.observer) as client:
        for number in range(_labels.MOST + 50):
            async with client.lock("a", family=f"family {number}"):
                pass
    points = exported.points("aiolock.hold.duration")
    assert len(points) == _labels.MOST + 1
    assert points[f"lock {_labels.OTHER} released"] == 50
    spans = exported.spans("hold lock")
    assert len({attributes(span)["aiolock.lock.family"] for span in spans}) == _labels.MOST + 50


async def test_ended_holds_are_remembered_up_to_a_limit(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has ended is kept for who comes next, and not for ever."""
    monkeypatch.setattr(_opentelemetry, "_REMEMBERED", 3)
    async with aiolock.connect(MemoryServer(), observer=exported.observer) as client:
        for number in range(10):
            async with client.lock(f"order:{number}"):
                pass
    assert isinstance(exported.observer, OpenTelemetry)
    assert len(exported.observer._ended) == 3


@virtual
async def test_holds_that_are_not_sampled_are_not_remembered_but_counted() -> None:
    """A trace that nobody keeps leads nowhere; the metrics are the same."""
    exported = Exported(sampled=False)
    async with Scene(exported.observer) as scene:
        await scene.hand_over()
    assert not exported.spans()
    assert isinstance(exported.observer, OpenTelemetry)
    assert not exported.observer._ended
    assert exported.points("aiolock.hold.duration") == {"lock order released": 3}


@virtual
async def test_observer_without_an_sdk_raises_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """With the API alone it does nothing, and does no harm."""
    observer = aiolock.observe.opentelemetry()
    assert isinstance(observer, OpenTelemetry)
    assert not observer._tracer.start_span("x").is_recording()
    async with Scene(observer) as scene:
        await scene.everything()
    assert not [each for each in caplog.messages if "observer" in each]
    assert not observer._ended


@virtual
async def test_hold_spans_of_readers_and_permits_have_the_shared_attribute(
    exported: Exported,
) -> None:
    """A reader, and permits of a semaphore."""
    async with aiolock.connect(MemoryServer(), observer=exported.observer) as client:
        async with client.rwlock("page:1").read(), client.semaphore("pool", 2):
            pass
        async with client.rwlock("page:1").write():
            pass
    shared = [attributes(span).get("aiolock.lock.shared") for span in exported.spans()]
    assert shared == [True, True, None]
    assert [span.name for span in exported.spans()] == ["hold semaphore", "hold lock", "hold lock"]


@pytest.mark.one_loop
def test_spans_of_a_sync_client_are_children_of_the_threads_span(exported: Exported) -> None:
    """Also those of a wait, of a decorator, and of a call that takes a lock by hand."""
    memory = MemoryServer()

    def request(client: aiolock.sync.LockClient) -> None:
        @client.locked("order:2")
        def decorated() -> None:
            """Nothing to do."""

        with exported.tracer.start_as_current_span("request"):
            permit = client.semaphore("one", 1).acquire()
            with client.lock("order:1"), pytest.raises(aiolock.AcquireTimeout):
                client.semaphore("one", 1, timeout=0.05).acquire()
            permit.release()
            decorated()
            client.lock("order:3").acquire().release()

    with aiolock.sync.connect(memory, observer=exported.observer) as client:
        request(client)
    of_request = exported.span("request").context
    inner = [span for span in exported.spans() if span.name != "request"]
    assert all(span.parent is not None and span.parent == of_request for span in inner)
    names = sorted(span.name for span in inner)
    assert names == [*["hold lock"] * 3, "hold semaphore", "wait_for semaphore"]


@pytest.mark.one_loop
def test_spans_of_a_sync_client_belong_to_the_span_of_each_call(exported: Exported) -> None:
    """One thread serves many requests; none gets the spans of another."""
    with aiolock.sync.connect(MemoryServer(), observer=exported.observer) as client:
        lock = client.lock("order:1")
        for number in range(2):
            with exported.tracer.start_as_current_span(f"request {number}"), lock:
                pass
        with lock:
            pass
    holds = [span.parent and span.parent.span_id for span in exported.spans("hold lock")]
    requests = [exported.span(f"request {number}").context.span_id for number in range(2)]
    assert holds == [*requests, None]


def sharing(exported: Exported, label: Callable[[str], str]) -> Observer:
    """An observer with a label of shares."""
    return aiolock.observe.opentelemetry(
        tracer_provider=exported.tracing, meter_provider=exported.metering, share_label=label
    )


@virtual
async def test_share_label_that_raises_ends_all_spans_and_counts_its_shares_as_others(
    exported: Exported,
) -> None:
    """The loss is counted, too."""

    def label(share: str) -> str:
        raise KeyError(share)

    async with aiolock.connect("memory://", observer=sharing(exported, label)) as client:
        lock = client.lock("order:1", share="acme")
        async with lock:
            waits = asking(lock)
            await queued(lock, 1)
        lease = await waits
        await client.break_("order:1")
        assert lease.lost.is_set()
    outcomes = [attributes(span)["aiolock.outcome"] for span in exported.spans("hold lock")]
    assert outcomes == ["released", "lost"]
    assert exported.points("aiolock.lost") == {"lock order (other) broken": 1}
    assert exported.nothing_left


@virtual
async def test_share_label_that_changes_meanwhile_ends_what_began_under_the_first(
    exported: Exported,
) -> None:
    """A counter that goes up and down has the same attributes on both ways."""
    plan = "trial"
    async with aiolock.connect("memory://", observer=sharing(exported, lambda _: plan)) as client:
        lock = client.lock("order:1", share="acme")
        async with lock:
            waits = asking(lock)
            await queued(lock, 1)
            plan = "paid"
        await (await waits).release()
    assert exported.points("aiolock.waiting") == {"lock order trial": 0}
    assert exported.points("aiolock.held") == {"lock order trial": 0}


@virtual
async def test_many_share_labels_leave_room_for_families(exported: Exported) -> None:
    """A family that comes later has metrics of its own, with a share or without."""
    async with aiolock.connect("memory://", observer=sharing(exported, str)) as client:
        for number in range(_labels.MOST + 1):
            async with client.lock("order:1", share=f"t{number}"):
                pass
        async with client.lock("user:1"):
            pass
    points = exported.points("aiolock.hold.duration")
    assert points["lock user released"] == 1
    assert points[f"lock {_labels.OTHER} {_labels.OTHER} released"] == 1


@virtual
async def test_share_is_in_each_span_and_with_a_label_in_the_metrics() -> None:
    """There may be as many shares as spans; metrics have few."""
    for label, expected in ((None, {"lock order"}), (lambda _: "paid", {"lock order paid"})):
        exported = Exported()
        observer = aiolock.observe.opentelemetry(
            tracer_provider=exported.tracing,
            meter_provider=exported.metering,
            share_label=label,
        )
        async with (
            aiolock.connect("memory://", observer=observer) as client,
            client.lock("order:1", share="acme"),
        ):
            pass
        assert attributes(exported.span("hold lock"))["aiolock.lock.share"] == "acme"
        assert exported.points("aiolock.held").keys() == expected
    with pytest.raises(TypeError, match="share_label"):
        aiolock.observe.opentelemetry(share_label="acme")  # type: ignore[arg-type]  # as a user might
