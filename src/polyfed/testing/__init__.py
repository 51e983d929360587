"""Checks that every method passes. Run them on a method of your own:

    from polyfed import testing

    @pytest.mark.parametrize("name", testing.checks())
    def test_my_method(name):
        testing.run_check(name, MyMethod)

A method can skip a check that does not apply, with a reason: `skipped_checks = {"one_client": "why"}` in its class.

`battery` lists the checks, which are in `*_checks`. They use toy federations, engine wrappers and the round loop of
real runs (`rounds`).
"""

from polyfed.testing.battery import CheckSkipped, checks, run_check
from polyfed.testing.toy_federation import SampleKind

__all__ = ["checks", "run_check", "CheckSkipped", "SampleKind"]
