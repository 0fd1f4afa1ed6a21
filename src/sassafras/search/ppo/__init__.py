"""The assembly game and an agent that plays it. Importing this loads neither torch nor gymnasium."""

from .settings import CUASMRL, TUNE, Preset
from .strategy import Ppo

__all__ = ["CUASMRL", "TUNE", "Ppo", "Preset"]
