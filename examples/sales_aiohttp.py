"""A stock in a database, in aiohttp: a lock that is held until the transaction has ended.

    export AIOLOCK_URL=redis://localhost DATABASE_URL=postgresql+psycopg://localhost/shop
    PYTHONPATH=examples python -m aiohttp.web sales_aiohttp:make

The session of a request belongs to a middleware, which commits when the handler has returned. The
lock is held for longer than that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import aiolock
from aiolock import Lease
from aiolock.integrations.aiohttp import locked, setup

URL = os.environ.get("DATABASE_URL", "postgresql+psycopg://localhost/shop")
sessions = async_sessionmaker(create_async_engine(URL))
SESSION = web.RequestKey("session", AsyncSession)


class Base(DeclarativeBase):
    """The tables."""


class Stock(Base):
    """How many of an item are left."""

    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


@web.middleware
async def transaction(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A session for each request: commits when the handler returns, or rolls back if it fails."""
    async with sessions.begin() as session:
        request[SESSION] = session
        return await handler(request)


@locked("stock:{item}")
async def sell(request: web.Request, _: Lease) -> web.Response:
    """Sell one."""
    stock = await request[SESSION].get(Stock, request.match_info["item"])
    if stock is None or stock.amount == 0:
        raise web.HTTPConflict(text="sold out")
    stock.amount -= 1
    return web.json_response({"left": stock.amount}, status=201)


def make(_: Sequence[str] = ()) -> web.Application:
    """The application."""
    app = web.Application(middlewares=[transaction])
    app.router.add_post("/items/{item}/sales", sell)
    setup(app, aiolock.connect(os.environ.get("AIOLOCK_URL", "redis://localhost")))
    return app
