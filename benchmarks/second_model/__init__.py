"""A second dependence model for schedules of SASS, for judging the validator: see `model`."""

from .model import DIFFERENT, EQUAL, IDLE, Judgement, SecondModel
from .reading import Unread

__all__ = ["DIFFERENT", "EQUAL", "IDLE", "Judgement", "SecondModel", "Unread"]
