"""What proves that a part is exact: laws, tests to inherit, and fakes; for your parts and ours.

`speculate.testing.laws` has the laws as functions, and needs no test runner.
`speculate.testing.suites` has them as tests to inherit, for pytest.
"""

from speculate.testing.broken import BrokenLawError as BrokenLawError
from speculate.testing.fakes import MadeUpClock as MadeUpClock
from speculate.testing.fakes import RecordingObserver as RecordingObserver
from speculate.testing.fakes import ScheduledStrategy as ScheduledStrategy
from speculate.testing.fakes import ScriptedProposer as ScriptedProposer
from speculate.testing.lossless import assert_lossless as assert_lossless
from speculate.testing.toy import ToyHead as ToyHead
from speculate.testing.toy import ToyModel as ToyModel
