"""Run folders: where a run writes its config, events, checkpoints and result, and how they are read.

`folder` has the files of a run, `records` the typed records of rounds and results, `checkpoint` the state to resume
from. `records`, `folder`, `discovery` and `config_text` import no torch.
"""
