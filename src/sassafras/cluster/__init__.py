"""One search on many GPUs and hosts: an island for every worker, on Ray's actors."""

from __future__ import annotations

from .pool import Pool

__all__ = ["Pool"]
