"""Prototype health: the figures, and the words."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from carl.methods.health import (
    Finding,
    PrototypeHealth,
    Remedies,
    count_duplicates,
    examine,
    measure_health,
    rank_me,
    usual_remedies,
    verdict,
)

REMEDIES = Remedies(few="raise it", unused="ask for fewer", same="train longer", flat_loss="ln K")


def examined(health: PrototypeHealth, epochs_done: int = 5) -> list[Finding]:
    return examine(health, epochs_done, REMEDIES)


def one_hot_logs(choices: list[int], prototypes: int, sureness: float = 50.0) -> Tensor:
    logits = torch.zeros(len(choices), prototypes)
    logits[torch.arange(len(choices)), torch.tensor(choices)] = sureness
    return logits.log_softmax(1)


def test_sure_and_balanced_assignments_are_healthy():
    log_p = one_hot_logs([i % 10 for i in range(100)], 10)
    health = measure_health(log_p, log_p, torch.eye(10))
    assert (health.used, health.covering, health.dead, health.duplicates) == (10, 10, 0, 0)
    assert health.mean_entropy == pytest.approx(math.log(10), abs=1e-4)
    assert health.entropy == pytest.approx(0, abs=1e-4)
    assert health.agreement == 1.0
    assert examined(health, 10) == []
    assert verdict([]) == "healthy"


def test_all_images_in_three_of_a_hundred_prototypes_is_said_in_words_with_a_remedy():
    log_p = one_hot_logs([i % 3 for i in range(300)], 100)
    findings = examined(measure_health(log_p, log_p))
    assert findings[0].sentence(since=2) == "collapsed: all images go to 3 of 100 prototypes since epoch 2: raise it"
    assert verdict(findings) == "collapsed"


def test_the_same_soft_assignment_for_every_image_is_said_to_be_stuck_where_the_method_knows_at_what():
    generator = torch.Generator().manual_seed(0)
    log_p = (0.01 * torch.randn(400, 50, generator=generator)).log_softmax(1)
    log_q = (0.01 * torch.randn(400, 50, generator=generator)).log_softmax(1)
    health = measure_health(log_p, log_q)
    findings = examined(health)
    assert [f.kind for f in findings] == ["constant assignment"]
    assert "loss is stuck near ln K" in findings[0].text
    assert "stuck" not in examine(health, 5, usual_remedies(50))[0].text
    assert verdict(examined(health, epochs_done=1)) == "too early to judge"


def test_flat_assignments_that_share_their_highest_prototype_are_stuck_and_not_in_one_prototype():
    logits = 0.001 * torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    logits[:, 7] += 0.05
    findings = examined(measure_health(logits.log_softmax(1), logits.log_softmax(1)))
    assert [f.kind for f in findings] == ["constant assignment"]


def test_the_same_assignment_for_every_image_over_half_of_the_prototypes_is_a_collapse_too():
    logits = 0.01 * torch.randn(400, 100, generator=torch.Generator().manual_seed(0))
    logits[:, :50] += 8.0
    health = measure_health(logits.log_softmax(1), logits.log_softmax(1))
    assert health.covering > 5
    findings = examined(health)
    assert [f.kind for f in findings] == ["constant assignment"]
    assert "ln K" not in findings[0].text
    assert verdict(findings) == "collapsed"


def test_a_fifth_of_the_prototypes_in_use_is_a_partial_collapse():
    log_p = one_hot_logs([i % 20 for i in range(1000)], 100)
    findings = examined(measure_health(log_p, log_p))
    assert verdict(findings) == "partly collapsed"
    assert "20 of 100" in findings[0].text


def test_prototypes_that_no_image_wants_are_dead_and_those_missed_by_a_small_sample_are_not():
    logits = torch.zeros(4, 8)
    logits[:, 7] = -50  # wanted by none
    logits[torch.arange(4), torch.arange(4)] = 1.0
    health = measure_health(logits.log_softmax(1), logits.log_softmax(1))
    assert (health.used, health.dead) == (4, 1)


def test_twins_are_counted_against_earlier_ones_only():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 64, generator=generator)
    twins = rows[:2] * 3 + 0.01 * torch.randn(2, 64, generator=generator)
    assert count_duplicates(torch.cat([rows, twins])) == 2
    assert count_duplicates(-rows) == 0
    assert count_duplicates(torch.ones(2000, 4)) == 1999
    health = measure_health(*[one_hot_logs(list(range(7)), 7)] * 2, torch.cat([rows, twins]))
    assert health.duplicates == 2
    findings = examined(health)
    assert [f.kind for f in findings] == ["near-duplicates"]
    assert findings[0].text.startswith(f"{verdict(findings)}: 2 of 7 prototypes are nearly the same")


def test_rank_me_counts_directions_of_equal_strength():
    orthogonal = torch.linalg.qr(torch.randn(64, 8, generator=torch.Generator().manual_seed(0))).Q
    assert rank_me(orthogonal) == pytest.approx(8, rel=1e-3)
    assert rank_me(torch.ones(50, 16)) == pytest.approx(1, rel=1e-3)
