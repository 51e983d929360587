"""Engines: they only answer "run this step on these clients with these payloads"."""
