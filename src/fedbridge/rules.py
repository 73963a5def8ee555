"""Aggregation rules by name: the public path of ``fedbridge.core.rules``, and the same module."""

import sys

from fedbridge.core import rules
from fedbridge.core.rules import *  # noqa: F403

sys.modules[__name__] = rules
