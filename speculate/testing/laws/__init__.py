"""The laws of each protocol, as plain functions. They need no test runner.

`caches` and `marking`, `lending`, `grouping` are of `Rollbackable`; `models` and `adapters`,
`cutting`, `failing` of `SpeculativeModel`; `proposers` and `foreseeing` of `Proposer`.

Each raises `BrokenLawError` where its law does not hold, and returns nothing where it does.
"""
