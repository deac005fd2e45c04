"""Proxies between the members of a cluster, so that one member can be cut off from the others.

A cluster's members dial each other, in both directions. So the connections of a member that is cut
off are refused at the others, too: the process that has dialled is known by the port that it has
dialled from. Only Linux tells.
"""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.etcds import EtcdNode, EtcdServer
from tests.support.proxy import Link, Proxy

_LOOKS = 5
"""How often the table of connections is read for one that is not in it: while others come and go,
a reading may leave out some."""


class _PeerProxy(Proxy):
    """The way of the other members to one of them."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.shut: EtcdNode | None = None
        """The member that does not get through."""

    def _take(self) -> None:
        before = {*self.links}
        super()._take()
        if self.shut is not None:
            self._cut_off([link for link in self.links if link not in before])

    def shut_out(self, node: EtcdNode | None) -> None:
        """Let this member not get through any more; None: all of them do."""
        self._take()
        self.shut = node
        if node is not None:
            self._cut_off(self.links)

    def _cut_off(self, links: list[Link]) -> None:
        assert self.shut is not None
        unknown = list(links)
        for _ in range(_LOOKS):
            inodes, sockets = _inodes(), _sockets_of(self.shut.pid)
            for link in tuple(unknown):
                inode = inodes.get(_ports(link))
                if inode is not None:
                    unknown.remove(link)
                if inode in sockets:
                    link.cut()
            if not unknown:
                return
        for link in unknown:  # whoever has dialled has gone
            link.cut()


class Partition:
    """All ways between the members of a cluster; made before they are started."""

    def __init__(self, cluster: EtcdServer) -> None:
        self._cluster = cluster
        self._proxies = {node: _PeerProxy(node.peer_port) for node in cluster.nodes}

    async def open(self, stack: AsyncExitStack) -> None:
        """Have the members come to each other by proxies from now on."""
        for node, proxy in self._proxies.items():
            await stack.enter_async_context(proxy)
            node.reached_at = proxy.port

    def cut_off(self, cut: EtcdNode) -> None:
        """Nothing passes between this member and the others until `heal`."""
        for node, proxy in self._proxies.items():
            if node is cut:
                proxy.refuse()
                proxy.cut()
            else:
                proxy.shut_out(cut)

    def heal(self) -> None:
        """Let all of them through again."""
        for proxy in self._proxies.values():
            proxy.shut_out(None)
            proxy.accept()


def _ports(link: Link) -> tuple[int, int] | None:
    """Those of whoever has dialled, and of the proxy; None if the link is closed."""
    try:
        return link._ends[0].getpeername()[1], link._ends[0].getsockname()[1]
    except OSError:
        return None


def _inodes() -> dict[tuple[int, int] | None, str]:
    """By local and remote port: the socket."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {(_port(row[1]), _port(row[2])): row[9] for row in rows if row[3] == "01"}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _sockets_of(pid: int) -> set[str]:
    """The sockets of a process."""
    found = set[str]()
    with contextlib.suppress(OSError):  # it is not running
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found
