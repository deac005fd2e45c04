"""The kinds of faults, and the plan that a seed makes of them.

The plan consists of lanes: the server's, and for each worker one for its process and one for its
links. Within a lane one fault follows another, lanes go on side by side. Each lane is drawn from
`random.Random` of the seed and the lane's name, from a shuffled deck, so that all kinds occur.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.proof.chaos.choices import EVERYTHING, OF_A_QUORUM, WITHOUT_CLOCK


class Kind(NamedTuple):
    """How long a fault lasts, in seconds, and how long its effects may last after it."""

    least: float
    most: float
    settle: float
    """Seconds to notice, dial and ask again."""


PROCESS: Final = {
    "kill": Kind(0.0, 1.0, 0.0),  # until it is replaced; who is dead is not disturbed
    "stop": Kind(0.1, 3.0, 0.5),
}

SERVER_LINKS: Final = {
    "cut": Kind(0.0, 0.0, 2.0),
    "cut_commands": Kind(0.0, 0.0, 2.0),
    "cut_subscription": Kind(0.0, 0.0, 2.0),
    "deafen": Kind(0.1, 3.0, 2.0),
    "deafen_subscription": Kind(0.1, 3.0, 2.0),
    "delay": Kind(0.5, 3.0, 1.0),
    "drop": Kind(0.1, 2.0, 16.0),  # dead without a word: noticed within 15 seconds
    "kill_commands": Kind(0.0, 0.0, 2.0),
    "kill_subscription": Kind(0.0, 0.0, 2.0),
    "late": Kind(0.05, 1.0, 2.0),  # cut, and what was held up is delivered up to 9 seconds later
    "refuse": Kind(0.1, 2.0, 2.5),
    "swallow": Kind(0.5, 0.5, 2.0),
    "tear": Kind(0.5, 0.5, 2.0),
}

REDIS_SERVER: Final = {
    "flush": Kind(0.0, 0.0, 0.0),  # who is queued again has its place again
    "flush_scripts": Kind(0.0, 0.0, 0.0),
    "freeze": Kind(0.1, 2.5, 1.0),
    "freeze_long": Kind(4.5, 5.5, 2.5),  # longer than a command waits for its reply
    "kill_connections": Kind(0.0, 0.0, 2.0),
    "kill_subscriptions": Kind(0.0, 0.0, 2.0),
    "load": Kind(0.3, 2.0, 3.0),  # restarted with what it has saved, which takes so long: LOADING
    "pause": Kind(0.1, 2.0, 1.0),
    "pause_writes": Kind(0.1, 2.0, 1.0),
    "restart": Kind(0.0, 1.5, 3.0),
    "refuse_unreplicated": Kind(0.5, 2.0, 3.0),  # NOREPLICAS
    "refuse_unsaved": Kind(0.5, 2.0, 2.0),  # MISCONF
}

DIRECT_LINKS: Final = {
    # They go to whatever server Sentinel or the cluster says, past any proxy.
    kind: SERVER_LINKS[kind]
    for kind in ("kill_commands", "kill_subscription")
}

SENTINEL_SERVER: Final = {
    "crash_master": Kind(0.0, 1.0, 3.0),  # and it comes back as a replica
    "fail_over": Kind(0.0, 0.0, 3.0),  # by hand: the old master lives, and becomes a replica
    "freeze_master": Kind(0.0, 1.5, 3.0),  # until it is replaced, and for so long after that
    "hang_sentinel": Kind(0.5, 4.0, 0.0),
    "kill_connections": REDIS_SERVER["kill_connections"],
    "kill_sentinel": Kind(0.0, 2.0, 0.0),
    "restart_replica": Kind(0.0, 1.0, 0.0),
}

SENTINEL_ALL_SERVER: Final = {
    # No longer: a Sentinel that has stood still for two seconds does nothing for thirty (TILT).
    **SENTINEL_SERVER,
    "crash_unwatched": Kind(0.5, 1.5, 3.0),  # of the master, of which no Sentinel knows for so long
    "hang_sentinels": Kind(0.5, 1.5, 3.0),  # all of them: whoever has no connection gets none
    "kill_sentinels": Kind(0.0, 2.0, 3.0),
}

CLUSTER_SERVER: Final = {
    "crash_master": Kind(0.0, 1.0, 3.0),
    "fail_over": Kind(0.0, 0.0, 3.0),
    "freeze": Kind(0.1, 1.2, 1.5),
    "kill_connections": REDIS_SERVER["kill_connections"],
    "move_slot": Kind(0.0, 1.0, 1.0),
    "restart_replica": Kind(0.0, 1.0, 0.0),
}

SQLITE_LINKS: Final = {
    "unlisted": Kind(0.0, 0.0, 2.5),  # its file is removed: it passes for dead, until it looks
    "unrung": Kind(0.0, 0.0, 2.5),  # its socket is
}

SQLITE_SERVER: Final = {
    "checkpoint": Kind(0.0, 0.0, 0.0),
    "forget": Kind(0.0, 0.0, 0.0),  # all rows are deleted
    "locked": Kind(0.1, 2.5, 1.0),  # by somebody else
    "locked_long": Kind(4.5, 5.5, 2.5),  # longer than anybody waits for it
    "read": Kind(0.5, 2.0, 0.0),  # somebody else reads in one transaction
    "vacuum": Kind(0.0, 0.0, 0.0),
}


POSTGRES_SERVER: Final = {
    "analyze": Kind(0.0, 0.0, 0.0),
    "crash": Kind(0.0, 1.0, 3.0),  # as after a power cut of the server; and then recovered
    "forget": Kind(0.0, 0.0, 0.0),
    "freeze": Kind(0.1, 2.5, 1.0),
    "freeze_long": Kind(4.5, 5.5, 2.5),
    "restart_fast": Kind(0.0, 1.0, 3.0),
    "rows_locked": Kind(0.1, 1.5, 1.0),  # the grants' rows, by somebody else
    "snapshot": Kind(0.5, 2.0, 0.0),  # somebody else reads in one transaction
    "terminate": Kind(0.0, 0.0, 2.0),  # all connections
    "vacuum": Kind(0.0, 0.0, 1.0),
}

MYSQL_SERVER: Final = {
    "crash": Kind(0.0, 1.0, 3.0),
    "forget": Kind(0.0, 0.0, 0.0),
    "freeze": Kind(0.1, 2.5, 1.0),
    "freeze_long": Kind(4.5, 5.5, 2.5),
    "kill_queries": Kind(0.0, 0.0, 2.0),  # whatever is being carried out, sleeps too
    "optimize": Kind(0.0, 0.0, 1.0),  # the tables are made anew
    "read_only": Kind(0.5, 2.0, 2.0),
    "restart_fast": Kind(0.0, 1.0, 3.0),
    "rows_locked": Kind(0.1, 1.5, 1.0),  # the names' rows, by somebody else
    "rows_locked_long": Kind(2.5, 5.5, 2.5),  # longer than the server lets anybody wait for them
    "snapshot": Kind(0.5, 2.0, 0.0),
    "terminate": Kind(0.0, 0.0, 2.0),
    "terminate_subscriptions": Kind(0.0, 0.0, 2.0),
}

ETCD_LINKS: Final = {
    kind: SERVER_LINKS[kind]
    for kind in ("cut", "deafen", "delay", "drop", "late", "refuse", "swallow", "tear")
}

ETCD_SERVER: Final = {
    # A cluster without a leader makes another one within two seconds, on a busy machine.
    "compact": Kind(0.0, 0.0, 0.5),  # all history is forgotten: a watch cannot go on from there
    "cut_off_follower": Kind(0.5, 3.0, 3.0),  # from the other members, not from clients
    "cut_off_leader": Kind(0.5, 4.0, 4.0),
    "defragment": Kind(0.0, 0.0, 2.0),  # no member answers meanwhile
    "freeze_follower": Kind(0.5, 5.0, 3.0),
    "freeze_leader": Kind(0.5, 5.0, 4.0),
    "freeze_most": Kind(0.3, 2.5, 4.0),  # two of three: no majority is left
    "kill_follower": Kind(0.0, 2.0, 3.0),
    "kill_leader": Kind(0.0, 2.0, 4.0),
    "move_leader": Kind(0.0, 0.0, 3.0),
    "restart": Kind(0.0, 1.0, 5.0),  # all of them, killed
    # It stands still for most of the time, in short pieces, as on a disk that does.
    "stutter_leader": Kind(0.5, 4.0, 4.0),
}

QUORUM_LONGEST: Final = 2.0
"""Seconds: no ttl is longer, and a server that may have forgotten does not vote for so long."""

QUORUM_SERVER: Final = {
    # Faults of one server, or of as many as may fail; until they vote again.
    "crash": Kind(0.0, 1.5, QUORUM_LONGEST + 4.0),  # as it is empty, not before this is long ago
    "crash_saved": Kind(0.0, 1.5, QUORUM_LONGEST + 3.0),
    "cut_off": Kind(0.1, 2.0, 2.5),
    "deafen": SERVER_LINKS["deafen"],
    "delay": SERVER_LINKS["delay"],
    "flush": Kind(0.0, 0.0, QUORUM_LONGEST + 2.0),
    "flush_scripts": REDIS_SERVER["flush_scripts"],
    "freeze": REDIS_SERVER["freeze"],
    "freeze_long": REDIS_SERVER["freeze_long"],
    "kill_connections": REDIS_SERVER["kill_connections"],
    "kill_subscriptions": REDIS_SERVER["kill_subscriptions"],
    "pause": REDIS_SERVER["pause"],
    "pause_writes": REDIS_SERVER["pause_writes"],
    "refuse_unreplicated": REDIS_SERVER["refuse_unreplicated"],
    "refuse_unsaved": REDIS_SERVER["refuse_unsaved"],
    # Faults of more servers than that.
    "crash_most": Kind(0.0, 1.5, QUORUM_LONGEST + 4.0),
    "cut_off_most": Kind(0.1, 2.0, 2.5),
    "freeze_most": Kind(0.1, 2.5, 1.0),
}


class Attack(NamedTuple):
    """The faults that a target can have."""

    links: dict[str, Kind]
    """Faults of the links between one process and the store."""
    server: dict[str, Kind]
    grace: float = 0.0
    """Seconds after a start of the server in which no process counts as dead."""
    keeps: bool = False
    """Whether a stopped process may keep others waiting, because it has rows locked."""
    servers: int = 0
    """How many servers vote; 0 without a quorum."""
    offers: frozenset[str] = EVERYTHING
    """The kinds that workers use: see `tests.proof.chaos.choices`."""
    claim: float = 2.0
    """Seconds of the longest lease, and of the longest claim: what a stuck process costs."""
    presence: float = 0.0
    """Seconds for which a process that is dead may pass for alive, and a claim then lasts."""
    lingers: float = 0.05
    """Seconds for which others may find a lease alive that its client takes for ended."""
    skew: float = 0.0
    """Seconds by which the clock of one process is ahead, and that of another behind."""


ATTACKS: Final = {
    "redis": Attack(SERVER_LINKS, REDIS_SERVER),
    "sentinel": Attack(DIRECT_LINKS, SENTINEL_SERVER),
    "sentinel-all": Attack(DIRECT_LINKS, SENTINEL_ALL_SERVER),
    "cluster": Attack(DIRECT_LINKS, CLUSTER_SERVER),
    "sqlite": Attack(SQLITE_LINKS, SQLITE_SERVER),
    "postgres": Attack(SERVER_LINKS, POSTGRES_SERVER, grace=6.0),
    "mysql": Attack(SERVER_LINKS, MYSQL_SERVER, grace=6.0, keeps=True),
    # The presence of a process ends five seconds after it, and etcd takes up to a second for that.
    "etcd": Attack(ETCD_LINKS, ETCD_SERVER, claim=7.0, presence=7.0, lingers=3.0),
    "etcd-skewed": Attack(
        *(ETCD_LINKS, ETCD_SERVER),
        claim=7.0,
        presence=7.0,
        lingers=3.0,
        skew=3600.0,
        offers=WITHOUT_CLOCK,
    ),
    "quorum": Attack(SERVER_LINKS, QUORUM_SERVER, servers=3, offers=OF_A_QUORUM),
    "quorum5": Attack(SERVER_LINKS, QUORUM_SERVER, servers=5, offers=OF_A_QUORUM),
}
"""The attacks by the name of the target."""

STARTS: Final = {"crash", "restart_fast"}
"""Faults after which the server has just been started."""

ELECTIONS: Final = {
    *("cut_off_leader", "freeze_leader", "freeze_most", "kill_leader", "move_leader", "restart"),
    "stutter_leader",
}
"""Faults after which another leader has all leases begin anew, as etcd's does."""

FORGETS: Final = {"crash", "crash_most", "crash_saved", "flush"}
"""Faults after which a voting server does not know its votes."""

RESTORES: Final = {"crash_saved"}
"""Faults after which it knows its votes as of the last save, and nothing later."""

REFUSALS: Final = {
    *("load", "refuse_unreplicated", "refuse_unsaved", "locked_long"),
    *("read_only", "rows_locked_long"),
}
"""Faults in which the server answers, but refuses all for a while."""

HARMLESS: Final = {"hang_sentinel", "kill_sentinel", "restart_replica"}
"""Faults that disturb no client, while the master stays where it is."""

BLINDING: Final = {"hang_sentinels", "kill_sentinels"}
"""Faults that disturb only clients that lose a connection meanwhile, and get no address."""

LATE_WITHIN: Final = 9.0
"""Seconds within which data held up on a cut link reaches the server."""

UNPLANNED: Final = {
    "slow": Kind(0.0, 0.0, 0.5),  # the server or the proxies did not run, on a busy machine
}

NO_MAJORITY: Final = "no_majority"
"""The fault, for a process, of too many servers being broken at a time."""

KINDS: Final = PROCESS | UNPLANNED | {NO_MAJORITY: Kind(0.0, 1.0, 0.0)}
for _attack in ATTACKS.values():
    KINDS.update(_attack.links | _attack.server)

_ALL_LINKS: Final = 0.1
"""How often a fault of one process's links hits those to all voting servers."""

_EVERY: Final = {"process": 12.0, "links": 10.0, "server": 6.0}
"""The mean pause between two faults of a lane, in seconds."""
_BREATH: Final = 0.5
"""The shortest one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the plan: when, what, to whom (a slot, or "all"), and for how long."""

    at: float
    kind: str
    target: str
    seconds: float
    dice: int
    """The seed for further decisions when the fault is carried out."""


def plan(seed: str, seconds: float, slots: list[str], attack: Attack) -> dict[str, list[Fault]]:
    """The faults of each lane, for a run of so many seconds."""
    lanes = {"server": _lane(seed, "server", "all", seconds, attack.server)}
    for slot in slots:
        lanes[f"process {slot}"] = _lane(seed, "process", slot, seconds, PROCESS)
        lanes[f"links {slot}"] = _lane(seed, "links", slot, seconds, attack.links)
    return lanes


def _lane(seed: str, lane: str, target: str, seconds: float, kinds: dict[str, Kind]) -> list[Fault]:
    rng = random.Random(f"{seed} {lane} {target}")
    faults: list[Fault] = []
    deck: list[str] = []
    at = rng.uniform(0, _EVERY[lane])
    while True:
        if not deck:
            # Late data must find a state that it can harm, which it seldom does.
            deck = [*kinds, *(("late", "late") if "late" in kinds else ())]
            rng.shuffle(deck)
        kind = deck.pop()
        lasts = rng.uniform(kinds[kind].least, kinds[kind].most)
        if at + lasts > seconds:
            return faults
        # A link that is dropped late would only make the end a long wait.
        if kind != "drop" or at + lasts + kinds[kind].settle < seconds:
            faults.append(Fault(at, kind, target, lasts, rng.getrandbits(32)))
        at += lasts + _BREATH + rng.expovariate(1 / (_EVERY[lane] - _BREATH))


def hit(fault: Fault, servers: int) -> tuple[int, ...]:
    """The servers that a fault hits, of so many that vote: a minority, but for some faults."""
    rng = random.Random(f"{fault.dice} servers")
    minority = (servers - 1) // 2
    if fault.kind in PROCESS or not servers:
        return ()
    if fault.kind.endswith("_most"):
        number = rng.randint(minority + 1, servers)
    elif fault.target != "all" and rng.random() < _ALL_LINKS:
        number = servers
    else:
        number = rng.randint(1, minority)
    return tuple(sorted(rng.sample(range(servers), number)))
