"""What a caller can ask of the choice of tokens."""

from __future__ import annotations

from typing import final

import attrs

from speculate.errors import OptionError


@final
@attrs.frozen(kw_only=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 takes the most likely token.
    """

    temperature: float = 0.0

    def __attrs_post_init__(self) -> None:
        if self.temperature < 0:
            raise OptionError(f"temperature must not be negative, got {self.temperature}")
        if self.temperature > 0:
            raise OptionError(
                "sampling with a temperature is not supported yet; use temperature=0 (greedy)"
            )
