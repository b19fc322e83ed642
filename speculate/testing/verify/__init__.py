"""What `speculate verify` checks, as functions: a model, an adapter or a proposer on one machine.

A `Subject` is a model with a text and whoever drafts for it. `cases` lists the checks that it
gives cause for; each is run on its own, and gives a `Result`. They are the promise on the user's
own machine, where rounding may differ from one width of a block to another: so every difference
is measured, and told from a mistake. The laws of `speculate.testing.laws` are for tests.
"""

from speculate.testing.verify.acceptance import (
    acceptance_is_the_drafters_own as acceptance_is_the_drafters_own,
)
from speculate.testing.verify.cases import Case as Case
from speculate.testing.verify.cases import cases as cases
from speculate.testing.verify.drafters import Drafter as Drafter
from speculate.testing.verify.drafters import by as by
from speculate.testing.verify.drafters import by_head as by_head
from speculate.testing.verify.drafters import by_model as by_model
from speculate.testing.verify.forwards import forward_of_a_prefill as forward_of_a_prefill
from speculate.testing.verify.forwards import forward_of_blocks as forward_of_blocks
from speculate.testing.verify.results import Difference as Difference
from speculate.testing.verify.results import Result as Result
from speculate.testing.verify.rewinds import (
    rewinds_equal_a_cold_prefill as rewinds_equal_a_cold_prefill,
)
from speculate.testing.verify.rewinds import tails_leave_no_trace as tails_leave_no_trace
from speculate.testing.verify.rounding import Rounding as Rounding
from speculate.testing.verify.seeds import seed_gives_its_text as seed_gives_its_text
from speculate.testing.verify.subject import Subject as Subject
from speculate.testing.verify.texts import text_by as text_by
from speculate.testing.verify.texts import text_by_all as text_by_all
from speculate.testing.verify.texts import text_by_mlx_lm as text_by_mlx_lm
