"""The timing model of a Hopper SM. Its results carry the word "modelled" and are never measurements."""

from .constants import H200, Constants
from .device import MODEL_VERSION, ModelDevice
from .evidence import correlation
from .simulate import Trace

__all__ = ["H200", "MODEL_VERSION", "Constants", "ModelDevice", "Trace", "correlation"]
