"""The public path of ``fedbridge.flower``, as apps import it, and the same package."""

import sys

from fedbridge import flower
from fedbridge.flower import *  # noqa: F403

sys.modules[__name__] = flower
