"""Tests to inherit: derive from one, say how your part is made, and pytest runs the laws on it.

They need pytest and hypothesis: `pip install "mlx-speculate[testing]"`.
"""

try:
    import hypothesis as _hypothesis  # noqa: F401
    import pytest as _pytest  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"speculate.testing.suites needs pytest and hypothesis, and {error.name} is missing: "
        'pip install "mlx-speculate[testing]". The laws in speculate.testing.laws need neither.'
    ) from error

from speculate.testing.suites.caches import CacheTests as CacheTests
from speculate.testing.suites.heads import HeadTests as HeadTests
from speculate.testing.suites.models import ModelTests as ModelTests
from speculate.testing.suites.proposers import ProposerTests as ProposerTests
from speculate.testing.suites.samplers import SamplerTests as SamplerTests
from speculate.testing.suites.strategies import StrategyTests as StrategyTests
