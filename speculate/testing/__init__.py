"""Conformance kit: a suite of contracts for each protocol, `assert_lossless`, and fakes.

A suite is a class to derive from; its `test_...` methods are the contracts. pytest collects
them, and each can be called without a test runner.
"""

from speculate.testing.caches import CacheTests as CacheTests
from speculate.testing.contract import ContractError as ContractError
from speculate.testing.fakes import ManualClock as ManualClock
from speculate.testing.fakes import RecordingObserver as RecordingObserver
from speculate.testing.fakes import ScheduledStrategy as ScheduledStrategy
from speculate.testing.fakes import ScriptedProposer as ScriptedProposer
from speculate.testing.heads import HeadTests as HeadTests
from speculate.testing.lossless import assert_lossless as assert_lossless
from speculate.testing.models import ModelTests as ModelTests
from speculate.testing.proposers import ProposerTests as ProposerTests
from speculate.testing.samplers import SamplerTests as SamplerTests
from speculate.testing.strategies import StrategyTests as StrategyTests
from speculate.testing.toy import ToyHead as ToyHead
from speculate.testing.toy import ToyModel as ToyModel
