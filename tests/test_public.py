"""The public surface: what there is, that it is described, and what an import costs."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from importlib import resources
from types import ModuleType
from typing import Any

import pytest

import aiolock
import aiolock.async_library
import aiolock.copying
import aiolock.entering
import aiolock.errors
import aiolock.naming
import aiolock.options
import aiolock.signatures
import aiolock.store
import aiolock.stores.memory
import aiolock.sync.transactions
import aiolock.testing
import aiolock.validation
from aiolock._engine.policy import Policy

WRAPPERS = {
    aiolock.async_library: ["check_asyncio", "check_not_trio", "in_trio"],
    aiolock.copying: ["CopiedAsItself", "Uncopyable"],
    aiolock.entering: [
        *("AnyEnterable", "AsyncEnterable", "Entered", "Entry", "Inside", "SyncEnterable"),
        "current_task",
    ],
    aiolock.naming: [
        *("checked_result", "describe_each", "describer", "family_of", "fields", "formatter"),
    ],
    aiolock.signatures: ["NoOptions", "spelled_out", "unexpected", "without_unknown"],
    aiolock.sync.transactions: [
        *("check_released", "ignore_transactions", "open_transaction", "refuse_in_transaction"),
    ],
    aiolock.validation: [
        *("LONGEST_LABEL", "LONGEST_NAME", "LONGEST_RESULT", "LONGEST_TTL", "MOST_PERMITS"),
        *("SHORTEST_TTL", "as_label", "checked_label", "checked_name", "checked_number"),
        *("checked_timeout", "checked_ttl", "checked_wait", "seconds", "store_url"),
    ],
}
"""What wrappers need besides the options."""
PUBLIC = [aiolock, aiolock.errors, aiolock.options, aiolock.store, aiolock.testing, *WRAPPERS]

# A change of any line of these tables is a change of the API: an entry in the changelog.
SIGNATURES = {
    "connect": (
        "(target, *, prefix='aiolock', ttl=None, label=None, observer=(), deadlock_after=10.0,"
        " replicas=None, longest_ttl=None, durable=False, answer_timeout=1.0)"
    ),
    "lock": (
        "(name, *, url=None, prefix='aiolock', ttl=None, timeout=None, renew=True, reentrant=False,"
        " max_waiters=None, max_hold=None, on_lost='cancel', min_hold=None, lock_delay=None,"
        " confirm=True, priority=0, share=None, weight=1.0, family=None)"
    ),
    "web": "(client, *, may_break=None, may_see=None, hosts=None)",
    "LockClient.id": "property",
    "LockClient.protocols": "property",
    "LockClient.open": "async (self)",
    "LockClient.aclose": "async (self)",
    "LockClient.servers": "(self)",
    "LockClient.snapshot": "async (self, pattern='*', *, kind=None)",
    "LockClient.names": "async (self, pattern='*', *, kind=None)",
    "LockClient.deadlocks": "async (self)",
    "LockClient.status": "async (self, name, *, kind='lock')",
    "LockClient.break_": "async (self, name, *, kind='lock', fence=None)",
    "LockClient.request_release": "async (self, name, *, kind='lock')",
    "LockClient.adopt": ("(self, token, *, ttl=None, max_hold=None, on_lost='cancel', label=None)"),
    "LockClient.discard": "async (self, token)",
    "LockClient.lock": (
        "(self, name, *, ttl=None, timeout=None, renew=True, reentrant=False, max_waiters=None,"
        " max_hold=None, on_lost='cancel', min_hold=None, lock_delay=None,"
        " confirm=True, priority=0, share=None, weight=1.0, family=None)"
    ),
    "LockClient.locked": (
        "(self, name, *, ttl=None, timeout=None, renew=True, reentrant=False, max_waiters=None,"
        " max_hold=None, on_lost='cancel', min_hold=None, lock_delay=None,"
        " confirm=True, priority=0, share=None, weight=1.0, family=None)"
    ),
    "LockClient.multilock": (
        "(self, *names, ttl=None, timeout=None, renew=True, max_waiters=None, max_hold=None,"
        " on_lost='cancel', family=None)"
    ),
    "LockClient.path_lock": (
        "(self, path, *, mode='exclusive', ttl=None, timeout=None, renew=True, reentrant=False,"
        " max_waiters=None, max_hold=None, on_lost='cancel', family=None)"
    ),
    "LockClient.once": "(self, name, *, remember, ttl=None, wait=True, timeout=None)",
    "LockClient.periodic": ("(self, name, *, every, min_hold=None, max_hold=None, ttl=None)"),
    "LockClient.rwlock": (
        "(self, name, *, ttl=None, timeout=None, renew=True, reentrant=False, max_waiters=None,"
        " max_hold=None, on_lost='cancel', min_hold=None, lock_delay=None, family=None)"
    ),
    "LockClient.semaphore": (
        "(self, name, limit, *, ttl=None, timeout=None, renew=True, max_waiters=None,"
        " max_hold=None, on_lost='cancel', min_hold=None, lock_delay=None, share=None, weight=1.0,"
        " family=None)"
    ),
    "LockClient.rate_limit": (
        "(self, name, limit, *, per, burst=None, timeout=None, max_waiters=None, priority=0,"
        " share=None, weight=1.0, family=None)"
    ),
    "LockClient.rate_limited": (
        "(self, name, limit, *, per, burst=None, timeout=None, max_waiters=None, priority=0,"
        " share=None, weight=1.0, family=None)"
    ),
    "LockClient.latch": (
        "(self, name, count, *, remember=86400.0, timeout=None, max_waiters=None)"
    ),
    "LockClient.event": "(self, name, *, remember=3600.0, timeout=None, max_waiters=None)",
    "LockClient.barrier": "(self, name, parties, *, timeout=None, max_waiters=None)",
    "LockClient.election": (
        "(self, name, *, ttl=None, timeout=None, max_waiters=None, max_hold=None,"
        " on_lost='cancel', lock_delay=None, family=None)"
    ),
    "LockClient.group": "(self, name, *, data=None, ttl=None, timeout=None, on_lost='cancel')",
    "LockClient.shards": "(self, name, count, *, group=None, ttl=None, settle=1.0)",
    "Lock.name": "property",
    "Lock.ttl": "property",
    "Lock.acquire": "(self, *, timeout=the lock's own, label=None)",
    "Lock.try_acquire": "(self, *, timeout=0, label=None)",
    "Lock.release": "async (self)",
    "Lock.locked": "async (self)",
    "Lock.held": "(self)",
    "Lock.status": "async (self)",
    "Lock.break_": "async (self, fence=None)",
    "Lock.request_release": "async (self)",
    "Lease.name": "property",
    "Lease.fence": "property",
    "Lease.state": "property",
    "Lease.lost": "property",
    "Lease.requested": "property",
    "Lease.remaining": "(self)",
    "Lease.release": "async (self)",
    "Lease.release_nowait": "(self)",
    "Lease.extend": "async (self, ttl)",
    "Lease.verify": "async (self)",
    "Lease.downgrade": "async (self)",
    "Lease.detach": "async (self, *, ttl=60.0, label=None)",
    "Lease.handing_on": "(self, *, ttl=60.0, label=None)",
    "RWLock.name": "property",
    "RWLock.read": "(self)",
    "RWLock.write": "(self)",
    "RWLock.status": "async (self)",
    "RWLock.break_": "async (self, fence=None)",
    "RateLimit.name": "property",
    "RateLimit.interval": "property",
    "RateLimit.burst": "property",
    "RateLimit.acquire": "(self, n=1, *, timeout=the lock's own, label=None)",
    "RateLimit.try_acquire": "async (self, n=1, *, timeout=0, label=None)",
    "RateLimit.resize": "async (self, limit, *, per, burst=None)",
    "RateLimit.status": "async (self)",
    "Semaphore.name": "property",
    "Semaphore.limit": "property",
    "Semaphore.acquire": "(self, permits=1, *, timeout=the lock's own, label=None)",
    "Semaphore.try_acquire": "(self, permits=1, *, timeout=0, label=None)",
    "Semaphore.resize": "async (self, limit)",
    "Semaphore.status": "async (self)",
    "Semaphore.break_": "async (self, fence=None)",
    "Event.name": "property",
    "Event.set": "async (self)",
    "Event.is_set": "async (self)",
    "Event.wait": "async (self, timeout=the lock's own)",
    "Event.status": "async (self)",
    "Latch.name": "property",
    "Latch.count": "property",
    "Latch.count_down": "async (self, token=None)",
    "Latch.missing": "async (self)",
    "Latch.wait": "async (self, timeout=the lock's own)",
    "Latch.status": "async (self)",
    "Barrier.name": "property",
    "Barrier.parties": "property",
    "Barrier.wait": "async (self, timeout=the lock's own)",
    "Barrier.status": "async (self)",
    "Election.name": "property",
    "Election.campaign": "(self, value='', *, timeout=the lock's own)",
    "Election.leader": "async (self)",
    "Election.observe": "(self)",
    "Election.request_resign": "async (self)",
    "Election.break_": "async (self, fence=None)",
    "Term.lease": "property",
    "Term.value": "property",
    "Term.fence": "property",
    "Term.state": "property",
    "Term.lost": "property",
    "Term.requested": "property",
    "Term.resign": "async (self)",
    "Leader": "(value, fence, client, host, pid)",
    "MultiLock.names": "property",
    "MultiLock.acquire": "async (self, *, timeout=the lock's own, label=None)",
    "MultiLock.try_acquire": "async (self, *, timeout=0, label=None)",
    "MultiLease.leases": "property",
    "MultiLease.state": "property",
    "MultiLease.lost": "property",
    "MultiLease.remaining": "(self)",
    "MultiLease.release": "async (self)",
    "MultiLease.extend": "async (self, ttl)",
    "MultiLease.verify": "async (self)",
    "MultiLease.detach": "(self, **_)",  # these two raise `TypeError`
    "MultiLease.handing_on": "(self, **_)",
    "Group.name": "property",
    "Group.ttl": "property",
    "Group.members": "async (self)",
    "Group.watch": "(self)",
    "Group.status": "async (self)",
    "Group.break_": "async (self, fence=None)",
    "Membership.name": "property",
    "Membership.id": "property",
    "Membership.data": "property",
    "Membership.epoch": "property",
    "Membership.lease": "property",
    "Membership.fence": "property",
    "Membership.state": "property",
    "Membership.lost": "property",
    "Membership.members": "async (self)",
    "Membership.watch": "(self)",
    "Membership.update": "async (self, data)",
    "Member": "(id, data, since, fence, client, host, pid, shards=<factory>)",
    "GroupChange": "(epoch, members)",
    "Members": "(epoch, members)",
    "Joined": "(epoch, members, member)",
    "Left": "(epoch, members, member)",
    "Changed": "(epoch, members, member, before)",
    "Shards.name": "property",
    "Shards.count": "property",
    "Shards.shard_of": "(self, key)",
    "Shards.run": "async (self, body, *, grace=None)",
    "Shard.index": "property",
    "Shard.name": "property",
    "Shard.lease": "property",
    "Shard.fence": "property",
    "Shard.state": "property",
    "Shard.lost": "property",
    "Shard.giving_up": "property",
    "Shard.release": "async (self)",
    "PathLock.name": "property",
    "PathLock.nodes": "property",
    "PathLock.mode": "property",
    "PathLock.acquire": "async (self, *, timeout=the lock's own, label=None)",
    "PathLock.try_acquire": "async (self, *, timeout=0, label=None)",
    "PathLock.locked": "async (self)",
    "PathLock.status": "async (self)",
    "PathLock.break_": "async (self, fence=None)",
    "PathLease.name": "property",
    "PathLease.fence": "property",
    "Once.name": "property",
    "Once.outcome": "async (self, work, *, token=None)",
    "Once.status": "async (self)",
    "Once.break_": "async (self, fence=None)",
    "Outcome": "(result, first)",
    "Periodic.name": "property",
    "Periodic.every": "property",
    "Periodic.status": "async (self)",
    "Periodic.break_": "async (self, fence=None)",
    "Periodic.run": "async (self, job)",
    "Participant": (
        "(client, host, pid, since, place, fence=0, remaining=0.0, shared=False, permits=0, seq=0,"
        " alive=True, label='', task=0, detached=False, share='', weight=1.0,"
        " below='')"
    ),
    "Status": (
        "(name, holders, waiters, closed=0.0, limit=None, kind='', now=0.0, more_holders=0,"
        " interval=None)"
    ),
    "Verdict": "(ok, retry_after, remaining, reset_after)",
    "ServerStatus": "(address, state, not_voting=0.0, clock=None, votes=0, error='')",
}
ERRORS: dict[str, type[Exception] | None] = {
    "AcquireTimeout": TimeoutError,
    "LeaseLost": None,
    "LimitMismatch": ValueError,
    "TokenSpent": None,
    "NotHeld": RuntimeError,
    "WouldDeadlock": RuntimeError,
    "QueueFull": None,
    "StoreError": ConnectionError,
    "QuorumMismatch": None,
    "ResultGone": None,
    "Unsupported": NotImplementedError,
    "ClientClosed": RuntimeError,
}
DESCRIBED = [
    "AcquireContext",
    "Adoption",
    "Blocked",
    "Deadlock",
    "LeaseState",
    "LeaseToken",
    "LockRequest",
    "Observer",
    "Store",
    "TokensContext",
]
"""Of which the members are agreed on elsewhere."""
NAMES = sorted({*(name.partition(".")[0] for name in SIGNATURES), *ERRORS, "LockError", *DESCRIBED})
OPTIONS = {
    "BarrierOptions": "barrier",
    "ConnectOptions": "connect",
    "ElectionOptions": "election",
    "EventOptions": "event",
    "GroupOptions": "group",
    "LatchOptions": "latch",
    "LockOptions": "lock",
    "MultiLockOptions": "multilock",
    "OnceOptions": "once",
    "PathLockOptions": "path_lock",
    "PeriodicOptions": "periodic",
    "RWLockOptions": "rwlock",
    "RateLimitOptions": "rate_limit",
    "SemaphoreOptions": "semaphore",
}
"""The method that takes what each class has."""
TYPES = ["DEFAULT", "Default", "LeaseOptions", "Mode", "OnLost", "OnMembershipLost", "Seconds"]
"""The other names of that module."""


def test_all_of_the_package_is_the_agreed_list() -> None:
    """`__all__` is what was agreed on, in order, and all of it is there."""
    assert vars(aiolock)["__all__"] == NAMES
    for name in NAMES:
        assert getattr(aiolock, name).__name__ == name


def test_package_has_no_public_name_beside_all() -> None:
    """What has no underscore and is no module is in `__all__`."""
    public = {
        name
        for name, value in vars(aiolock).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(NAMES) - {"web"}  # which is imported when it is used


def test_option_types_match_the_parameters_of_their_methods() -> None:
    """Each class has what one method takes, of the same types, and a lock's policy its defaults."""
    assert sorted(aiolock.options.__all__) == sorted([*OPTIONS, *TYPES])
    for name, method in OPTIONS.items():
        options = typing.get_type_hints(getattr(aiolock.options, name))
        owner: Any = aiolock if method == "connect" else aiolock.LockClient
        called = getattr(owner, method)
        parameters = inspect.signature(called).parameters.values()
        shown = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        assert options.keys() == {*shown}
        spelled = {} if method == "connect" else typing.get_type_hints(called)
        assert {each: spelled[each] for each in options if each in spelled} == {
            each: options[each] for each in options if each in spelled
        }, name
    policy = {each.name: each.default for each in dataclasses.fields(Policy)}
    defaults = {
        p.name: p.default for p in inspect.signature(aiolock.LockClient.lock).parameters.values()
    }
    of_lock = [name for name in typing.get_type_hints(aiolock.options.LockOptions) if name != "ttl"]
    assert {name: defaults[name] for name in of_lock} == {name: policy[name] for name in of_lock}


def test_wrapper_modules_export_the_agreed_names() -> None:
    """Each of these modules has what was agreed on."""
    for module, names in WRAPPERS.items():
        assert module.__all__ == names
        assert names == sorted(names)


def signature(thing: Any) -> str:
    """How it is called, without types."""
    if isinstance(thing, property):
        return "property"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(thing).parameters.values()
    ]
    text = str(inspect.Signature(parameters))
    return f"async {text}" if inspect.iscoroutinefunction(thing) else text


def test_signatures_of_the_public_api_are_as_agreed() -> None:
    """Names, order, kinds and defaults of all arguments are what was agreed on."""
    found = dict[str, str]()
    for name in SIGNATURES:
        first, *parts = name.split(".")
        thing: Any = getattr(aiolock, first)
        for part in parts:
            thing = inspect.getattr_static(thing, part)
        found[name] = signature(thing)
    assert found == SIGNATURES


def test_classes_have_no_public_member_beside_the_agreed() -> None:
    """None of these classes has a public method or property beside those."""
    classes = {name.partition(".")[0] for name in SIGNATURES if "." in name}
    for kind in (getattr(aiolock, name) for name in classes):
        ours = {
            name.partition(".")[2] for name in SIGNATURES if name.startswith(f"{kind.__name__}.")
        }
        public = {name for name in vars(kind) if not name.startswith("_") and not name.isupper()}
        assert public == ours - {""}


def test_errors_inherit_from_lock_error_and_the_agreed_builtin() -> None:
    """Each error is a LockError and the builtin that code without aiolock would catch."""
    tree = aiolock.errors.__doc__
    assert tree is not None
    kinds = {
        name: kind
        for name, kind in vars(aiolock.errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert kinds.keys() == ERRORS.keys() | {"LockError"}
    for name, builtin in ERRORS.items():
        kind = kinds[name]
        assert kind is getattr(aiolock, name)
        of_store = name in {"QuorumMismatch", "ResultGone"}
        parent = aiolock.StoreError if of_store else aiolock.LockError
        assert kind.__bases__ == (parent, *([builtin] if builtin else []))
        line = next(line for line in tree.splitlines() if f"─ {name} " in line)
        assert (f"({builtin.__name__})" in line) if builtin else ("(" not in line)
    assert aiolock.LockError.__bases__ == (Exception,)


def test_lease_states_are_strings_of_their_names() -> None:
    """The states of a lease are strings of their own names."""
    assert [str(state) for state in aiolock.LeaseState] == [
        *("held", "at_risk", "lost", "released", "detached")
    ]
    assert issubclass(aiolock.LeaseState, str)


def public_things() -> Iterator[tuple[str, Any]]:
    """Each module, class, function, method and property that a user may see."""
    for module in PUBLIC:
        yield module.__name__, module
        names = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        for name in names:
            thing = getattr(module, name)
            ours = str(getattr(thing, "__module__", "")).startswith("aiolock")
            if not ours or not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            yield f"{module.__name__}.{name}", thing
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                if not member.startswith("_") and (
                    inspect.isfunction(value) or isinstance(value, property | classmethod)
                ):
                    yield f"{module.__name__}.{name}.{member}", value
    yield "MemoryServer", aiolock.stores.memory.MemoryServer


THINGS = list(public_things())


@pytest.mark.one_loop
@pytest.mark.parametrize(("name", "thing"), [pytest.param(*each, id=each[0]) for each in THINGS])
def test_public_things_have_a_docstring_that_begins_with_a_sentence(name: str, thing: Any) -> None:
    """Everything public has a docstring that begins with a sentence."""
    doc = inspect.getdoc(thing)
    assert doc, f"{name} has no docstring"
    # What dataclasses, named tuples and enums make up for themselves does not count.
    assert not doc.startswith((f"{name.rpartition('.')[2]}(", "An enumeration")), doc
    assert re.match(r"[A-Z`0-9].*?[.:](\s|$)", doc, re.DOTALL), doc


def test_annotations_of_public_functions_can_be_resolved() -> None:
    """What inspects signatures at run time, as FastAPI does, can resolve every type."""
    for name, thing in THINGS:
        # connect() speaks of a driver that need not be installed.
        if inspect.isfunction(thing) and name != "aiolock.connect":
            typing.get_type_hints(thing)


def test_version_equals_that_of_the_distribution() -> None:
    """The version is the distribution's."""
    assert importlib.metadata.version("aiolock-redis") == aiolock.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?(a|b|rc|dev)\d+)?", aiolock.__version__)


def test_package_has_a_py_typed_marker() -> None:
    """Type checkers are told that the package is typed."""
    assert resources.files("aiolock").joinpath("py.typed").is_file()


def python(source: str) -> str:
    """What a fresh Python prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return done.stdout.strip()


def test_import_and_a_memory_lock_load_no_driver() -> None:
    """Neither importing aiolock nor a lock in memory loads a driver or a test tool."""
    assert (
        python(
            "import asyncio, sys, aiolock\n"
            "async def main():\n"
            "    async with aiolock.connect('memory://') as client, client.lock('a'):\n"
            "        pass\n"
            "asyncio.run(main())\n"
            "unwanted = {'redis', 'hiredis', 'fakeredis', 'pytest', 'aiolock.stores.redis'}\n"
            "unwanted |= {'fastapi', 'starlette', 'aiohttp', 'litestar', 'quart', 'django'}\n"
            "unwanted |= {'arq', 'saq', 'taskiq', 'celery', 'apscheduler', 'faststream'}\n"
            "unwanted |= {'procrastinate'}\n"
            "print(sorted(unwanted & sys.modules.keys()))"
        )
        == "[]"
    )


FRAMEWORKS: dict[str, dict[str, str | None]] = {
    "aiohttp": {
        "KEY": None,
        "client_of": "(request)",
        "idempotent": "(*, application, remember, who, required=False)",
        "locked": "(template, *, query=(), scope='request', send_timeout=30.0, **options)",
        "rate_limited": "(name, limit, *, who=None, **options)",
        "setup": "(app, client)",
    },
    "django": {
        "IdempotencyMiddleware": "(get_response)",
        "client": "async ()",
        "close": "async ()",
        "hold_until_commit": "(lock, *, using=None)",
        "ignore_transactions": "()",
        "locked": "(template, **options)",
        "rate_limited": "(name, limit, *, who=None, **options)",
        "sync_client": "()",
        "with_locks": "(application)",
    },
    "fastapi": {
        "Client": None,
        "Idempotent": "(key, lease)",
        "RESPONSES": None,
        "client_of": "(connection)",
        "idempotent": "(*, application, remember, who, required=False)",
        "locked": "(template, *, query=(), scope='request', send_timeout=30.0, **options)",
        "rate_limited": "(name, limit, *, who=None, **options)",
        "setup": "(app, client)",
    },
    "litestar": {
        "Locks": "(client)",
        "client_of": "(request)",
        "locked": "(template, *, scope='request', send_timeout=30.0, **options)",
        "rate_limited": "(name, limit, *, who=None, **options)",
    },
    "quart": {
        "current_client": "()",
        "locked": "(template, *, scope='request', send_timeout=30.0, **options)",
        "rate_limited": "(name, limit, *, who=None, **options)",
        "setup": "(app, client)",
    },
    "starlette": {
        "client_of": "(connection)",
        "idempotent": "(*, application, remember, who, required=False)",
        "locked": "(template, *, query=(), scope='request', send_timeout=30.0, **options)",
        "rate_limited": "(name, limit, *, who=None, **options)",
        "setup": "(app, client)",
    },
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_web_integrations_have_the_agreed_names_and_signatures(framework: str) -> None:
    """Each module has what was agreed on, with docstrings; an extra is called like it."""
    module = importlib.import_module(f"aiolock.integrations.{framework}")
    assert sorted(module.__all__) == sorted(FRAMEWORKS[framework])
    for name, agreed in FRAMEWORKS[framework].items():
        if agreed is not None:
            thing = getattr(module, name)
            assert signature(thing) == agreed
            assert re.match(r"[A-Z`].*?[.:](\s|$)", inspect.getdoc(thing) or "", re.DOTALL), name
    extras = importlib.metadata.metadata("aiolock-redis").get_all("Provides-Extra") or []
    assert framework in extras


DECORATORS = {
    "locked": "(self, name, **options)",
    "limited": "(self, name, limit, **options)",
    "once": "(self, name, *, remember, timeout=5.0, ttl=None)",
    "adopted": "(self, *, ttl=None, max_hold=None, on_lost='cancel')",
    "current_lease": "(self)",
}
HANDED = "*, ttl=60.0, label=None, **"
HANDS = {
    "arq": f"async (lease, redis, function, *args, {HANDED[3:]}kwargs)",
    "celery": f"(lease, task, *args, {HANDED[3:]}kwargs)",
    "faststream": f"async (lease, publish, *args, {HANDED[3:-2]}headers=None, **kwargs)",
    "procrastinate": f"async (lease, task, {HANDED}task_kwargs)",
    "saq": f"async (lease, queue, job_or_func, {HANDED}kwargs)",
    "taskiq": f"async (lease, task, *args, {HANDED[3:]}kwargs)",
}
HOOKS = {"startup": "async (self, ctx)", "shutdown": "async (self, ctx)"}
TASK_FRAMEWORKS: dict[str, dict[str, dict[str, str]]] = {
    "arq": {"Locks(client, *, retry_after=5.0)": DECORATORS | HOOKS},
    "apscheduler": {"SharedExecutor(client, *, remember=3600.0)": {}},
    "celery": {"Locks(client, *, retry_after=5.0)": DECORATORS},
    "faststream": {"Locks(client, *, retry_after=5.0)": DECORATORS},
    "procrastinate": {"Locks(client, *, retry_after=5.0)": DECORATORS | {"retry": "(self, own=0)"}},
    "saq": {"Locks(client, *, retry_after=5.0)": DECORATORS | HOOKS},
    "taskiq": {"Locks(client, *, retry_after=5.0, schedule_source=None)": DECORATORS},
}


@pytest.mark.parametrize("framework", TASK_FRAMEWORKS)
def test_task_integrations_have_the_agreed_names_and_signatures(framework: str) -> None:
    """Each module has what was agreed on, with docstrings; an extra is called like it."""
    module = importlib.import_module(f"aiolock.integrations.{framework}")
    (name,) = set(module.__all__) - {"hand", "LeaseMiddleware"}
    assert ("hand" in module.__all__) == (framework in HANDS)
    if framework in HANDS:
        assert signature(module.hand) == HANDS[framework]
        assert (inspect.getdoc(module.hand) or "").count(":param ") >= 2
    kind = getattr(module, name)
    ((made, methods),) = TASK_FRAMEWORKS[framework].items()
    assert f"{name}{signature(kind)}" == made
    for method, agreed in methods.items():
        assert signature(getattr(kind, method)) == agreed
        assert re.match(
            r"[A-Z`].*?[.:](\s|$)", inspect.getdoc(getattr(kind, method)) or "", re.DOTALL
        )
    extras = importlib.metadata.metadata("aiolock-redis").get_all("Provides-Extra") or []
    assert framework in extras


def test_testing_import_does_not_load_pytest() -> None:
    """Whoever only wants the store that fails on purpose needs no pytest."""
    assert python("import sys, aiolock.testing\nprint('pytest' in sys.modules)") == "False"
