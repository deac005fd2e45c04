"""A stock in a database, in FastAPI: a lock that is held until the transaction has ended.

    export AIOLOCK_URL=redis://localhost DATABASE_URL=postgresql+psycopg://localhost/shop
    uvicorn --app-dir examples sales_fastapi:app

The session commits when the response has been sent, as sessions of SQLAlchemy usually do in
FastAPI. The lock is held for longer than that, in whatever order the two are declared.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import aiolock
from aiolock import Lease
from aiolock.integrations.fastapi import locked, setup

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
    """A session for each request: commits when the request ends, or rolls back if it fails."""
    async with sessions.begin() as session:
        yield session


app = FastAPI()
setup(app, aiolock.connect(os.environ.get("AIOLOCK_URL", "redis://localhost")))


Session = Annotated[AsyncSession, Depends(transaction)]
Alone = Annotated[Lease, locked("stock:{item}")]


@app.post("/items/{item}/sales", status_code=201)
async def sell(item: str, session: Session, _: Alone) -> dict[str, int]:
    """Sell one."""
    stock = await session.get(Stock, item)
    if stock is None or stock.amount == 0:
        raise HTTPException(409, "sold out")
    stock.amount -= 1
    return {"left": stock.amount}
