"""The tables and figures of the ICIIA paper on a run's features: many small trainings, each judged alike.

    heterogeneity   Fig. 6: how different the clients are, beside methods that are given labels
    partitions      Figs. 7 and 8: P and N, with and without shuffling
    heads           appendix A: the number of attention heads H
    ablations       Table 4: what each ingredient is worth
    shuffling       the one of these that the shipped head could do without, and is asked about
    baselines       Table 3: against methods that are given labels on the device, and class shares, which need none
    gates           what keeps an answer from being worse than the photo alone
    streaming       what looking back only, and one classifier instead of two, cost against full attention

A point is one training and what it scored. Points are kept under ``RUN/studies/points``, named by a hash of everything
that decides them, so an interrupted study resumes, and studies share what they have in common. All are
computed in PyTorch on stored features; that exported bundles say the same is proved by every export.

Targets are photos of the second half of each test client's stream, the same in every point; the labelled baselines get
the labels of the first half. Where several learning rates are given, each method takes the one that is best for it on
the validation clients with the first seed.
"""

from studies.iciia.pages import PAGES
from studies.iciia.tables import STUDIES, Axes, run_study

__all__ = ["PAGES", "STUDIES", "Axes", "run_study"]
