"""The origin of the figures: the machine and the versions."""

from __future__ import annotations

import datetime as dt
import os
import platform
from importlib import metadata
from pathlib import Path

from benchmarks.redis_server import RedisServer


def _processor() -> str:
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def environment(server: RedisServer) -> dict[str, str]:
    """The machine, the versions, the day."""
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "CPU": f"{_processor()}, {os.cpu_count()} cores",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Redis": server.version,
        "aiolock": metadata.version("aiolock-redis"),
        "redis-py": metadata.version("redis"),
        "hiredis": metadata.version("hiredis"),
        "uvloop": metadata.version("uvloop"),
    }


def described(where: dict[str, str]) -> str:
    """`environment` as a line of text."""
    return ", ".join(f"{what} {value}" for what, value in where.items())
