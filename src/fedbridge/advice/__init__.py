"""Advice: is joining worth it, who helps, who hurts, which rule, and how sure one can be."""

from fedbridge.advice.advise import advise
from fedbridge.advice.verdict import Advice

__all__ = ["Advice", "advise"]
