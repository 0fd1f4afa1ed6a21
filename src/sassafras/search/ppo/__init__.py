"""The assembly game and an agent that plays it. Importing this loads neither torch nor gymnasium."""

from .settings import Hyperparameters
from .strategy import Ppo

__all__ = ["Hyperparameters", "Ppo"]
