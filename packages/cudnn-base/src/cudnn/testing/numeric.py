"""How far a result is from the reference, and how far it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# What float32 sums of a few thousand products, and an activation of them, add to the rounding of the output: in units of the result's size, for an element.
SUM_SLACK = {4: 1e-4, 8: 1e-12}
SUM_SLACK_NARROW = 1e-3


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference; NaN if the result holds one. 0 where both are empty or zero."""
    difference = (result.double() - reference.double()).norm().item()
    scale = reference.double().norm().item()
    return difference / scale if scale else difference


def assert_as_accurate(
    name: str,
    result: torch.Tensor,
    reference: torch.Tensor,
    baseline: torch.Tensor,
    factor: float = 2.0,
    slack: float | None = None,
    terms: torch.Tensor | None = None,
) -> None:
    """The result is right: its error is at most ``factor`` times that of ``baseline``, and no single element is off.

    Args:
        result: what is tested.
        reference: float32 or float64, not rounded.
        baseline: the same computation by torch in the working dtype.
        factor: how much worse than the baseline the result may be, by relative norm. The rounding of ``result``'s own dtype is always allowed, and
            eight times that for float32.
        slack: what sums may add to the rounding of an element, in units of the result's size; None is for sums in float32.
        terms: for elements that are sums of numbers of both signs, the root of the numbers' sum of squares. Where an output of few elements happens to cancel, what
            rounding leaves of it is measured by these, not by what is left.

    Raises:
        AssertionError: naming the output, the figures and the worst element.
    """
    import torch

    assert result.shape == reference.shape, f"{name}: found shape {tuple(result.shape)}, needs {tuple(reference.shape)}"
    bad = int((~torch.isfinite(result)).sum())
    assert bad == 0, f"{name}: {bad} of {result.numel()} elements are not finite"
    eps = torch.finfo(result.dtype).eps
    norm = reference.double().norm().item()
    cancelled = max(1.0, terms.double().norm().item() / norm) if terms is not None and norm else 1.0
    # A float32 result carries the order of its sums as well, by chance more or less of it than the baseline.
    floor = eps * (8 if result.dtype == torch.float32 else 1) * cancelled
    error, allowed = relative_error(result, reference), max(factor * relative_error(baseline, reference), floor)
    assert error <= allowed, f"{name}: relative error {error:.3g}, allowed {allowed:.3g} ({factor} times the baseline's, {floor:.3g} at least)"
    if not reference.numel():
        return
    size = reference.double().square().mean().sqrt() * cancelled
    if slack is None:
        slack = SUM_SLACK.get(result.dtype.itemsize, SUM_SLACK_NARROW)
    excess = (result.double() - reference.double()).abs() - (eps * reference.double().abs() + slack * size)
    worst = int(excess.argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), reference.shape))
    assert excess.max() <= 0, f"{name}: element {place} is {result[place].item():.6g}, reference {reference[place].item():.6g}"
