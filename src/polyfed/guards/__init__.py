"""What stands around a client's replies: clipping, noise and the account of what they cost.

`settings` reads what a config asks for, `privacy` protects at the client, `account` and `spent` say what it cost.
"""
