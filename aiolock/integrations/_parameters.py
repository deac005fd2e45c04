"""The values of a path operation of FastAPI for the fields of a lock's name.

The name must be the same for each spelling of one id, as of a `UUID` in capitals. So a field has
the value that the path operation gets, after FastAPI has validated it, and not the text in the URL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from aiolock.integrations._names import LockOf

Skip = Callable[[Dependant], bool]
"""Whether the parameters of a dependency are those of a lock itself."""


def check_values(where: str, dependant: Dependant, lock: LockOf, skip: Skip) -> None:
    """Raise `ValueError` for a field that is not one value, or a hidden one, in the operation."""
    for name in lock.fields:
        for parameter in _parameters(dependant, lock, name, skip):
            # Parameters of pydantic's version 1, which older versions of FastAPI take, have neither
            # an annotation nor a `validation_alias`.
            for kind in _classes(getattr(parameter.field_info, "annotation", None)):
                if _names(parameter, name) and _is_several(kind):
                    raise ValueError(
                        f"{where}: the lock {lock.template!r} needs {name!r}, which may be a"
                        f" {kind.__name__} there, and that is no part of a name. Declare it with"
                        " the type of one value"
                    )
                if _names(parameter, name) and _hides_its_value(kind):
                    raise ValueError(
                        f"{where}: the lock {lock.template!r} needs {name!r}, which may be a"
                        f" {kind.__name__} there: that hides its value, and all would be one lock."
                        " Declare it as a str, if logs and the store may show it; or else take the"
                        " lock in the path operation, with a name that is no secret"
                    )
                if issubclass(kind, BaseModel) and name in _names_in(kind):
                    raise ValueError(
                        f"{where}: the lock {lock.template!r} needs {name!r}, which is a field of"
                        f" the model {kind.__name__} there. Declare it as a parameter of its own"
                    )


def values_of(request: Request, lock: LockOf, skip: Skip) -> dict[str, object]:
    """The values of a lock's fields in a request; `RequestValidationError` for invalid ones.

    A field without a parameter of the path operation has the text in the URL.
    """
    values = lock.values(request.path_params, request.query_params)
    dependant = _dependant_of(request)
    errors = list[Any]()
    for name in lock.fields:
        for parameter in _parameters(dependant, lock, name, skip):
            if _names(parameter, name):
                received: Mapping[str, Any] = request.path_params
                if name in lock.query:
                    received = request.query_params
                found, wrong = request_params_to_args([parameter], received)
                errors += wrong
                values[name] = found.get(parameter.name)
                break
    if errors:
        raise RequestValidationError(errors)
    return {name: value for name, value in values.items() if value is not None}


def _dependant_of(request: Request) -> Dependant:
    """The dependant that FastAPI solves for this request."""
    route = request.scope.get("route")
    # In an included router the path has a prefix, which may have parameters of its own. Newer
    # versions of FastAPI keep that apart from the route.
    context = request.scope.get("fastapi", {}).get("effective_route_context")
    if getattr(context, "original_route", None) is route:
        route = context
    dependant = getattr(route, "dependant", None)
    if isinstance(dependant, Dependant):
        return dependant
    # Names made in another way would be other locks.
    raise RuntimeError("this version of FastAPI does not tell which path operation a request is of")


def _parameters(dependant: Dependant, lock: LockOf, name: str, skip: Skip) -> Iterator[Any]:
    """The parameters of the path operation itself, and then those of its dependencies."""
    yield from dependant.query_params if name in lock.query else dependant.path_params
    for each in dependant.dependencies:
        if not skip(each):
            yield from _parameters(each, lock, name, skip)


def _names(parameter: Any, name: str) -> bool:
    """Whether a parameter has this name in the URL."""
    other = getattr(parameter.field_info, "validation_alias", None)
    return name in (parameter.alias, other, *getattr(other, "choices", ()))


def _names_in(model: type[BaseModel]) -> set[str | None]:
    return {name for key, field in model.model_fields.items() for name in (key, field.alias)}


def _classes(annotation: Any) -> Iterator[type]:
    """The classes of which a value may be: those of ``list[int] | None`` are list and None's."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _classes(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from _classes(each)
    elif isinstance(origin or annotation, type):
        yield origin or annotation


def _is_several(kind: type) -> bool:
    return issubclass(kind, Collection | BaseModel) and not issubclass(kind, str | bytes)


def _hides_its_value(kind: type) -> bool:
    # As `SecretStr`, `SecretBytes` and `Secret` of pydantic do, of whatever version.
    return hasattr(kind, "get_secret_value")
