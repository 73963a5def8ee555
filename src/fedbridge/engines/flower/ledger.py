"""How much privacy a site has spent: over all runs, and however often it was asked.

Every protected message is one more look at the same rows, whoever asks for it and why: a round
that is played again, another run, a coordinator that wants to average the noise away. So the site
itself counts, in a file that no message can reset, and may stop answering at a budget.
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING

from filelock import FileLock

from fedbridge.engines.flower.privacy import composed_epsilon
from fedbridge.errors import FedbridgeError
from fedbridge.files import to_json, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from fedbridge.engines.flower.privacy import LocalPrivacy

FORMAT = 1


class PrivacySpentError(FedbridgeError):
    """One more message would cost more privacy than the site is ready to give."""


class Ledger:
    """The protected messages of one site, by the size of their noise.

    Args:
        path: a file of the site's own, the same in every run on the same rows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def spend(self, privacy: LocalPrivacy, budget: float | None = None) -> None:
        """Write a message down before it is sent.

        Args:
            privacy: how the message is protected.
            budget: the largest epsilon that the site is ready to give; None for any.

        Raises:
            PrivacySpentError: the message would go beyond the budget; it is not counted, and must
                not be sent.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            sent = self._read()
            sent[privacy.noise] = sent.get(privacy.noise, 0) + 1
            if budget is not None:
                self._check(composed_epsilon(sent, privacy.delta), budget)
            entries = [{"noise": noise, "messages": count} for noise, count in sorted(sent.items())]
            write_atomically(self.path, to_json({"format": FORMAT, "sent": entries}))
            os.chmod(self.path, 0o600)  # noqa: PTH101

    @property
    def messages(self) -> int:
        """How many have been sent so far."""
        return sum(self._read().values())

    def epsilon(self, delta: float) -> float:
        """What they have cost together."""
        return composed_epsilon(self._read(), delta)

    def _check(self, cost: float, budget: float) -> None:
        if not cost <= budget:
            raise PrivacySpentError(
                f"Expected to stay within an epsilon of {budget:g}, but one more message would "
                f"make it {cost:.3g}: stop here, or let the site raise its budget."
            )

    def _read(self) -> dict[float, int]:
        try:
            content = json.loads(self.path.read_bytes())
            sent = {float(entry["noise"]): entry["messages"] for entry in content["sent"]}
            sound = content["format"] == FORMAT and all(
                math.isfinite(noise) and noise >= 0 and type(count) is int and count >= 0
                for noise, count in sent.items()
            )
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise FedbridgeError(
                f"Expected the count of protected messages in {str(self.path)!r}, but it cannot be "
                f"read: restore the file, since counting anew would understate what was told."
            )
        return sent
