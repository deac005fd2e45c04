"""The keys: what stands where, below the prefix of the locks."""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = 1
"""The version of what is written there: clients of different versions do not see each other."""


class Keys:
    """The keys of one prefix.

    ``n/NAME``: the document of a name. ``s/CLIENT``: the presence of a client, on a lease that ends
    soon after its process. ``h/CLIENT/SESSION``: a lease with which holds of a client live.
    ``m/CLIENT/N``: letters to a client, on the lease of its presence.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        self.root = f"{folder}{prefix}/v{PROTOCOL}/".encode()
        self.names = self.root + b"n/"
        self.presences = self.root + b"s/"
        self.holds = self.root + b"h/"
        self._letters = self.root + b"m/"

    def name(self, name: str) -> bytes:
        """The document of a name."""
        return self.names + name.encode("utf-8", "surrogatepass")

    def name_of(self, key: bytes) -> str:
        """The name whose document this is."""
        return key[len(self.names) :].decode("utf-8", "surrogatepass")

    def presence(self, client: str) -> bytes:
        """The presence of a client."""
        return self.presences + client.encode()

    def client_of(self, key: bytes) -> str:
        """The client whose presence this is."""
        return key[len(self.presences) :].decode(errors="replace")

    def hold(self, client: str, session: str) -> bytes:
        """A lease with which holds of a client live."""
        return self.holds + f"{client}/{session}".encode()

    def session_of(self, key: bytes) -> tuple[str, str]:
        """The client and the session whose lease this is."""
        client, _, session = key[len(self.holds) :].decode(errors="replace").partition("/")
        return client, session

    def letters(self, client: str) -> bytes:
        """The beginning of the keys of the letters to a client."""
        return self._letters + f"{client}/".encode()

    def letter(self, client: str, number: int) -> bytes:
        """A letter to a client: one request may have several, and writes no key twice."""
        return self.letters(client) + str(number).encode()


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with this, whose last byte is not 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
