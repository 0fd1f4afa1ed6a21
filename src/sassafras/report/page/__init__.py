"""`sassafras report`: one self-contained HTML page of what stores and result files hold."""

from .gather import Gathered, gather
from .write import write_report

__all__ = ["Gathered", "gather", "write_report"]
