"""The dashboard: a local web page that lists the runs in a folder, plots them live and stops them.

`server` answers requests, `access_guard` decides which requests are allowed, `run_index` watches the run folders.
The dashboard only reads run folders.
"""
