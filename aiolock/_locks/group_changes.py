"""The changes of a group, as `Group.watch` gives them: the differences between two views of it."""

from __future__ import annotations

from dataclasses import dataclass

from aiolock._locks.group_view import Member, View


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A change of a group, or the whole of it: what `Group.watch` gives."""

    epoch: int
    """The number of this view of the group; it never falls. Changes that were found together have
    the same."""
    members: tuple[Member, ...]
    """All members after this change, in the order in which they joined."""


@dataclass(frozen=True, slots=True)
class Members(GroupChange):
    """The group as it is: what comes first."""


@dataclass(frozen=True, slots=True)
class Joined(GroupChange):
    """A member has joined."""

    member: Member
    """The new member."""


@dataclass(frozen=True, slots=True)
class Left(GroupChange):
    """A member has left: by itself, or because it is dead or was removed."""

    member: Member
    """The member as it was last seen."""


@dataclass(frozen=True, slots=True)
class Changed(GroupChange):
    """A member has changed its data."""

    member: Member
    """The member as it is now."""
    before: Member
    """The member as it was."""


class Changes:
    """The differences between views, in turn."""

    def __init__(self) -> None:
        self._seen: dict[str, Member] | None = None

    def of(self, view: View) -> list[GroupChange]:
        """What has changed since the view before; at first, the whole."""
        now = {member.id: member for member in view.members}
        before, self._seen = self._seen, now
        if before is None:
            return [Members(view.epoch, view.members)]
        found, epoch, members = list[GroupChange](), view.epoch, dict(before)

        def after() -> tuple[Member, ...]:
            return tuple(sorted(members.values(), key=lambda each: (each.since, each.id)))

        for member in before.values():
            again = now.get(member.id)
            if again is None or again.since != member.since:  # it may have joined once more
                del members[member.id]
                found.append(Left(epoch, after(), member))
        for member in view.members:
            known = members.get(member.id)
            members[member.id] = member
            if known is None:
                found.append(Joined(epoch, after(), member))
            elif (known.data, known.shards) != (member.data, member.shards):
                found.append(Changed(epoch, after(), member, known))
        return found
