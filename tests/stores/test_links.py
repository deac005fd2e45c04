"""Several connections of a store, which its observers know as one link."""

from __future__ import annotations

from typing import Any, cast

from aiolock.errors import StoreError
from aiolock.protocol import Event, LinkChanged
from aiolock.stores._link_state import LinkState


class Heard:
    """Receives the events of a store, and remembers the states of its link."""

    def __init__(self) -> None:
        self.links = list[Exception | None]()

    def deliver(self, event: Event) -> None:
        assert isinstance(event, LinkChanged)
        self.links.append(event.error)


def links(*, observed: bool = True) -> tuple[LinkState, list[Exception | None]]:
    """Those of a client, and what it is told."""
    heard = Heard()
    links = LinkState(heard.deliver)
    links.observed = observed
    return links, heard.links


def causes(heard: list[Exception | None]) -> list[BaseException | None]:
    """What the driver has raised."""
    return [error and error.__cause__ for error in heard]


def test_link_state_is_down_with_the_first_and_up_with_the_last() -> None:
    """One that breaks breaks the link, and it is whole again once all are."""
    link, heard = links()
    broken = OSError("broken")
    link.down("commands", broken)
    link.down("subscription", OSError("as well"))
    link.up("commands")
    link.down("commands", OSError("again"))
    link.up("subscription")
    assert causes(heard) == [broken]
    link.up("commands")
    assert causes(heard) == [broken, None]


def test_link_state_reports_the_latest_reason_each_time() -> None:
    """The latest reason is told each time: the first may have been that somebody cut it."""
    link, heard = links()
    cut, refused, forbidden = OSError("cut"), OSError("refused"), OSError("forbidden")
    link.failing("commands", refused)  # it is up
    link.down("commands", cut)
    link.failing("commands", refused)
    link.failing("subscription", refused)  # it is up
    link.down("commands", forbidden)  # it was made, and did not serve
    link.up("commands")
    assert causes(heard) == [cut, refused, forbidden, None]


def test_link_state_reason_is_a_store_error_with_the_drivers_text() -> None:
    """With what the driver says, and whether it stays so; one that comes as such stays as it is."""
    heard = Heard()
    link = LinkState(heard.deliver, lambda reason: isinstance(reason, PermissionError))
    link.observed = True
    mine = StoreError("of another server")
    for reason in (OSError("cut"), PermissionError("forbidden"), TimeoutError(), mine):
        link.down("commands", reason)
    told = [(type(each), str(each), getattr(each, "misconfigured", None)) for each in heard.links]
    assert told == [
        (StoreError, "cut", False),
        (StoreError, "forbidden", True),
        (StoreError, "TimeoutError", False),
        (StoreError, "of another server", False),
    ]
    assert link.reason is heard.links[-1] is mine


def test_link_state_that_is_not_observed_reports_nothing() -> None:
    """What goes wrong while it is being opened, or closed, is told otherwise."""
    link, heard = links(observed=False)
    link.down("commands", OSError())
    link.up("commands")
    assert heard == []


def test_link_state_base_exception_is_reported_as_a_store_error() -> None:
    """It is told as one."""
    link, heard = links()
    link.down("commands", cast(Any, KeyboardInterrupt("x")))
    assert [type(error) for error in heard] == [StoreError]
