"""Defaults of load tables that a command shows in its help, before it needs PySpark."""

from __future__ import annotations

from typing import Final

COST_PER_GB: Final = 0.02
"""Dollars for a GB (10^9 bytes) between racks: between its zones AWS charges 0.01 at either end."""
