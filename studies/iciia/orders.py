"""The orders that ICIIA's paper prints in its tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

from studies.comparisons import Order

ORIGINAL, ICIIA_B, ICIIA_T = "original", "ICIIA-B", "ICIIA-T"
FINE_TUNING, PROMPT_TUNING = "fine-tuning", "prompt tuning"
NO_ATTENTION, NO_PROJECTION = "ICIIA-B - attention", "ICIIA-T - projection"
NO_SHUFFLING = "ICIIA-T - shuffling"

BASELINES: tuple[Order, ...] = (
    *((block, other, "Table 3") for block in (ICIIA_B, ICIIA_T) for other in (ORIGINAL, FINE_TUNING, PROMPT_TUNING)),
    (FINE_TUNING, ORIGINAL, "Table 3"),
    (PROMPT_TUNING, ORIGINAL, "Table 3"),
    (ICIIA_B, ICIIA_T, "Table 3, but for two networks"),
)
ABLATIONS: tuple[Order, ...] = (
    (ICIIA_B, NO_ATTENTION, "Table 4"),
    (ICIIA_T, NO_PROJECTION, "Table 4"),
    (ICIIA_T, NO_SHUFFLING, "Table 4"),
)
CHOSEN_HEADS = 4  # appendix A: 1, 2, 4 and 8 were tried


def heads(tried: Sequence[int]) -> list[Order]:
    """Compare the chosen number of attention heads with all others.

    There is no order if the chosen number was not tried.
    """
    others = [other for other in tried if other != CHOSEN_HEADS] if CHOSEN_HEADS in tried else []
    return [(f"H={CHOSEN_HEADS}", f"H={other}", "appendix A") for other in others]


def partitions(layers: int, tried: Sequence[int], width: int, tiny: int) -> list[Order]:
    """Return the orders of Figs. 7 and 8.

    Fig. 7: accuracy falls with P, and is above the original backbone's until ``tiny``. Fig. 8: shuffling helps.
    """
    names = {p: f"N={layers}, P={p}" for p in sorted(tried)}
    found: list[Order] = []
    if tiny in names:
        found.append((names[tiny], ORIGINAL, "Fig. 7"))
        if min(names) < tiny:
            found.append((names[min(names)], names[tiny], "Fig. 7"))
        if width in names and width != tiny:
            found.append((names[tiny], names[width], "Fig. 7"))
    return found + [(name, f"{name}, not shuffled", "Fig. 8") for p, name in names.items() if 1 < p < width]
