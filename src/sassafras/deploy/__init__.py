"""Put tuned cubins into running programs: by load-time substitution in Triton, or cubin by cubin.

Importing this is light: neither Triton, NumPy nor the store is touched before `install`.
"""

from __future__ import annotations

from .cubins import override_file, tuned_cubin
from .engine import allow, deny, install, refresh, status, tuned, uninstall
from .records import Loaded, Status

__all__ = [
    "Loaded",
    "Status",
    "allow",
    "deny",
    "install",
    "override_file",
    "refresh",
    "status",
    "tuned",
    "tuned_cubin",
    "uninstall",
]
