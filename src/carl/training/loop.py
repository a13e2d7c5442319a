"""The training loop: steps and epochs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from carl.data.batches.base import Batch, TrainingBatches
from carl.methods import Method
from carl.methods.base import EmbedFn
from carl.models.batch_norm import average_running_statistics
from carl.training.checkpoint import Saver
from carl.training.guard import Guard
from carl.training.learner import Learner
from carl.training.probe import Probing
from carl.training.progress import Progress
from carl.training.signals import Interrupted, Signals


@dataclass(frozen=True)
class Trainer:
    """Trains a learner from its present step to the last epoch."""

    learner: Learner
    batches: TrainingBatches
    embed_all: EmbedFn  # for methods that look at all images before an epoch
    guard: Guard
    progress: Progress
    probing: Probing
    saver: Saver
    signals: Signals

    def train(self) -> None:
        """Train for the epochs that are left and save. A signal raises `Interrupted`, with everything saved."""
        learner, per_epoch = self.learner, self.batches.steps_per_epoch
        with self.signals.noticed():
            if learner.steps_done == 0:
                self.progress.note_probe(self.probing.before_training(learner.method))
            while learner.steps_done < learner.total_steps:
                epoch, done = divmod(learner.steps_done, per_epoch)
                if done == 0:
                    self._prepare_epoch(epoch)
                self._train_epoch(epoch, done)
                self._end_epoch(epoch + 1)
                signum = self.signals.after_epoch()
                if signum and learner.steps_done < learner.total_steps:
                    raise Interrupted(signum)
        self.save()

    def _prepare_epoch(self, epoch: int) -> None:
        """Let the method prepare an epoch (PCL clusters all images), and log the time, which belongs to no step."""
        method = self.learner.method
        if type(method).before_epoch is not Method.before_epoch:
            start = time.monotonic()
            method.before_epoch(epoch, self.embed_all)
            self.progress.note_preparation(epoch, time.monotonic() - start)

    def _train_epoch(self, epoch: int, first_step: int) -> None:
        """Take the steps of an epoch from `first_step` on."""
        config, per_epoch = self.learner.config, self.batches.steps_per_epoch
        self.progress.begin_epoch()
        partners = self.learner.method.partners(epoch)
        for batch in self.batches.epoch(epoch, first_step, partners):
            self._take_step(batch)
            done = self.learner.steps_done
            ends = done % per_epoch == 0 or done == self.learner.total_steps
            if done % config.log.every == 0 or ends:
                self.guard.check()
                self.progress.log(self.guard.skipped_steps())
            signum = self.signals.after_step()
            if ends:
                return  # what belongs to the end of the epoch is saved with it
            if signum:
                self.save()
                raise Interrupted(signum)
            if config.train.checkpoint_steps and done % config.train.checkpoint_steps == 0:
                self.save()

    def _take_step(self, batch: Batch) -> None:
        metrics = self.learner.take_step(batch)
        self.progress.add(metrics)
        self.guard.look(metrics["loss"], batch)

    def _end_epoch(self, epoch: int) -> None:
        self.guard.check_weights()
        average_running_statistics(self.learner.method)
        self.progress.note_probe(self.probing.after_epoch(self.learner.method, self.learner.steps_done, epoch))
        self.progress.show_epoch()
        if epoch in self.learner.config.train.keep_epochs:
            self.saver.keep_encoder(epoch)
        self.save()

    def save(self) -> None:
        """Save the checkpoint and the weights, unless this step is saved already."""
        if self.saver.saved_step != self.learner.steps_done:
            self.guard.check_weights()
            average_running_statistics(self.learner.method)
            self.saver.save()
