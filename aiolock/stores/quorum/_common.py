"""The collaborators that nearly all parts of a client of a quorum have in common."""

from __future__ import annotations

from typing import NamedTuple

from aiolock.stores.quorum._membership import Membership
from aiolock.stores.quorum._passes import Passes
from aiolock.stores.quorum._table import AcquisitionTable


class Common(NamedTuple):
    """The members, what goes over many acquisitions in parts, and the acquisitions."""

    membership: Membership
    passes: Passes
    table: AcquisitionTable
