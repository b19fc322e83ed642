"""The checks of `speculate verify`: a model, an adapter or a proposer on the user's machine.

A `VerificationTarget` is a model with its drafters and a sequence to feed. `cases` lists the checks
that apply to it; each runs on its own and gives a `Result`. Rounding on the user's machine may
depend on the width of a block, so every difference is measured and distinguished from a mistake.
The contracts of `speculate.testing` are for tests and assume exact arithmetic.
"""

from speculate.verify.checks import Case as Case
from speculate.verify.checks import cases as cases
from speculate.verify.checks import check_block_forward as check_block_forward
from speculate.verify.checks import check_prefill_forward as check_prefill_forward
from speculate.verify.checks import check_rewind as check_rewind
from speculate.verify.checks import check_tails as check_tails
from speculate.verify.decoding_checks import check_acceptance as check_acceptance
from speculate.verify.decoding_checks import check_adaptive_sequence as check_adaptive_sequence
from speculate.verify.decoding_checks import check_seed as check_seed
from speculate.verify.decoding_checks import check_sequence as check_sequence
from speculate.verify.decoding_checks import check_stock_sequence as check_stock_sequence
from speculate.verify.rounding import Difference as Difference
from speculate.verify.rounding import Result as Result
from speculate.verify.rounding import Rounding as Rounding
from speculate.verify.target import Drafter as Drafter
from speculate.verify.target import VerificationTarget as VerificationTarget
from speculate.verify.target import head_drafter as head_drafter
from speculate.verify.target import model_drafter as model_drafter
from speculate.verify.target import proposer_drafter as proposer_drafter
