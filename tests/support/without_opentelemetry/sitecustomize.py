"""Hides OpenTelemetry's SDK: Python imports this at its start, in the programs that tests start.

See `_started_without_opentelemetry` in `tests.conftest`.
"""

import sys

# An import of it raises an ImportError, as if it were not installed.
sys.modules["opentelemetry.sdk"] = None  # type: ignore[assignment]
