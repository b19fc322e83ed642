"""The `speculate` command. One module a subcommand: `add_arguments(parser)`, `run(args)`."""
