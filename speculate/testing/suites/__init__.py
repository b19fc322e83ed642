"""Tests to inherit: derive from one, say how your part is made, and pytest runs the laws on it.

They need pytest and hypothesis: `pip install "mlx-speculate[testing]"`.
"""

from importlib.util import find_spec

if find_spec("pytest") is None or find_spec("hypothesis") is None:
    raise ImportError(
        "speculate.testing.suites needs pytest and hypothesis, and one of them is missing: "
        'pip install "mlx-speculate[testing]". The laws in speculate.testing.laws need neither.'
    )

from speculate.testing.suites.caches import CacheTests as CacheTests
from speculate.testing.suites.heads import HeadTests as HeadTests
from speculate.testing.suites.models import ModelTests as ModelTests
from speculate.testing.suites.proposers import ProposerTests as ProposerTests
from speculate.testing.suites.samplers import SamplerTests as SamplerTests
from speculate.testing.suites.strategies import StrategyTests as StrategyTests
