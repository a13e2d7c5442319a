"""Prototype health: are the prototypes in use, and does an assignment say anything about an image?"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from carl.errors import UserError
from carl.records.prototypes import DEAD, TWIN
from carl.records.verdicts import COLLAPSED, EARLY_STEPS, HEALTHY, PARTLY_COLLAPSED, TOO_EARLY_TO_JUDGE

EARLY = 3  # epochs in which flat assignments and unused prototypes mean nothing yet; few in use do at once
TOO_EARLY = "too early"
CONSTANT = 0.05  # spread of unit embeddings below which they are all the same; 1 fills the sphere
COVERAGE = 0.99  # part of the images that "all images" means in a verdict


@dataclass(frozen=True)
class PrototypeHealth:
    """Figures over a sample of images, two views of each; entropies in nats."""

    prototypes: int
    images: int
    used: int  # chosen by at least one view
    covering: int  # the fewest prototypes that hold 99% of the views
    dead: int  # chosen by none, and expected by none: mean probability under a tenth of 1/K
    duplicates: int  # prototypes nearly parallel to an earlier one
    largest: float  # fraction of the views that choose the fullest prototype
    heaviest: float  # largest probability in the mean assignment
    mean_entropy: float  # of the mean assignment; ln K when all prototypes are used equally
    entropy: float  # mean over single assignments; 0 when views are sure
    consistency: float  # Eq. 4
    agreement: float  # fraction of the images whose two views choose the same prototype

    @property
    def information(self) -> float:
        """How much an assignment says about its image, in nats: mean_entropy - entropy."""
        return self.mean_entropy - self.entropy

    def as_metrics(self) -> dict[str, float]:
        return {**asdict(self), "information": self.information}


def measure_health(log_p: Tensor, log_q: Tensor, prototypes: Tensor | None = None) -> PrototypeHealth:
    """Health from log-assignments (B, K) of two views of the same images, and the prototype vectors (K, D)."""
    both = torch.cat([log_p, log_q]).double()
    count = both.shape[1]
    mean = both.exp().mean(0)
    sizes = both.argmax(1).bincount(minlength=count).double()
    shares = (sizes / sizes.sum()).sort(descending=True).values
    return PrototypeHealth(
        prototypes=count,
        images=len(log_p),
        used=int((sizes > 0).sum()),
        covering=min(count, int((shares.cumsum(0) < COVERAGE - 1e-9).sum()) + 1),
        dead=int(((sizes == 0) & (mean < DEAD / count)).sum()),
        duplicates=0 if prototypes is None else count_duplicates(prototypes),
        largest=shares[0].item(),
        heaviest=mean.max().item(),
        mean_entropy=torch.special.entr(mean).sum().item(),
        entropy=-(both.exp() * both).nan_to_num(0).sum(1).mean().item(),
        consistency=-(log_p.double() + log_q.double()).logsumexp(1).mean().item(),
        agreement=(log_p.argmax(1) == log_q.argmax(1)).double().mean().item(),
    )


def count_duplicates(prototypes: Tensor, cosine: float = TWIN) -> int:
    """Prototypes that are nearly parallel to an earlier one."""
    unit = F.normalize(prototypes.float(), dim=1)
    total = 0
    for start in range(0, len(unit), 1024):
        rows = unit[start : start + 1024]
        nearest = (rows @ rows.T).tril(diagonal=-1).amax(1)
        if start:
            nearest = torch.maximum(nearest, (rows @ unit[:start].T).amax(1))
        total += int((nearest > cosine).sum())
    return total


def rank_me(features: Tensor) -> float:
    """Effective rank: exp of the entropy of the normalised singular values (Garrido et al. 2023)."""
    if not bool(features.isfinite().all()):  # they would have no singular values
        raise UserError("the encoder's features are not finite; lower the learning rate, or start from other weights")
    values = torch.linalg.svdvals(features.double())
    p = values / values.sum().clamp(min=1e-12) + 1e-7
    return math.exp(float(torch.special.entr(p).sum()))


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, in words, with a remedy."""

    kind: str  # a few words that stay the same from probe to probe
    severe: bool  # collapsed, as opposed to partly collapsed
    text: str  # what is seen
    remedy: str

    def sentence(self, since: int | None = None) -> str:
        when = "" if since is None else f" since epoch {since}"
        return f"{self.text}{when}: {self.remedy}"


def epochs_that_count(epochs_done: int, steps_done: int) -> int:
    """The epochs to judge a training by: those done, or fewer if they had so few steps that they mean little.

    Once it has begun that is at least 1, and EARLY only after EARLY_STEPS.
    """
    return min(epochs_done, max(1, EARLY * steps_done // EARLY_STEPS)) if epochs_done else 0


def examine_spread(spread: float, epochs_done: int) -> list[Finding]:
    """The collapse of methods without prototypes: every image gets the same embedding."""
    if spread >= CONSTANT:
        return []
    if epochs_done < EARLY:
        return [Finding(TOO_EARLY, False, "embeddings are still nearly the same", "train for more epochs")]
    text = f"{COLLAPSED}: every image gets nearly the same embedding (spread {spread:.3f} of 1)"
    return [Finding("constant embedding", True, text, "lower the learning rate, or train longer before judging")]


@dataclass(frozen=True)
class Remedies:
    """What a method advises for each way in which prototypes can fail."""

    few: str  # all images go to few prototypes
    unused: str  # some prototypes are not used, or are twins of others
    same: str  # every image gets the same assignment
    flat_loss: str = ""  # what the loss is while all assignments are flat, if that is known


def usual_remedies(prototypes: int) -> Remedies:
    """For methods without a term that keeps the prototypes in use."""
    fewer = f"lower the learning rate, or ask for fewer prototypes (now {prototypes})"
    return Remedies(few=fewer, unused=fewer, same="train longer, or raise the learning rate")


def examine(health: PrototypeHealth, epochs_done: int, remedies: Remedies) -> list[Finding]:
    """What is wrong with these figures, the worst first; nothing when they are sound."""
    count, ln_k = health.prototypes, math.log(health.prototypes)
    few = max(1, count // 20)
    findings = []
    same = health.information < 0.02 * ln_k  # an assignment says nothing of its image
    flat = same and health.mean_entropy > 0.9 * ln_k
    partly = health.covering < min(count, health.images) / 4
    if health.covering <= few and count > 2 and not flat:
        text = f"{COLLAPSED}: all images go to {health.covering} of {count} prototypes"
        findings.append(Finding("few prototypes", True, text, remedies.few))
    elif epochs_done < EARLY and (same or partly):
        text = "assignments are still nearly the same" if same else f"{health.covering} of {count} prototypes are used"
        findings.append(Finding(TOO_EARLY, False, text, "train for more epochs before judging"))
    elif same:
        stuck = f", loss is stuck near {remedies.flat_loss}" if flat and remedies.flat_loss else ""
        text = f"{COLLAPSED}: every image gets the same soft assignment{stuck}"
        findings.append(Finding("constant assignment", True, text, remedies.same))
    elif partly:
        text = f"{PARTLY_COLLAPSED}: all images go to {health.covering} of {count} prototypes"
        findings.append(Finding("few prototypes", False, text, remedies.unused))
    if health.duplicates > count // 10 and epochs_done >= EARLY and not any(f.severe for f in findings):
        text = f"{health.duplicates} of {count} prototypes are nearly the same as another"
        findings.append(Finding("near-duplicates", False, text, remedies.unused))  # as metrics.jsonl has it
    return findings


def verdict(findings: list[Finding]) -> str:
    """The findings in one of the words of `carl.records.verdicts`."""
    if any(f.severe for f in findings):
        return COLLAPSED
    if any(f.kind == TOO_EARLY for f in findings):
        return TOO_EARLY_TO_JUDGE
    return PARTLY_COLLAPSED if findings else HEALTHY
