"""A stock in a database, in Litestar: a lock that is held until the transaction has ended.

    export AIOLOCK_URL=redis://localhost DATABASE_URL=postgresql+psycopg://localhost/shop
    uvicorn --app-dir examples sales_litestar:app

The session is a dependency, which commits when the handler has returned. The lock is held for
longer than that.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

from litestar import Litestar, post
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import aiolock
from aiolock.integrations.litestar import Locks, locked

URL = os.environ.get("DATABASE_URL", "postgresql+psycopg://localhost/shop")
sessions = async_sessionmaker(create_async_engine(URL))


class Base(DeclarativeBase):
    """The tables."""


class Stock(Base):
    """How many of an item are left."""

    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


async def transaction() -> AsyncGenerator[AsyncSession, None]:
    """A session for each request: commits when the handler ends, or rolls back if it fails."""
    async with sessions.begin() as session:
        yield session


@post("/items/{item:str}/sales", dependencies={"session": Provide(transaction)})
@locked("stock:{item}")
async def sell(item: FromPath[str], session: NamedDependency[AsyncSession]) -> dict[str, int]:
    """Sell one."""
    stock = await session.get(Stock, item)
    if stock is None or stock.amount == 0:
        raise HTTPException("sold out", status_code=409)
    stock.amount -= 1
    return {"left": stock.amount}


locks = Locks(aiolock.connect(os.environ.get("AIOLOCK_URL", "redis://localhost")))
app = Litestar([sell], plugins=[locks])
