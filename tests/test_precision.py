"""Which precision `auto` is: asked of the processor, never of its name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from carl import precision
from carl.errors import UserError
from carl.precision import PRECISIONS, computing_in, full_precision, settled_precision
from carl.records import environment
from carl.records.environment import instruction_sets


@pytest.mark.parametrize(
    ("has", "device", "expected"),
    [
        (("avx2", "avx512f", "avx512_bf16"), "cpu", "bf16"),
        (("avx2", "amx_bf16"), "cpu", "bf16"),
        (("avx2", "avx512f", "avx512_vnni"), "cpu", "fp32"),  # would emulate it
        (("avx2",), "cpu", "fp32"),
        ((), "cpu", "fp32"),
        (("avx512_bf16",), "cuda", "fp32"),
        (("avx512_bf16",), "mps", "fp32"),
    ],
)
def test_auto_is_bfloat16_only_on_a_cpu_that_multiplies_it(
    has: tuple[str, ...], device: str, expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CARL_PRECISION")
    monkeypatch.setattr(precision, "instruction_sets", lambda: has)
    assert settled_precision("auto", device) == expected
    assert [settled_precision(word, device) for word in PRECISIONS] == list(PRECISIONS)


def test_the_environment_may_say_what_auto_means(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CARL_PRECISION", "bf16")
    assert (settled_precision("auto", "cpu"), settled_precision("fp32", "cpu")) == ("bf16", "fp32")
    monkeypatch.setenv("CARL_PRECISION", "float8")
    with pytest.raises(UserError, match="CARL_PRECISION=float8 is not a precision; use fp32, bf16, fp16"):
        settled_precision("auto", "cpu")


@pytest.mark.parametrize(("word", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_are_computed_in_the_precision_that_is_asked_for(word: str, dtype: torch.dtype):
    with computing_in(word, "cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([], ()),
        (["model name\t: AVX512_BF16 in name only", "flags\t\t: fpu avx2 avx512f sse2"], ("avx2", "avx512f")),
        (["flags\t\t: avx512_bf16 fpu avx2"], ("avx2", "avx512_bf16")),
    ],
)
def test_instruction_sets_are_read_from_the_flags_of_the_processor(
    said: list[str], found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "lines_about_the_cpu", lambda: said)
    assert instruction_sets() == found


def gradient_of_a_weight_used_twice(between: Callable[[], None]) -> Tensor:
    """In bfloat16, with something done between the two uses."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=generator).requires_grad_()
    first, second = torch.randn(2, 64, 64, generator=generator)
    with computing_in("bf16", "cpu"):
        one = first @ weight
        between()
        two = second @ weight
    (one.float().square().sum() + two.float().square().sum()).backward()
    assert weight.grad is not None
    return weight.grad


def test_full_precision_in_another_thread_changes_no_bit_of_a_step():
    def beside(context: Callable[[], AbstractContextManager[object]]) -> None:
        def multiply() -> None:
            with context():
                assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32

        thread = threading.Thread(target=multiply)
        thread.start()
        thread.join()

    undisturbed = gradient_of_a_weight_used_twice(lambda: None)
    found = gradient_of_a_weight_used_twice(lambda: beside(lambda: full_precision("cpu")))
    assert torch.equal(found, undisturbed)
    # What it spares: torch's own context has the weight rounded twice, and the two gradients summed in float32.
    found = gradient_of_a_weight_used_twice(lambda: beside(lambda: torch.autocast("cpu", enabled=False)))
    assert not torch.equal(found, undisturbed)
