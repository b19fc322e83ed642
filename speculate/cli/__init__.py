"""The `speculate` command: one module a subcommand, and private modules that they share."""
