"""The metrics for Prometheus, as a scrape sees them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import aiolock
from aiolock._engine.lease_state import LossReason
from aiolock.observe import _labels, _prometheus
from aiolock.observer import LockRequest
from aiolock.stores.memory import MemoryServer
from tests.support.observed import GAVE_UP, LOST, Scene
from tests.support.worlds import asking, queued, virtual


class Scraped:
    """A registry, and what it says of one family of locks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.observer = aiolock.observe.prometheus(registry=self.registry)

    def __call__(self, name: str, family: str = "order", **labels: str) -> float:
        """The value of one series; 0 where there is none."""
        labels = {"family": family, "kind": "lock", **labels} if family else labels
        return self.registry.get_sample_value(name, labels) or 0.0

    def all(self, name: str) -> dict[str, float]:
        """All series of a name, by the last of their labels."""
        found = dict[str, float]()
        for metric in text_string_to_metric_families(generate_latest(self.registry).decode()):
            for sample in metric.samples:
                if sample.name == name:
                    found[" ".join(sample.labels.values())] = sample.value
        return found

    @property
    def still(self) -> bool:
        """Whether nothing is held or waited for."""
        gauges = ("waiting", "held", "oldest_wait_seconds", "oldest_hold_seconds")
        return not any(value for gauge in gauges for value in self.all(f"aiolock_{gauge}").values())


@pytest.fixture
def scraped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scraped]:
    """A registry of the test's own, and the clock of its event loop."""
    monkeypatch.setattr(_prometheus, "_now", lambda: asyncio.get_running_loop().time())
    scraped = Scraped()
    yield scraped
    for family in scraped.observer._metrics.families._made.values():  # type: ignore[attr-defined]
        assert not family.waits
        assert not family.holds


@virtual
async def test_histograms_observe_each_wait_and_hold(scraped: Scraped) -> None:
    """How long each of them waited for it, and how long each had it."""
    async with Scene(scraped.observer) as scene:
        await scene.hand_over()
        assert scraped("aiolock_wait_seconds_count", outcome="acquired") == 3
        assert scraped("aiolock_wait_seconds_sum", outcome="acquired") == pytest.approx(3)
        assert scraped("aiolock_wait_seconds_bucket", outcome="acquired", le="0.001") == 1
        assert scraped("aiolock_wait_seconds_bucket", outcome="acquired", le="1.0") == 2
        assert scraped("aiolock_hold_seconds_count", outcome="released") == 3
        assert scraped("aiolock_hold_seconds_sum", outcome="released") == pytest.approx(3)
        assert scraped.still


@virtual
async def test_gauges_show_current_holders_and_waiters_and_the_oldest(scraped: Scraped) -> None:
    """How many hold and wait now, and for how long the first of them does."""
    async with Scene(scraped.observer) as scene:
        lock = scene.ours.lock("order:1")
        async with scene.ours.lock("order:2"):
            await asyncio.sleep(5)
            async with lock:
                waits = [asking(lock), asking(lock)]
                await queued(lock, 2)
                await asyncio.sleep(2)
                assert scraped("aiolock_held") == 2
                assert scraped("aiolock_waiting") == 2
                assert scraped("aiolock_oldest_hold_seconds") == pytest.approx(7)
                assert scraped("aiolock_oldest_wait_seconds") == pytest.approx(2)
            for task in waits:
                await (await task).release()
        assert scraped.still


@virtual
async def test_shares_have_metrics_of_their_own_by_the_label_that_is_chosen(
    scraped: Scraped,
) -> None:
    """Waits and holds of each label, beside those of all; nothing of what has no share."""
    plans = {"acme": "paid", "globex": "paid"}
    observer = aiolock.observe.prometheus(
        registry=scraped.registry, share_label=lambda share: plans.get(share, "free")
    )

    def of(name: str, plan: str, **labels: str) -> float:
        return scraped(f"aiolock_share_{name}", share=plan, **labels)

    async with (
        Scene(scraped.observer) as scene,
        aiolock.connect(scene.server, observer=observer) as client,
    ):
        async with client.lock("order:1"):
            tasks = [
                asking(client.lock("order:1", share=share)) for share in ("acme", "globex", "x")
            ]
            await queued(client.lock("order:1"), 3)
            await asyncio.sleep(2)
            assert (of("waiting", "paid"), of("waiting", "free")) == (2, 1)
            assert of("oldest_wait_seconds", "paid") == pytest.approx(2)
            assert scraped("aiolock_waiting") == 3
            assert scraped("aiolock_held") == 1
            assert of("held", "paid") == of("held", "") == 0
        for task in tasks:
            lease = await task
            plan = plans.get(lease._hold.policy.share or "", "free")
            assert of("held", plan) == 1
            await asyncio.sleep(1)
            await lease.release()
        assert of("hold_seconds_sum", "paid", outcome="released") == pytest.approx(2)
        assert of("wait_seconds_count", "free", outcome="acquired") == 1
        assert scraped("aiolock_wait_seconds_count", outcome="acquired") == 4
    assert not any(scraped.all("aiolock_share_held").values())
    assert not any(scraped.all("aiolock_share_waiting").values())


@virtual
async def test_shares_without_a_label_have_no_metrics(scraped: Scraped) -> None:
    """A share is anything that a program says, and there may be as many as users."""
    async with Scene(scraped.observer) as scene, scene.ours.lock("order:1", share="acme"):
        pass
    assert "acme" not in generate_latest(scraped.registry).decode()
    assert "aiolock_share" not in generate_latest(scraped.registry).decode()


@virtual
async def test_shares_beyond_the_most_are_counted_together(scraped: Scraped) -> None:
    """A function that returns the share itself cannot make the registry grow for ever."""
    observer = aiolock.observe.prometheus(registry=scraped.registry, share_label=str)
    async with aiolock.connect("memory://", observer=observer) as client:
        for number in range(_labels.MOST + 50):
            async with client.lock("order:1", share=f"t{number}"):
                pass
    counts = scraped.all("aiolock_share_wait_seconds_count")
    assert len(counts) == _labels.MOST + 1
    assert counts[f"{_labels.OTHER} lock acquired {_labels.OTHER}"] == 50


@virtual
async def test_share_of_a_lease_that_is_handed_on_is_counted_by_whoever_adopts_it(
    scraped: Scraped,
) -> None:
    """It goes with the lease, as its permits do."""
    observer = aiolock.observe.prometheus(registry=scraped.registry, share_label=str)
    server = MemoryServer()
    async with (
        aiolock.connect(server) as web,
        aiolock.connect(server, observer=observer) as worker,
    ):
        async with web.semaphore("order:1", 3, share="acme").acquire() as lease:
            token = await lease.detach()
        async with worker.adopt(token):
            assert scraped.all("aiolock_share_held") == {"order semaphore acme": 1}


@virtual
async def test_share_label_that_raises_counts_its_shares_as_others_and_all_else_as_ever(
    scraped: Scraped, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once; the loss is counted."""

    def plan_of(share: str) -> str:
        return {"acme": "paid"}[share]

    observer = aiolock.observe.prometheus(registry=scraped.registry, share_label=plan_of)
    async with aiolock.connect("memory://", observer=observer) as client:
        for share in ("acme", "globex", "x"):
            lease = await client.lock("order:1", share=share).acquire()
            await client.break_("order:1")
            assert lease.lost.is_set()
    assert scraped.all("aiolock_share_hold_seconds_count") == {
        "order lock lost paid": 1,
        "order lock lost (other)": 2,
    }
    assert scraped("aiolock_lost_total", why="broken") == 3
    assert scraped.still
    assert [record.message for record in caplog.records if record.exc_info] == [
        "aiolock: share_label raised, so that share is counted as (other); that is not logged again"
    ]


@virtual
async def test_share_label_that_changes_meanwhile_ends_what_began_under_the_first(
    scraped: Scraped,
) -> None:
    """As when a tenant gets another plan while it waits, or while it holds the lock."""
    plan = "trial"
    observer = aiolock.observe.prometheus(registry=scraped.registry, share_label=lambda _: plan)
    async with aiolock.connect("memory://", observer=observer) as client:
        lock = client.lock("order:1", share="acme")
        async with client.lock("order:1"):
            waits = asking(lock)
            await queued(lock, 1)
            plan = "paid"
        lease = await waits
        assert scraped.all("aiolock_share_held") == {"order lock trial": 1}
        plan = "gold"
        await lease.release()
        assert scraped.all("aiolock_share_held") == {"order lock trial": 0}
        assert scraped.all("aiolock_share_waiting") == {"order lock trial": 0}
        async with lock:
            assert scraped.all("aiolock_share_held")["order lock gold"] == 1
        assert not observer._labels._given  # type: ignore[attr-defined]  # of its class


def test_share_label_that_is_no_function_is_refused() -> None:
    """Before anything is registered."""
    for wrong in ("acme", ["acme"], 1):
        with pytest.raises(TypeError, match="share_label must be a function of a share"):
            aiolock.observe.prometheus(share_label=wrong)  # type: ignore[arg-type]  # as a user might


@pytest.mark.parametrize("why", GAVE_UP)
def test_wait_histogram_counts_an_ended_wait_by_its_outcome(scraped: Scraped, why: str) -> None:
    """Each reason is an outcome of its own, and nobody is left waiting."""

    @virtual
    async def give_up() -> None:
        async with Scene(scraped.observer) as scene:
            await scene.give_up(why)
            assert scraped.still

    give_up()
    counted = scraped.all("aiolock_wait_seconds_count")
    assert sum(value for labels, value in counted.items() if labels.endswith(why)) == 1


@pytest.mark.parametrize("why", LOST)
def test_lost_counter_counts_a_loss_by_its_reason_and_the_hold_as_lost(
    scraped: Scraped, why: str
) -> None:
    """Each reason is one word; the hold has ended, and nothing is held any more."""

    @virtual
    async def lose() -> None:
        async with Scene(scraped.observer) as scene:
            await scene.lose(why)
            assert scraped.still

    lose()
    assert scraped("aiolock_lost_total", why=why) == 1
    assert sum(scraped.all("aiolock_lost_total").values()) == 1
    assert scraped("aiolock_hold_seconds_count", outcome="lost") == 1
    assert scraped("aiolock_hold_seconds_count", outcome="released") == 0


@virtual
async def test_loss_known_after_the_release_is_counted_and_ends_no_second_hold(
    scraped: Scraped,
) -> None:
    """A loss that the answer to the release tells of is counted, and ends no second hold."""
    async with Scene(scraped.observer) as scene:
        await scene.lose("known from the answer to the release")
        assert scraped("aiolock_held") == 0
        assert scraped("aiolock_lost_total", why="refused") == 1
        assert scraped("aiolock_hold_seconds_count", outcome="released") == 1
        assert scraped("aiolock_hold_seconds_count", outcome="lost") == 0


@virtual
async def test_latch_wait_is_counted_and_no_hold(scraped: Scraped) -> None:
    """It is waited for, and passed."""
    async with Scene(scraped.observer) as scene:
        await scene.pass_by()
    assert scraped("aiolock_wait_seconds_count", "ready", kind="latch", outcome="acquired") == 1
    assert not scraped.all("aiolock_hold_seconds_count")
    assert scraped("aiolock_held", "ready", kind="latch") == 0


@virtual
async def test_link_and_deadlock_metrics_count_each_once(scraped: Scraped) -> None:
    """A link that is down counts until it is there again; a deadlock is counted once."""
    async with Scene(scraped.observer) as scene:
        scene.break_link(scene.ours)
        assert scraped("aiolock_link_breaks_total", "") == 1
        assert scraped("aiolock_links_down", "") == 1
        scene.mend_link(scene.ours)
        assert scraped("aiolock_link_breaks_total", "") == 1
        assert scraped("aiolock_links_down", "") == 0
        await scene.deadlock()
        assert scraped("aiolock_deadlocks_total", "") == 1


async def test_counters_of_failures_exist_with_zero_from_the_start(scraped: Scraped) -> None:
    """The counters begin at 0, for what was not there has not increased, to Prometheus."""
    async with aiolock.connect(MemoryServer(), observer=scraped.observer) as client:
        async with client.lock("order:1"):
            pass
        whys = {labels.split()[-1]: n for labels, n in scraped.all("aiolock_lost_total").items()}
        assert whys == dict.fromkeys(_labels.LOSSES, 0)
        assert scraped.all("aiolock_deadlocks_total") == {"": 0}
        assert scraped.all("aiolock_link_breaks_total") == {"": 0}


async def test_observers_of_one_registry_share_its_metrics(scraped: Scraped) -> None:
    """Who asks again for the same registry counts into the same metrics."""
    again = aiolock.observe.prometheus(registry=scraped.registry)
    server = MemoryServer()
    async with (
        aiolock.connect(server, observer=scraped.observer) as one,
        aiolock.connect(server, observer=again) as other,
        one.lock("order:1"),
        other.lock("order:2"),
    ):
        assert scraped("aiolock_held") == 2
        elsewhere = Scraped()
        assert elsewhere("aiolock_held") == 0


def test_registry_that_is_dropped_is_forgotten() -> None:
    """One that nobody uses any more is forgotten."""
    gc.collect()
    before = len(_prometheus._metrics)
    scraped = Scraped()
    assert len(_prometheus._metrics) == before + 1
    del scraped
    gc.collect()
    assert len(_prometheus._metrics) == before


def test_observer_without_a_registry_uses_the_default_one() -> None:
    """Without a registry it is that which `start_http_server` serves."""
    aiolock.observe.prometheus()
    aiolock.observe.prometheus()
    assert b"aiolock_wait_seconds" in generate_latest()


async def test_family_labels_are_as_many_as_families_not_names(scraped: Scraped) -> None:
    """However many names, there is one series for each family; also where none was given."""
    async with aiolock.connect(MemoryServer(), observer=scraped.observer) as client:
        for number in range(300):
            async with client.lock(f"order:{number}"), client.lock(f"job-{number}"):
                pass
            async with client.lock(f"{number:x}", family="given"):
                pass
    assert set(scraped.all("aiolock_held")) == {"order lock", "job-* lock", "given lock"}


async def test_families_above_the_limit_are_counted_together(scraped: Scraped) -> None:
    """Those above the limit are counted together."""
    async with aiolock.connect(MemoryServer(), observer=scraped.observer) as client:
        for number in range(_labels.MOST + 50):
            name = f"{number:o}".translate(str.maketrans("01234567", "abcdefgh"))
            async with client.lock(name):
                pass
            async with client.lock(name):
                pass
        async with client.semaphore("another", 2):
            pass
    families = scraped.all("aiolock_held")
    assert len(families) == _labels.MOST + 2
    assert scraped("aiolock_hold_seconds_count", _labels.OTHER, outcome="released") == 100
    assert f"{_labels.OTHER} semaphore" in families


def test_loss_labels_cover_each_loss_reason_and_other() -> None:
    """Each reason of the engine's has a word of its own, and what a later store says has one."""
    assert set(_labels.LOSSES) == {*(reason.name.lower() for reason in LossReason), "other"}


def test_passing_kinds_of_the_labels_are_those_of_the_engine() -> None:
    """Those of which nothing is held are those that the engine lets pass."""
    client = aiolock.connect(MemoryServer())
    for passing in (client.latch("a", 1), client.event("a"), client.barrier("a", 2)):
        assert passing._lock._policy.passes
        assert passing._lock._policy.kind in _labels.PASSES
    once, periodic = client.once("a", remember=60), client.periodic("a", every=60)
    for held in (client.election("a"), once, periodic):
        assert not held._lock._policy.passes
    limit = client.rate_limit("a", 1, per=1)
    assert limit._policy.passes
    assert limit._policy.kind in _labels.PASSES
    assert len(_labels.PASSES) == 4


def test_families_new_for_a_known_family_returns_the_same(scraped: Scraped) -> None:
    """Each family is made once, whoever asks first."""
    request = LockRequest("lock", "a:1", "a", "client", 1, "")
    families = scraped.observer._metrics.families  # type: ignore[attr-defined]
    unknown, within = threading.Barrier(2), threading.Barrier(2)
    make, made = families._make, list[object]()

    class NotYet(dict[tuple[str, str], Any]):
        """What both threads look into before either of them makes anything."""

        def get(self, *key: Any) -> Any:
            found = super().get(*key)
            unknown.wait(10)
            return found

    def makes(*which: str) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            within.wait(0.1)  # for the other, which is not to come here
        made.append(make(*which))
        return made[-1]

    families._made, families._make = NotYet(), makes
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(families.of, [request, request])
    assert first is second
    assert made == [first]


WITHOUT = """
import sys
sys.modules["{module}"] = None  # as if it were not installed
import aiolock
try:
    aiolock.observe.{extra}()
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("extra", "module"),
    [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")],
)
def test_observer_without_its_extra_raises_import_error_naming_it(extra: str, module: str) -> None:
    """The error says what to install."""
    command = [sys.executable, "-c", WITHOUT.format(module=module, extra=extra)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.strip().endswith(f": pip install 'aiolock-redis[{extra}]'"), said


def test_import_of_aiolock_loads_no_metrics_library() -> None:
    """Who does not want them does not pay for them, or need them."""
    source = "import sys, aiolock; print(*(name for name, here in sys.modules.items() if here))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert not {"prometheus_client", "opentelemetry"} & imported
