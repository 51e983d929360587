"""Real federations on Flower: the coordinator (`polyfed serve`) and the sites (`polyfed join`).

Processes of a coordinator: `serve` itself, which acts as the ServerApp of the Flower run and runs the experiment; a
SuperLink on loopback, started with `--isolation process` so that it runs no apps; the gateway, which forwards only
the fleet interface. Processes of a site: `join` itself, which holds model, data and state; a SuperNode on loopback,
also with `--isolation process`. `join` takes the SuperNode's tasks and answers them. It compares the app that a run
brings with the installed one by its hash, and never unpacks, installs or runs it.

All imports of Flower are in `flower_adapter`.
"""
