"""The parameters of the methods for threads that are called like those for tasks, for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Threads(griffe.Extension):
    """What the decorator `_as_for_tasks` does, for what reads the source."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once all of the package is read, the types of options with it."""
        if pkg.name != "aiolock":
            return
        unpack = griffe.UnpackTypedDictExtension()
        tasks, methods = pkg["_client.LockClient"], pkg["sync._client.LockClient"].functions
        names = list[str]()
        for method in methods.values():
            decorators = " ".join(str(each.value) for each in method.decorators)
            if found := re.search(r"_as_for_tasks\(aiolock\.LockClient\.(\w+)\)", decorators):
                names.append(found[1])
                like = tasks[found[1]]
                unpack.on_function(func=like)  # the extensions have not been called for it yet
                method.parameters = like.parameters
                method.docstring.parsed.extend(
                    section
                    for section in like.docstring.parsed
                    if section.kind is griffe.DocstringSectionKind.parameters
                )
        assert "lock" in names, "the decorator is called otherwise now"
