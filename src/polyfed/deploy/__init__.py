"""Real federations on Flower: the coordinator (`polyfed serve`), a site (`polyfed join`), and what they are made of.

Processes of a coordinator: `serve` itself, which is the ServerApp of the Flower run (the Experiment runs in it); a
SuperLink on loopback (`--isolation process`, so it starts no code by itself); the gateway, which lets only the fleet
interface out. Processes of a site: `join` itself, which holds model, data and state; a SuperNode on loopback
(`--isolation process`). `join` takes the SuperNode's tasks and answers them itself: the app that a run brings is
compared with the installed one by its hash and is never unpacked, installed or run.
"""
