"""The operations of Litestar's OpenAPI document, with the answers to errors of locks."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import (
    Example,
    OpenAPIHeader,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    Reference,
    Schema,
)
from litestar.openapi.spec.enums import OpenAPIType
from litestar.routes import BaseRoute, HTTPRoute

from aiolock.integrations._openapi import of_marks


def document(route: BaseRoute, mark: str, ours: Collection[type[Exception]]) -> None:
    """Let the operations of a route have the answers of what its handlers are under."""
    if not isinstance(route, HTTPRoute):
        return
    for handler in route.route_handlers:
        if added := of_marks(_marks_of(handler, mark), ours):
            described: Any = handler
            described.operation_class = functools.partial(
                _operation, handler.operation_class, _responses(added)
            )


def _marks_of(handler: HTTPRouteHandler, mark: str) -> Iterator[object]:
    guarded: Any = handler
    for function in (handler.fn, *guarded.resolve_guards()):
        yield getattr(function, mark, None)


def _operation(
    operation_class: type[Operation], added: Mapping[str, OpenAPIResponse], **fields: Any
) -> Operation:
    """An operation with these responses, beside those that it has."""
    operation = operation_class(**fields)
    operation.responses = {**(operation.responses or {})}
    for status, response in added.items():
        given = operation.responses.setdefault(status, OpenAPIResponse(response.description))
        if isinstance(given, OpenAPIResponse):
            given.content = {**(response.content or {}), **(given.content or {})}
            given.headers = {**(response.headers or {}), **(given.headers or {})} or None
    return operation


def _responses(added: Mapping[str, Mapping[str, Any]]) -> dict[str, OpenAPIResponse]:
    """The same responses, as Litestar has them."""
    return {status: _response(response) for status, response in added.items()}


def _response(response: Mapping[str, Any]) -> OpenAPIResponse:
    return OpenAPIResponse(
        response["description"],
        headers={
            name: OpenAPIHeader(_schema(header["schema"]), description=header["description"])
            for name, header in response.get("headers", {}).items()
        },
        content={
            name: OpenAPIMediaType(
                _schema(media["schema"]),
                examples={
                    key: Example(value=each["value"]) for key, each in media["examples"].items()
                },
            )
            for name, media in response["content"].items()
        },
    )


def _schema(schema: Mapping[str, Any]) -> Schema:
    properties: dict[str, Reference | Schema] = {
        name: _schema(each) for name, each in schema.get("properties", {}).items()
    }
    return Schema(
        type=OpenAPIType(schema["type"]),
        description=schema.get("description"),
        enum=schema.get("enum"),
        minimum=schema.get("minimum"),
        properties=properties or None,
        required=schema.get("required"),
    )
