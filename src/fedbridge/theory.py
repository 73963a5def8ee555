"""Delta errors: the public path of ``fedbridge.core.theory``, and the same module."""

import sys

from fedbridge.core import theory
from fedbridge.core.theory import *  # noqa: F403

sys.modules[__name__] = theory
