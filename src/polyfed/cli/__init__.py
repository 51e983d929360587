"""The command line: one small module per group of commands. Nothing heavy is imported before it is needed."""
