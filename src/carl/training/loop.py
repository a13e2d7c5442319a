"""The training loop."""

from __future__ import annotations

import inspect
import math
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from carl import distributed
from carl.config import Config
from carl.data.batches.packed import Batch, BatchSource
from carl.errors import UserError
from carl.methods import Method
from carl.methods.base import EmbedFn, Metrics
from carl.methods.health import TOO_EARLY
from carl.models.batch_norm import average_running_statistics
from carl.models.weights import check_finite, write_weights
from carl.optim import build_optimizer, rate_at, set_rate
from carl.records.run_directory import RunDirectory
from carl.training.accumulation import backward_in_parts
from carl.training.checkpoint import (
    Checkpoint,
    get_device_random_state,
    save_checkpoint,
    set_device_random_state,
)
from carl.training.console import Console
from carl.training.guard import MOST_SKIPPED, Watch, write_bad_batch
from carl.training.journal import Journal
from carl.training.probe import Probe, since

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# What each optimiser keeps of a weight.
OPTIMIZER_STATES = {
    "lars": {"momentum_buffer"},
    "sgd": {"momentum_buffer"},
    "adamw": {"step", "exp_avg", "exp_avg_sq"},
}


class Interrupted(Exception):
    """Ctrl-C or SIGTERM; the run is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def _data_parallel(method: Method) -> DistributedDataParallel:
    """The method with its gradients averaged over the processes, and its buffers left alone.

    Buffers stay equal by themselves (queues are of gathered keys) or are averaged when they are read. To broadcast
    them, as is torch's default, would send MoCo's queue of 33 MB with each step.
    """
    named = inspect.signature(DistributedDataParallel.__init__).parameters
    key = "forward_sync_buffers" if "forward_sync_buffers" in named else "broadcast_buffers"  # as older versions say
    options: dict[str, Any] = {key: False}
    # A 1x1 convolution that is a matrix product (models/tiny_maps.py) has gradients of other strides in dimensions of
    # length one: there is nothing to copy, and nothing that the user should know.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    return DistributedDataParallel(method, **options)


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any], names: set[str]) -> None:
    """Take the state of each weight, which has `names`; all else (rates, momentum) is as the configuration says.

    torch takes any state for an optimiser, and fails at the first step where that is of another kind or shape.
    """
    groups = [
        {**own, "params": group["params"]}
        for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
    for parameter, state in optimizer.state.items():
        if state and state.keys() != names:
            raise ValueError(f"the optimiser's state of a weight is not {', '.join(sorted(names))}")
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.shape != (() if name == "step" else parameter.shape):
                shape = tuple(value.shape) if isinstance(value, Tensor) else value
                raise ValueError(f"{name} of shape {shape} for weights {tuple(parameter.shape)}")
            if not bool(value.isfinite().all()):
                raise ValueError(f"{name} is not finite")


class Trainer:
    """Trains a method and leaves everything in its run directory."""

    def __init__(
        self,
        config: Config,
        method: Method,
        batches: BatchSource,
        probe: Probe,
        run: RunDirectory,
        journal: Journal,
        console: Console,
        data_fingerprint: str,
        embed_all: EmbedFn,
    ) -> None:
        self.config, self.method, self.batches, self.probe = config, method, batches, probe
        self.run, self.journal, self.console = run, journal, console
        self.data_fingerprint, self.embed_all, self.device = data_fingerprint, embed_all, batches.device
        self.optimizer = build_optimizer(method, config.optim)
        precision = config.train.precision
        self.autocast = torch.autocast(
            self.device.type, dtype=PRECISIONS.get(precision, torch.bfloat16), enabled=precision != "fp32"
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.compute: Any = method
        if distributed.world_size() > 1 and config.train.accumulate == 1:
            self.compute = _data_parallel(method)
        self._all_learn = False  # whether every weight is known to have a gradient
        self.step, self.seconds, self._started = 0, 0.0, time.monotonic()
        self.total_steps = config.train.epochs * batches.steps_per_epoch
        self._window: list[Metrics] = []
        self._window_started, self._window_images, self._speed = time.monotonic(), 0, 0.0
        self._watch = Watch(self.device, skips=self.scaler.is_enabled())
        self._skipped_before = 0  # fp16 steps without an update, before this process
        self._signal: int | None = None  # that this process got
        self._signals = distributed.SharedSignal()
        self._saved_step = -1
        self._shown: dict[str, float] = {}  # the figures last logged

    def train(self) -> None:
        """From wherever the run is to its last epoch."""
        train, per_epoch = self.config.train, self.batches.steps_per_epoch
        with self._signals_noticed(), self._display():
            if self.step == 0:
                self._probe(epoch=0)
            while self.step < self.total_steps:
                epoch, done = divmod(self.step, per_epoch)
                if done == 0:
                    self._prepare_epoch(epoch)
                self._reset_clock()
                for batch in self.batches.epoch(epoch, first_step=done):
                    self._window.append(self._train_step(batch))
                    self.step += 1
                    self._look_at_step(batch)
                    if self.step % self.config.log.every == 0 or self.step % per_epoch == 0:
                        self._log()
                    signum = self._signals.agreed(self._signal or 0)
                    if self.step % per_epoch == 0:
                        break  # what belongs to the end of the epoch is saved with it
                    if signum:
                        self.save()
                        raise Interrupted(signum)
                    if train.checkpoint_steps and self.step % train.checkpoint_steps == 0:
                        self.save()
                self._end_epoch(epoch + 1)
                signum = self._signals.agreed(self._signal or 0) or self._signals.last()
                if signum and self.step < self.total_steps:
                    raise Interrupted(signum)

    def _prepare_epoch(self, epoch: int) -> None:
        """What a method does before an epoch (PCL clusters all images); its time is no step's, so it is noted down."""
        if type(self.method).before_epoch is not Method.before_epoch:
            start = time.monotonic()
            self.method.before_epoch(epoch, self.embed_all)
            self.journal.write("event", self.step, epoch, event="prepared", seconds=time.monotonic() - start)

    def _train_step(self, batch: Batch) -> Metrics:
        train, optim = self.config.train, self.config.optim
        progress = self.step / self.total_steps
        set_rate(self.optimizer, rate_at(optim, train.batch_size, progress, train.epochs))
        self.optimizer.zero_grad(set_to_none=True)
        if train.accumulate > 1:
            scale: Tensor | float = self.scaler.scale(torch.ones((), device=self.device))
            metrics = backward_in_parts(self.method, batch, progress, train.accumulate, self.autocast, scale)
            distributed.average_([p.grad for p in self.method.parameters() if p.grad is not None])
        else:
            with self.autocast:
                loss, metrics = self.compute(batch, progress)
            self.scaler.scale(loss).backward()
            self._check_all_learn()
        self.method.after_backward(progress)
        if optim.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.method.parameters(), optim.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.method.after_step(progress)
        self._window_images += train.batch_size
        return {name: value.detach() for name, value in metrics.items()}

    def _check_all_learn(self) -> None:
        """After the first step of many processes: torch waits for a gradient of every weight; the next would fail."""
        if self.compute is self.method or self._all_learn:
            return
        idle = [name for name, p in self.method.named_parameters() if p.requires_grad and p.grad is None]
        if idle:
            raise UserError(
                f"{len(idle)} weights of {self.config.model.backbone} have no part in its output ({idle[0]} is one), "
                "and with many processes all must; use --set train.accumulate=2, which can do without, or another "
                "backbone"
            )
        self._all_learn = True

    def _look_at_step(self, batch: Batch) -> None:
        self._watch.look(self.step, self._window[-1]["loss"], self.method.parameters(), batch.indices)
        if self.device.type == "cpu":  # elsewhere only when logging or saving: no step waits for the device
            self._guard()

    def _guard(self) -> None:
        """Stop if the loss or the gradient of a step up to now was not finite, and say which images it saw."""
        bad = self._watch.found()
        if bad is not None:
            file, images = write_bad_batch(self.run.path, bad, self.batches)
            epoch = (bad.step - 1) // self.batches.steps_per_epoch + 1
            pixels = f" (the views of image {images[0]} are not finite)" if images else ""
            raise UserError(
                f"the {bad.what} is not finite at step {bad.step} (epoch {epoch}), whose images are listed in "
                f"{file}{pixels}; {self._remedy()} or with train.precision=fp32"
            )
        _, in_row = self._watch.skipped()
        if in_row >= MOST_SKIPPED:
            raise UserError(
                f"{in_row} steps in a row up to step {self.step} had gradients too large for fp16 and were left out; "
                f"{self._remedy()} or with train.precision=bf16 or fp32"
            )

    def _check_weights(self) -> None:
        """Nothing is probed or saved that is not finite."""
        self._guard()
        kept = (value for value in (*self.method.parameters(), *self.method.buffers()) if value.is_floating_point())
        if not all(torch.stack([value.isfinite().all() for value in kept]).tolist()):
            raise UserError(
                f"the weights, or averages kept beside them, are not finite after step {self.step}; {self._remedy()}"
            )

    def _remedy(self) -> str:
        return (
            f"the last good checkpoint is {self._last_checkpoint()}; start again with a lower learning rate "
            f"(now {self.config.optim.lr:g})"
        )

    def _last_checkpoint(self) -> str:
        return str(self.run.checkpoint_file) if self.run.checkpoint_file.exists() else "none yet"

    def _log(self) -> None:
        self._guard()
        names = list(self._window[0])
        means = torch.stack([torch.stack([w[n].float() for w in self._window]).mean() for n in names])
        distributed.average_([means])
        values = dict(zip(names, means.tolist(), strict=True))
        self._speed = self._window_images / max(time.monotonic() - self._window_started, 1e-9)
        last = (self.step - 1) / self.total_steps
        train = self.config.train
        values["lr"] = rate_at(self.config.optim, train.batch_size, last, train.epochs)
        values.update(self.method.logged(last))
        if self.scaler.is_enabled():
            values["skipped_steps"] = self._skipped_before + self._watch.skipped()[0]
        epoch = self.step / self.batches.steps_per_epoch
        self.journal.write("step", self.step, epoch, images_per_second=round(self._speed, 1), **values)
        self._shown = {**values, "img/s": self._speed}
        self.console.show_step(
            self.step, self.total_steps, math.ceil(epoch), train.epochs, self._shown, self._seconds_left()
        )
        self._reset_clock()

    def _seconds_left(self) -> float:
        return (self.total_steps - self.step) * self.config.train.batch_size / max(self._speed, 1e-9)

    def _reset_clock(self) -> None:
        self._window, self._window_started, self._window_images = [], time.monotonic(), 0

    def _end_epoch(self, epoch: int) -> None:
        self._check_weights()
        average_running_statistics(self.method)
        every = self.config.probe.every
        if every and (epoch % every == 0 or epoch == self.config.train.epochs):
            self._probe(epoch)
        if not self.console.interactive:
            self.console.show_line(epoch, self.config.train.epochs, self._shown, self._seconds_left())
        if epoch in self.config.train.keep_epochs and distributed.is_main():
            self._save_weights(self.run.kept_encoder(epoch))
        self.save()

    def _probe(self, epoch: int) -> None:
        if not self.config.probe.every or not distributed.is_main():
            return
        result = self.probe.run(self.method, epoch)
        self.console.show_probe(result.summary())
        if epoch == 0:  # an untrained model has no health to judge
            self.journal.write("probe", self.step, epoch, **result.record(judged=False))
            self.console.say(f"before training: {result.summary()}")
            for finding in result.findings:
                if finding.kind != TOO_EARLY:
                    self.console.say(f"note: {finding.sentence()}", style="yellow")
            return
        earlier = self.journal.of_kind("probe")
        worth_saying = [finding for finding in result.findings if finding.kind != TOO_EARLY]
        words = [finding.sentence(since(finding.kind, earlier, epoch)) for finding in worth_saying]
        known = {text for record in earlier for text in record.get("warnings", ())}
        self.journal.write("probe", self.step, epoch, **result.record(), warnings=words)
        for text in words:
            if text not in known:
                self.console.say(f"warning: {text}", style="yellow")

    def save(self) -> None:
        """The checkpoint and the weights, unless this step is saved already."""
        if self._saved_step == self.step:
            return
        self._check_weights()
        average_running_statistics(self.method)
        self.seconds, self._started = self.seconds + time.monotonic() - self._started, time.monotonic()
        self._saved_step = self.step
        if distributed.is_main():
            self._save_weights(self.run.encoder_file)
            save_checkpoint(self.run.checkpoint_file, self._checkpoint())  # last: it says that all is there
        distributed.barrier()

    def _save_weights(self, encoder: Path) -> None:
        write_weights(encoder, self.method.encoder)
        write_weights(self.run.head_of(encoder), self.method.head)

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            step=self.step,
            method=self.method.state_dict(),
            optimizer=self.optimizer.state_dict(),
            scaler=self.scaler.state_dict(),
            random_state=torch.get_rng_state(),
            device_random_state=get_device_random_state(self.device),
            data_fingerprint=self.data_fingerprint,
            seconds=self.seconds,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, as if the run had never stopped."""
        try:
            self.method.load_state_dict(checkpoint.method)
            _restore_optimizer(self.optimizer, checkpoint.optimizer, OPTIMIZER_STATES[self.config.optim.name])
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(checkpoint.scaler)
            torch.set_rng_state(checkpoint.random_state)
            set_device_random_state(self.device, checkpoint.device_random_state)
            if checkpoint.step > self.total_steps:
                raise ValueError(f"step {checkpoint.step} of {self.total_steps}")
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"{self.run.checkpoint_file} does not fit config.toml: {reason}; restore the one it was made with"
            ) from None
        check_finite(self.run.checkpoint_file, self.method)
        self.step = self._saved_step = checkpoint.step
        self.seconds = checkpoint.seconds
        skipped = (r["skipped_steps"] for r in self.journal.of_kind("step")[::-1] if "skipped_steps" in r)
        self._skipped_before = next(skipped, 0)

    @contextmanager
    def _signals_noticed(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run at the next step, saved; a second one ends it at once.

        Not with many processes: there torchrun and the cluster's scheduler each pass the same signal on.
        """

        def notice(signum: int, frame: FrameType | None) -> None:
            if self._signal is not None and distributed.launched() == 1:
                raise KeyboardInterrupt
            self._signal = signum

        previous = {}
        try:
            for signum in (signal.SIGINT, signal.SIGTERM):
                previous[signum] = signal.signal(signum, notice)
        except ValueError:  # not in the main thread: the caller handles signals
            pass
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    @contextmanager
    def _display(self) -> Iterator[None]:
        self.console.start()
        try:
            yield
        finally:
            self.console.stop()
