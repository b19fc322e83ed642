"""What a part must do. Imports `mlx.core`, `attrs` and `typing_extensions`, nothing else."""

from speculate.protocols.cache import Entries as Entries
from speculate.protocols.cache import RecordsRollback as RecordsRollback
from speculate.protocols.cache import Rollbackable as Rollbackable
from speculate.protocols.cache import Trimmable as Trimmable
from speculate.protocols.model import Forward as Forward
from speculate.protocols.model import MTPHead as MTPHead
from speculate.protocols.model import SpeculativeModel as SpeculativeModel
from speculate.protocols.model import StockModel as StockModel
from speculate.protocols.proposer import Choice as Choice
from speculate.protocols.proposer import Choose as Choose
from speculate.protocols.proposer import Commit as Commit
from speculate.protocols.proposer import Draft as Draft
from speculate.protocols.proposer import Foresees as Foresees
from speculate.protocols.proposer import Hindsight as Hindsight
from speculate.protocols.proposer import Outlook as Outlook
from speculate.protocols.proposer import Proposer as Proposer
from speculate.protocols.proposer import Verdict as Verdict
from speculate.protocols.sampler import Decision as Decision
from speculate.protocols.sampler import Sampler as Sampler
from speculate.protocols.strategy import Costs as Costs
from speculate.protocols.strategy import Observer as Observer
from speculate.protocols.strategy import Plan as Plan
from speculate.protocols.strategy import Round as Round
from speculate.protocols.strategy import Strategy as Strategy
from speculate.protocols.strategy import ToleratesFailures as ToleratesFailures
from speculate.protocols.strategy import UsesCosts as UsesCosts
