"""The run folder: config, events, checkpoints, results. Nobody else writes files."""
