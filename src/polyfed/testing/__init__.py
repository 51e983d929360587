"""The battery that every method passes; run it on a method of your own.

    from polyfed import testing

    @pytest.mark.parametrize("name", testing.checks())
    def test_my_method(name):
        testing.run_check(name, MyMethod)

A method is excused from a check by name and with a reason: `excused = {"one_client": "why"}` in its class.
"""

from polyfed.testing.battery import Excused, checks, run_check

__all__ = ["checks", "run_check", "Excused"]
