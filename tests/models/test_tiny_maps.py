"""The convolutions for tiny maps against `nn.Conv2d`: same numbers, same state, same behaviour elsewhere."""

import copy
from collections.abc import Iterator

import pytest
import timm
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from carl.models import tiny_maps
from carl.models.tiny_maps import (
    ChannelsLastConv2d,
    MetTapsConv2d,
    TinyMapConv2d,
    WholeMapProduct,
    adapt_to_tiny_maps,
)

FORMATS = (torch.contiguous_format, torch.channels_last)
TINY_CASES = [  # kernel, map size, stride: every case that leaves the plain convolution
    (3, 1, 1),
    (3, 1, 2),
    (3, 2, 1),
    (3, 2, 2),
    (3, 4, 2),
    (1, 1, 1),
    (1, 1, 2),
    (1, 2, 1),
    (1, 2, 2),
    (1, 4, 2),
]
PLAIN_CASES = [(3, 3, 1), (3, 3, 2), (3, 4, 1), (3, 5, 2), (3, 8, 1), (1, 3, 2), (1, 4, 1), (1, 8, 2)]


@pytest.fixture
def small_is_enough(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets instances too small to gain take the fast way, so that tests are quick."""
    monkeypatch.setattr(tiny_maps, "MINIMUM_BATCH", 0)
    monkeypatch.setattr(tiny_maps, "MINIMUM_BATCH_CHANNELS_LAST", 0)
    monkeypatch.setattr(tiny_maps, "MINIMUM_CHANNELS", 1)


def is_plain(output: Tensor) -> bool:
    """Whether a convolution made this output, and not the products of matrices that stand for it on tiny maps."""
    assert output.grad_fn is not None
    found, looked_at = [output.grad_fn], set()
    while found:
        node = found.pop()
        if "Convolution" in node.name():
            return True
        looked_at.add(node)
        found += [before for before, _ in node.next_functions if before is not None and before not in looked_at]
    return False


def conv_pair(kernel: int, stride: int, channels: tuple[int, int] = (8, 5), bias: bool = True) -> list[nn.Module]:
    # At least 8 input channels: with fewer, oneDNN's weight gradient of a strided 1x1 convolution is sometimes wrong
    # in channels-last (oneDNN issue 6035), which is the reference here.
    torch.manual_seed(0)
    plain = nn.Conv2d(*channels, kernel, stride, padding=kernel // 2, bias=bias)
    return [plain, adapt_to_tiny_maps(copy.deepcopy(plain))]


def images(batch: int, channels: int, size: int, memory_format: torch.memory_format = FORMATS[0]) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(batch, channels, size, size, generator=generator)
    return drawn.contiguous(memory_format=memory_format)


def outputs_and_gradients(module: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of a random linear function of it."""
    leaf = inputs.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    output = module(leaf)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output.dtype)
    (output * weights).sum().backward()
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert leaf.grad is not None
    return {"output": output.detach(), "input": leaf.grad, **found}


def assert_same(expected: dict[str, Tensor], actual: dict[str, Tensor], tolerance: float) -> None:
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert actual[name].shape == value.shape, name
        assert actual[name].dtype == value.dtype, name
        assert (actual[name] - value).norm() <= tolerance * value.norm(), name


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES + PLAIN_CASES)
def test_outputs_and_gradients_are_those_of_the_plain_convolution(
    kernel: int, size: int, stride: int, bias: bool, memory_format: torch.memory_format, dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    plain, adapted = (conv.to(dtype) for conv in conv_pair(kernel, stride, bias=bias))
    inputs = images(3, 8, size, memory_format).to(dtype)
    assert_same(outputs_and_gradients(plain, inputs), outputs_and_gradients(adapted, inputs), tolerance)


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_full_width_layers_agree(kernel: int, size: int, stride: int, memory_format: torch.memory_format) -> None:
    plain, adapted = conv_pair(kernel, stride, channels=(128, 256))
    inputs = images(32, 128, size, memory_format)
    assert_same(outputs_and_gradients(plain, inputs), outputs_and_gradients(adapted, inputs), 1e-5)


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_tiny_maps_do_without_the_plain_convolution(kernel: int, size: int, stride: int) -> None:
    assert not is_plain(conv_pair(kernel, stride)[1](images(3, 8, size)))


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize(("kernel", "size", "stride"), PLAIN_CASES)
def test_larger_maps_take_the_plain_convolution(kernel: int, size: int, stride: int) -> None:
    assert is_plain(conv_pair(kernel, stride)[1](images(3, 8, size)))


def test_small_batches_take_the_plain_convolution() -> None:
    adapted = conv_pair(3, 1, channels=(64, 64))[1]
    assert is_plain(adapted(images(1, 64, 1)))
    assert not is_plain(adapted(images(32, 64, 1)))


def test_in_bfloat16_a_single_pixel_never_reaches_the_plain_convolution() -> None:
    """Its weight gradient would be what the memory held, where a tap meets nothing."""
    for channels, stride in (((8, 5), 1), ((8, 5), 2), ((64, 64), 2)):
        adapted = conv_pair(3, stride, channels)[1]
        with torch.autocast("cpu", torch.bfloat16):
            output = adapted(images(3, channels[0], 1))
        assert not is_plain(output)
        output.sum().backward()
        assert adapted.weight.grad is not None
        outside = adapted.weight.grad.clone()
        outside[:, :, 1, 1] = 0
        assert not outside.any()


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_batches_of_none_and_one(kernel: int, size: int, stride: int, batch: int) -> None:
    plain, adapted = conv_pair(kernel, stride)
    inputs = images(batch, 8, size)
    assert_same(outputs_and_gradients(plain, inputs), outputs_and_gradients(adapted, inputs), 1e-4)


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_first_and_second_derivatives_pass_gradcheck(kernel: int, size: int, stride: int) -> None:
    torch.manual_seed(0)
    conv = TinyMapConv2d(2, 1, kernel, stride, padding=kernel // 2).double()
    names, parameters = zip(*conv.named_parameters(), strict=True)

    def call(inputs: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(conv, dict(zip(names, values, strict=True)), (inputs,))

    arguments = (images(1, 2, size).double().requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(call, arguments)
    assert torch.autograd.gradgradcheck(call, arguments)


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_frozen_weights_pass_the_gradient_on_and_get_none(kernel: int, size: int, stride: int) -> None:
    plain, adapted = (conv.requires_grad_(False) for conv in conv_pair(kernel, stride))
    inputs = images(3, 8, size)
    actual = outputs_and_gradients(adapted, inputs)
    assert actual.keys() == {"output", "input"}
    assert_same(outputs_and_gradients(plain, inputs), actual, 1e-4)


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_channels_last_weights_agree(kernel: int, size: int, stride: int, memory_format: torch.memory_format) -> None:
    plain, adapted = (conv.to(memory_format=torch.channels_last) for conv in conv_pair(kernel, stride))
    inputs = images(3, 8, size, memory_format)
    assert_same(outputs_and_gradients(plain, inputs), outputs_and_gradients(adapted, inputs), 1e-4)


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_bfloat16_autocast_agrees_to_its_precision(kernel: int, size: int, stride: int) -> None:
    plain, adapted = conv_pair(kernel, stride)
    inputs = images(3, 8, size)
    expected = outputs_and_gradients(plain, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        actual = outputs_and_gradients(adapted, inputs)
    assert actual["output"].dtype == torch.bfloat16
    assert actual["weight"].dtype == torch.float32
    assert_same(expected, {name: values.float() for name, values in actual.items()}, 2e-2)


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_meta_tensors_give_shapes(kernel: int, size: int, stride: int) -> None:
    plain, adapted = (conv.to("meta") for conv in conv_pair(kernel, stride))
    inputs = images(3, 8, size).to("meta")
    assert adapted(inputs).shape == plain(inputs).shape
    assert is_plain(adapted(inputs))


@pytest.mark.usefixtures("small_is_enough")
@pytest.mark.parametrize(("device", "plain"), [("cuda", True), ("cpu", False)])
@pytest.mark.parametrize(("kernel", "size", "stride"), TINY_CASES)
def test_fake_tensors_run_and_only_the_cpu_leaves_the_plain_convolution(
    kernel: int, size: int, stride: int, device: str, plain: bool
) -> None:
    with FakeTensorMode():
        conv = adapt_to_tiny_maps(nn.Conv2d(8, 5, kernel, stride, padding=kernel // 2, device=device))
        output = conv(torch.empty(3, 8, size, size, device=device))
    out_size = (size + stride - 1) // stride
    assert output.shape == (3, 5, out_size, out_size)
    assert output.device.type == device
    assert is_plain(output) == plain


@pytest.mark.usefixtures("small_is_enough")
def test_compiles_and_exports() -> None:
    plain, adapted = conv_pair(3, 1)
    inputs = images(3, 8, 2)
    compiled = torch.compile(adapted, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs), plain(inputs))
    exported = torch.export.export(adapted, (inputs,))
    assert any("conv2d" in str(node.target) for node in exported.graph.nodes)


@pytest.mark.usefixtures("small_is_enough")
def test_wrong_channels_raise_the_error_of_the_plain_convolution() -> None:
    with pytest.raises(RuntimeError, match="to have 8 channels, but got 5"):
        conv_pair(3, 1)[1](images(3, 5, 1))


@pytest.mark.parametrize(("device", "batch", "expected"), [("cpu", 128, True), ("cpu", 2, False), ("meta", 128, False)])
def test_stem_orders_its_output_channels_last_for_large_batches_on_a_cpu(
    device: str, batch: int, expected: bool
) -> None:
    stem = adapt_to_tiny_maps(nn.Conv2d(3, 64, 7, stride=2, padding=3)).to(device)
    output = stem(images(batch, 3, 32).to(device))
    assert output.is_contiguous(memory_format=torch.channels_last) == expected


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "size"),
    [(5, 1, 2, 1, 1), (5, 2, 2, 1, 1), (7, 1, 3, 1, 2), (7, 2, 3, 1, 2), (3, 1, 2, 2, 2), (7, 1, 3, 1, 3)],
)
def test_in_bfloat16_taps_that_meet_no_pixel_get_a_gradient_of_zero(
    kernel: int, stride: int, padding: int, dilation: int, size: int
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(64, 64, kernel, stride, padding, dilation)
    adapted = adapt_to_tiny_maps(copy.deepcopy(plain))
    assert type(adapted) is MetTapsConv2d
    inputs = images(4, 64, size)
    expected = outputs_and_gradients(plain, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        garbage = [torch.full_like(plain.weight, torch.nan) for _ in range(4)]
        del garbage
        actual = outputs_and_gradients(adapted, inputs)
    assert_same(expected, {name: values.float() for name, values in actual.items()}, 2e-2)
    assert actual["weight"][expected["weight"] == 0].eq(0).all()


def test_in_full_precision_all_taps_take_part() -> None:
    adapted = adapt_to_tiny_maps(nn.Conv2d(8, 8, 5, padding=2))
    inputs = images(2, 8, 1)
    assert torch.equal(adapted(inputs), nn.functional.conv2d(inputs, adapted.weight, adapted.bias, padding=2))


@pytest.mark.parametrize("memory_format", FORMATS)
def test_the_product_of_a_whole_map_is_the_convolution(memory_format: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 8, 3, 3, generator=generator, dtype=torch.float64).requires_grad_()
    map = images(3, 8, 2, memory_format).double().requires_grad_()
    expected = nn.functional.conv2d(map, weight, padding=1)
    found = WholeMapProduct.apply(map, weight, torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradient = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad(found, (map, weight), gradient),
        torch.autograd.grad(expected, (map, weight), gradient),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_product_of_a_whole_map_passes_gradcheck() -> None:
    map = images(2, 3, 2).double().requires_grad_()
    weight = images(2, 3, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: WholeMapProduct.apply(a, b, torch.float64), (map, weight))


def test_the_product_of_a_whole_map_is_as_near_to_the_exact_one_as_the_plain_convolution_in_bfloat16() -> None:
    plain, adapted = conv_pair(3, 1, channels=(64, 64), bias=False)
    inputs = images(64, 64, 2)
    exact = outputs_and_gradients(copy.deepcopy(plain).double(), inputs.double())
    with torch.autocast("cpu", torch.bfloat16):
        results = [outputs_and_gradients(conv, inputs.bfloat16()) for conv in (plain, adapted)]
    assert not is_plain(adapted(inputs.bfloat16().requires_grad_()))
    for name, value in exact.items():
        errors = [float((found[name].double() - value).norm() / value.norm()) for found in results]
        assert errors[1] < 1.1 * errors[0], name


def test_the_product_of_a_whole_map_computes_only_gradients_that_are_needed() -> None:
    adapted = conv_pair(3, 1, channels=(64, 64))[1].requires_grad_(False)
    inputs = images(32, 64, 2).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        adapted(inputs).sum().backward()
    assert inputs.grad is not None
    assert adapted.weight.grad is None


def test_only_measured_convolutions_are_replaced() -> None:
    class OwnForward(nn.Conv2d):
        pass

    kept = [
        nn.Conv2d(64, 64, 3, padding=1, groups=2),
        nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"),
        OwnForward(64, 64, 3, padding=1),
    ]
    classes = [type(conv) for conv in kept]
    assert [type(conv) for conv in adapt_to_tiny_maps(nn.ModuleList(kept)).children()] == classes
    others = [
        nn.Conv2d(64, 64, 3, padding=2, dilation=2),
        nn.Conv2d(64, 64, 3),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.Conv2d(64, 64, 3, padding=1, stride=3),
    ]
    assert {type(adapt_to_tiny_maps(conv)) for conv in others} == {MetTapsConv2d}
    assert type(adapt_to_tiny_maps(nn.Conv2d(64, 64, 3, padding=1))) is TinyMapConv2d
    assert type(adapt_to_tiny_maps(nn.Conv2d(3, 64, 7, 2, 3))) is ChannelsLastConv2d
    assert type(adapt_to_tiny_maps(nn.Conv2d(3, 64, 1, 2))) is nn.Conv2d


@pytest.fixture(scope="module")
def resnet_pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = timm.create_model("resnet18", num_classes=0, zero_init_last=False)
    return plain, adapt_to_tiny_maps(copy.deepcopy(plain))


@pytest.mark.usefixtures("small_is_enough")
def test_whole_resnet_agrees_at_32_px(resnet_pair: tuple[nn.Module, nn.Module]) -> None:
    # float64: in float32 a single ReLU within rounding of zero moves gradients by 1e-2, in the plain model too
    # when only the memory format of its images changes.
    plain, adapted = (copy.deepcopy(model).double() for model in resnet_pair)
    inputs = images(32, 3, 32).double()
    expected, actual = outputs_and_gradients(plain, inputs), outputs_and_gradients(adapted, inputs)
    assert len(actual) == 2 + len(list(plain.parameters()))
    assert_same(expected, actual, 1e-10)
    statistics, others = (
        {name: b for name, b in model.named_buffers() if b.is_floating_point()} for model in (plain, adapted)
    )
    assert_same(statistics, others, 1e-10)


@pytest.mark.usefixtures("small_is_enough")
def test_whole_smooth_resnet_agrees_at_32_px_in_float32() -> None:
    torch.manual_seed(0)
    plain = timm.create_model("resnet18", num_classes=0, zero_init_last=False, act_layer=nn.SiLU)
    plain.maxpool = nn.AvgPool2d(3, stride=2, padding=1)
    adapted = adapt_to_tiny_maps(copy.deepcopy(plain))
    inputs = images(32, 3, 32)
    assert_same(outputs_and_gradients(plain, inputs), outputs_and_gradients(adapted, inputs), 1e-4)


def test_resnet_state_dict_is_unchanged_and_loads_both_ways(resnet_pair: tuple[nn.Module, nn.Module]) -> None:
    plain, adapted = (copy.deepcopy(model) for model in resnet_pair)
    assert list(plain.state_dict()) == list(adapted.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(adapted.state_dict()[name], value), name
        assert adapted.state_dict()[name].stride() == value.stride(), name
    plain.load_state_dict(adapted.state_dict(), strict=True)
    adapted.load_state_dict(plain.state_dict(), strict=True)


def test_adapting_keeps_parameter_objects_and_hooks() -> None:
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1))
    parameters, seen = list(model.parameters()), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    assert adapt_to_tiny_maps(model) is model
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    model(images(32, 64, 1))
    assert seen == [(32, 64, 1, 1)]


def test_no_small_map_of_resnet_at_32_px_reaches_the_plain_convolution(
    resnet_pair: tuple[nn.Module, nn.Module],
) -> None:
    model, plain_sides = copy.deepcopy(resnet_pair[1]).eval(), []

    def note(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        side = inputs[0].shape[-1]
        again = module.forward(inputs[0].detach())  # alone, so that its history holds no other convolution
        if is_plain(again):
            plain_sides.append(side)

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(note)
    model(images(32, 3, 32))
    assert min(plain_sides) == 4
