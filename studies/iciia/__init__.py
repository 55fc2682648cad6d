"""Tables and figures of the ICIIA paper, computed on a run's features.

    heterogeneity   Fig. 6: accuracy by the heterogeneity of clients, next to methods that are given labels
    partitions      Figs. 7 and 8: P and N, with and without shuffling
    heads           appendix A: the number of attention heads H
    ablations       Table 4: the contribution of each ingredient
    shuffling       the ablation of shuffling alone, the ingredient that the shipped head might do without
    baselines       Table 3: against methods that are given labels on the device, and class shares, which need none
    gates           methods that keep an answer from being worse than the photo alone
    streaming       loss of causal attention and of one shared classifier, against full attention with two

A point is one training and its accuracies. Points are cached under ``RUN/studies/points``, named by a hash of all their
settings and data, so an interrupted study resumes, and studies share equal points. All points are computed in PyTorch
on stored features; every export verifies that its bundle gives the same answers.

Targets are photos of the second half of each test client's stream, the same in every point; the labelled baselines get
the labels of the first half. If several learning rates are given, each method uses the one with the best accuracy on
the validation clients with the first seed.
"""

from studies.iciia.pages import PAGES
from studies.iciia.tables import STUDIES, Axes, run_study

__all__ = ["PAGES", "STUDIES", "Axes", "run_study"]
