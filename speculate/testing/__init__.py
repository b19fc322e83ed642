"""What proves that a part is exact: laws, tests to inherit, and fakes; for your parts and ours."""

from speculate.testing.broken import BrokenLawError as BrokenLawError
