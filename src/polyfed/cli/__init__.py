"""The command line: one module per command, their output (`output`, `progress`) and the entry point (`app`).

Heavy modules such as torch are imported inside the commands, so that `polyfed --help` answers at once.
"""
