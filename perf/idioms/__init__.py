"""Small trainings in the idioms of public code: networks.py and regimes.py."""

from idioms import networks, regimes
from idioms.registry import PROGRAMS, STEPS, Make

__all__ = ["PROGRAMS", "STEPS", "Make", "networks", "regimes"]
