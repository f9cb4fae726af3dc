"""How often an interval misses the truth and a field is named wrongly, over many simulated norms and adds."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from blockaudit.trace.identify import Solved, identify_norm, identify_residual
from tests.trace.simulated_norms import Case, random_case, random_rows

CASES = 1000
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def tally(found: dict[str, Solved], case: Case, count: Counter[str]) -> None:
    """Counts what is covered, missed, unknown and wrong."""
    epsilon, truth = found["epsilon"], case.truth["epsilon"]
    assert isinstance(truth, float)
    if epsilon.interval is not None:
        count["covered" if epsilon.interval[0] <= truth <= epsilon.interval[1] else "missed"] += 1
    for field, value in case.truth.items():
        named = found[field].value
        if named is None:
            count[f"unknown {field}"] += 1
        elif field == "epsilon":
            # The value is a name for an interval no wider than a factor of one and a half.
            count["wrong"] += not truth / 1.5 <= named + 1e-15 <= truth * 1.5 + 2e-15
        else:
            count["wrong"] += named != value


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("asked", [False, True], ids=["recorded", "asked"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_intervals_cover_the_truth(dtype: torch.dtype, asked: bool) -> None:
    torch.set_num_threads(1)
    count: Counter[str] = Counter()
    for seed in range(CASES // (3 if asked else 1)):
        rng = random.Random(seed)
        x = random_rows(rng, dtype)
        case = random_case(rng, x.shape[-1], dtype)
        ask = case.run if asked else None
        solved = identify_norm(x, case.run(x), case.weight, case.bias, dtype=dtype, ask=ask, seed=seed)
        tally({s.field: s for s in solved}, case, count)
        count["cases"] += 1
    print(f"{dtype} {'asked' if asked else 'recorded'}: {dict(sorted(count.items()))}")
    assert count["missed"] <= 0.01 * (count["covered"] + count["missed"])
    assert count["wrong"] <= 0.01 * count["cases"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_coefficients_are_covered(dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    count: Counter[str] = Counter()
    for seed in range(CASES):
        rng = random.Random(seed)
        x = random_rows(rng, dtype, 2**14)
        u = (rng.choice([1.0, 0.1, 0.01]) * x.std() * torch.randn(x.shape)).to(dtype)
        a, b = rng.choice([1.0, 2.0, 0.0, rng.uniform(0.1, 3)]), rng.choice([1.0, rng.uniform(0.1, 3), -1.0])
        scaled = x if a == 1.0 else x * a
        for solved in identify_residual(x, {"u": u}, scaled + b * u, dtype=dtype):
            truth = {"shortcut.scale": a, "u.scale": b}.get(solved.field)
            if truth is None:
                continue
            count["unknown"] += solved.value is None
            if solved.interval is not None:
                count["covered" if solved.interval[0] <= truth <= solved.interval[1] else "missed"] += 1
            elif solved.value is not None:
                count["wrong"] += 1
    print(f"{dtype}: {dict(sorted(count.items()))}")
    assert count["missed"] <= 0.01 * (count["covered"] + count["missed"])
    assert count["wrong"] == 0
