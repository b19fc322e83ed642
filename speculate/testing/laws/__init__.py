"""The laws of each protocol, as plain functions: one file a protocol. They need no test runner.

Each raises `BrokenLawError` where its law does not hold, and returns nothing where it does.
"""
