"""What the judge of accuracy lets pass, and what it does not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cudnn.testing.numeric import assert_as_accurate  # noqa: E402


def test_sums_that_cancel_are_judged_by_what_they_add():
    """1000 - 999.99: rounding leaves an error of some eps of 1000, which is thousands of eps of what is left. Wrong sums stay wrong."""
    exact, terms = torch.tensor([0.01], dtype=torch.float64), torch.tensor([1414.2])
    rounded, wrong = (exact + error for error in (1e-4, 0.5))
    assert_as_accurate("sum", rounded.float(), exact, exact.float(), terms=terms)
    for result, size in ((rounded, None), (wrong, terms)):
        with pytest.raises(AssertionError, match="sum: relative error"):
            assert_as_accurate("sum", result.float(), exact, exact.float(), terms=size)


def test_terms_change_nothing_where_nothing_cancels():
    exact = torch.randn(4096, dtype=torch.float64)
    result = exact.float() * (1 + 3e-6)
    with pytest.raises(AssertionError, match="relative error"):
        assert_as_accurate("sum", result, exact, exact.float(), terms=exact.abs())
