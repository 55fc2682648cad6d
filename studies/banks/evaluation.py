"""Compute the accuracy per task of each kind of network.

The results are the rows of every table of banks. All rows of a study are evaluated on the same tasks and photos, so
differences are paired.

Notation: K tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from refocus.cloud_train.evaluate.bank_tasks import Evaluation, Shares
from refocus.cloud_train.methods.taper.bank import Taper
from refocus.cloud_train.methods.taper.descriptions import Descriptions, describe, prompts_for
from refocus.cloud_train.methods.taper.tasks import Task, TaskPhotos
from refocus.cloud_train.methods.taper.train import personal_networks
from refocus.cloud_train.progress import track
from refocus.cloud_train.runs.taper import TAPER, TaperRun, Variant
from studies.banks.oracle import oracle_mixers, with_own_statistics


@torch.no_grad()
def by_one_network(
    run: TaperRun, evaluation: Evaluation, state: dict[str, Tensor], which: str = "small"
) -> tuple[Shares, Shares]:
    """Evaluate one network for all tasks, without and with selection."""
    network = run.trained(which)
    network.load_state_dict(state, strict=False)
    parts = torch.arange(len(evaluation.photos)).split(512)
    logits = torch.cat([network(evaluation.photos.batch(rows)) for rows in parts])
    pairs = [
        [evaluation.right(k, logits[rows], select) for select in (False, True)]
        for k, rows in enumerate(evaluation.rows)
    ]
    plain, selected = np.array(pairs).T
    return plain, selected


def by_specialists(run: TaperRun, evaluation: Evaluation, seed: int) -> Shares:
    """Evaluate stage 2 with classifier selection.

    The specialist that saw most of a task's kind of photos answers it.
    """
    specialists, layout, network = run.specialists(seed), run.layout(), run.trained()
    shards, index = run.shards(), TaskPhotos.of(run.train)
    shares = []
    for k, task in enumerate(evaluation.tasks):
        known = index.rows(task)
        best = int(np.argmax([np.isin(known, shard).sum() for shard in shards]))
        network.load_state_dict(layout.split(specialists[best]), strict=False)
        with torch.no_grad():
            shares.append(evaluation.right(k, network(evaluation.photos.batch(evaluation.rows[k])), select=True))
    return np.array(shares)


def by_taper(
    run: TaperRun,
    evaluation: Evaluation,
    seed: int,
    variant: Variant = TAPER,
    select: bool = True,
    foreign: bool = False,
) -> Shares:
    """Evaluate each task with its own condensed network.

    Args:
        run: trained banks.
        evaluation: tasks and photos.
        seed: seed of the bank.
        variant: kind of bank.
        select: whether to predict among the task's classes; otherwise among all.
        foreign: whether every task gets the network of another task, as a control.
    """
    return by_bank(run.taper(seed, variant), run.descriptions(variant.text), evaluation, select, foreign)


def by_bank(
    taper: Taper, descriptions: Descriptions, evaluation: Evaluation, select: bool = True, foreign: bool = False
) -> Shares:
    """Evaluate any bank as :func:`by_taper` does."""
    tasks = evaluation.tasks[1:] + evaluation.tasks[:1] if foreign else evaluation.tasks
    networks = personal_networks(taper, tasks, descriptions)
    shares = []
    for k, (rows, flat) in enumerate(zip(evaluation.rows, networks, strict=True)):
        with torch.no_grad():
            shares.append(evaluation.right(k, taper.answer(flat, evaluation.photos.batch(rows)), select))
    return np.array(shares)


def by_ceiling(run: TaperRun, evaluation: Evaluation, seed: int, oracle: bool) -> Shares:
    """Evaluate each task with a network fitted to its training photos.

    Args:
        run: trained banks.
        evaluation: tasks and photos.
        seed: seed of the bank.
        oracle: whether mixers are optimised on the photos and their labels; otherwise batch-norm statistics of the
            predicted mix are measured on the photos, without labels.
    """
    taper, descriptions, index = run.taper(seed), run.descriptions(), TaskPhotos.of(run.train)
    shares, what = [], f"seed {seed}: {'mixers' if oracle else 'statistics'} found on photos of each task"
    for k, task in enumerate(track(evaluation.tasks, what, len(evaluation.tasks))):
        known, rows = index.rows(task), evaluation.rows[k]
        with torch.no_grad():
            [mixers] = taper.predictor(descriptions.of(task)[None])
        if oracle:
            flat = taper.personal(oracle_mixers(taper, mixers, run.train, known, task, seed))
        else:
            flat = with_own_statistics(taper, taper.personal(mixers), run.train, known, seed)
        with torch.no_grad():
            shares.append(evaluation.right(k, taper.answer(flat, evaluation.photos.batch(rows)), select=True))
    return np.array(shares)


# Descriptions of a task of one super-category in a user's words.
FREE_WORDS = (
    "different kinds of {group}, {domain}",
    "I mostly take pictures of {group}. they are {domain}",
    "{domain} {group} and nothing else",
)


def by_free_words(run: TaperRun, evaluation: Evaluation, seed: int) -> Shares:
    """Evaluate each task with a network for a sentence without class names.

    The accuracy of a task is the mean over several sentences about it.
    """
    taper, shares = run.taper(seed), []
    for k, (task, rows) in enumerate(zip(evaluation.tasks, evaluation.rows, strict=True)):
        right = []
        for vector in _in_free_words(run, task):
            with torch.no_grad():
                [mixers] = taper.predictor(vector[None])
                logits = taper.answer(taper.personal(mixers), evaluation.photos.batch(rows))
            right.append(evaluation.right(k, logits, select=True))
        shares.append(float(np.mean(right)))
    return np.array(shares)


@torch.no_grad()
def likeness_of_free_words(run: TaperRun, evaluation: Evaluation, seeds: Sequence[int]) -> dict[str, float]:
    """Compare mixers of class names and of sentences without them (5.1).

    Returns:
        ``cosine``, the mean cosine between the mixers of a task's class names and of a sentence about it that names
        none, and ``of_others``, between the sentence's mixers and those of another task's class names.
    """
    descriptions, tasks = run.descriptions(), evaluation.tasks
    named = torch.stack([descriptions.of(task) for task in tasks])
    free = torch.stack([torch.stack(_in_free_words(run, task)) for task in tasks])  # (K, sentences, E)
    own, other = [], []
    for seed in seeds:
        predictor = run.taper(seed).predictor
        by_name = predictor(named).flatten(1)
        for sentence in free.unbind(1):
            by_words = predictor(sentence).flatten(1)
            own.append(torch.cosine_similarity(by_words, by_name).mean())
            other.append(torch.cosine_similarity(by_words, by_name.roll(-1, 0)).mean())
    return {"cosine": float(np.mean(own)), "of_others": float(np.mean(other))}


def _in_free_words(run: TaperRun, task: Task) -> list[Tensor]:
    """Return the vectors (E,) of some sentences about a task."""
    group, domain = run.words_of(task)
    sentences = [words.format(group=group, domain=domain).strip(" ,.") for words in FREE_WORDS]
    prompts = prompts_for(run.domains)
    return [torch.from_numpy(_described(text, run.config.text_encoder, prompts)) for text in sentences]


_described = lru_cache(maxsize=4096)(describe)
