"""Engines run steps on clients: in this process (`serial`), in worker processes (`pool`), on Ray or over Flower.

They pass bytes and never decode a message. `fork_server` and `worker` are the pool's processes; `scheduler`
distributes tasks; `ray_*` are the Ray engine; `framing` is the wire format between engines and workers.
"""
