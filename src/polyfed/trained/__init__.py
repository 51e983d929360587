"""Trained models: load them from run folders, predict with them, and export them to standard files."""
