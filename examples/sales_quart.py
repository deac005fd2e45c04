"""A stock in a database, in Quart: a lock that is held until the transaction has ended.

    export AIOLOCK_URL=redis://localhost DATABASE_URL=postgresql+psycopg://localhost/shop
    hypercorn examples/sales_quart:app

The session of a request commits in a function of Quart that runs after the view. The lock is held
for longer than that.
"""

from __future__ import annotations

import os

from quart import Quart, Response, abort, g
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import aiolock
from aiolock.integrations.quart import locked, setup

URL = os.environ.get("DATABASE_URL", "postgresql+psycopg://localhost/shop")
sessions = async_sessionmaker(create_async_engine(URL))


class Base(DeclarativeBase):
    """The tables."""


class Stock(Base):
    """How many of an item are left."""

    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


app = Quart(__name__)
setup(app, aiolock.connect(os.environ.get("AIOLOCK_URL", "redis://localhost")))


@app.before_request
async def begin() -> None:
    """A session for each request."""
    g.session = sessions()


@app.after_request
async def commit(response: Response) -> Response:
    """Keep what a request has done, unless it has failed."""
    session: AsyncSession = g.session
    if response.status_code < 400:
        await session.commit()
    return response


@app.teardown_request
async def close(_: BaseException | None) -> None:
    """Roll back what was not committed."""
    await g.session.close()


@app.post("/items/<item>/sales")
@locked("stock:{item}")
async def sell(item: str) -> tuple[dict[str, int], int]:
    """Sell one."""
    session: AsyncSession = g.session
    stock = await session.get(Stock, item)
    if stock is None or stock.amount == 0:
        abort(409, "sold out")
    stock.amount -= 1
    return {"left": stock.amount}, 201
