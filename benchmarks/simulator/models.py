"""Model templates: what a step of a realistic network launches. Train and test templates are disjoint.

Train: resnet, encoder, mlp, dlrm, normnet, lstm. Test: convnext, decoder, resmlp, twotower, unet, gru.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.simulator import layers
from benchmarks.simulator.hardware import DEVICES
from benchmarks.simulator.ops import Net, elem_bytes


def _image_input(net: Net, size: int, classes: bool = True) -> None:
    net.inputs.append(((net.batch, 3, size, size), "float", net.batch * 3 * size * size * 4))
    if classes:
        net.inputs.append(((net.batch,), "long int", net.batch * 8))


def _resnet(
    net: Net, img: int = 160, widths: tuple[int, ...] = (64, 128, 256), blocks: int = 2, **_: object
) -> None:
    _image_input(net, img)
    h = layers.conv2d(net, 3, 64, img, 7, 2, first=True)
    layers.batch_norm(net, 64, h)
    layers.unary(net, (net.batch, 64, h, h), "relu")
    h = layers.pool(net, 64, h, 2)
    cin = 64
    for i, w in enumerate(widths):
        for b in range(blocks):
            h = layers.conv2d(net, cin, w, h, 3, 2 if b == 0 and i else 1)
            layers.batch_norm(net, w, h)
            layers.unary(net, (net.batch, w, h, h), "relu")
            layers.conv2d(net, w, w, h, 3)
            layers.batch_norm(net, w, h)
            layers.add(net, (net.batch, w, h, h))
            layers.unary(net, (net.batch, w, h, h), "relu")
            cin = w
    layers.pool(net, cin, h, h)
    layers.linear(net, net.batch, cin, 1000)
    layers.cross_entropy(net, net.batch, 1000)


def _convnext(
    net: Net, img: int = 128, widths: tuple[int, ...] = (96, 192), blocks: int = 3, **_: object
) -> None:
    _image_input(net, img)
    h = layers.conv2d(net, 3, widths[0], img, 4, 4, first=True)
    cin = widths[0]
    for i, w in enumerate(widths):
        if i:
            h = layers.conv2d(net, cin, w, h, 2, 2)
        for _b in range(blocks):
            rows = net.batch * h * h
            layers.conv2d(net, max(1, w // 12), w, h, 7)
            layers.layer_norm(net, rows, w)
            layers.linear(net, rows, w, 4 * w)
            layers.unary(net, (rows, 4 * w), "gelu", 8)
            layers.linear(net, rows, 4 * w, w)
            layers.add(net, (rows, w))
        cin = w
    layers.pool(net, cin, h, h)
    layers.linear(net, net.batch, cin, 1000)
    layers.cross_entropy(net, net.batch, 1000)


def _attention_block(net: Net, seq: int, d: int, heads: int, act: str, ff: int) -> None:
    rows = net.batch * seq
    layers.layer_norm(net, rows, d)
    layers.linear(net, rows, d, 3 * d)
    layers.sdpa(net, heads, seq, d // heads)
    layers.linear(net, rows, d, d)
    layers.add(net, (rows, d))
    layers.layer_norm(net, rows, d)
    layers.linear(net, rows, d, ff * d)
    layers.unary(net, (rows, ff * d), act, 8)
    layers.linear(net, rows, ff * d, d)
    layers.add(net, (rows, d))


def _encoder(net: Net, seq: int = 128, d: int = 512, depth: int = 5, vocab: int = 16000, **_: object) -> None:
    net.inputs.append(((net.batch, seq), "long int", net.batch * seq * 8))
    net.inputs.append(((net.batch, seq), "long int", net.batch * seq * 8))
    net.inputs.append(((net.batch,), "long int", net.batch * 8))
    layers.embedding(net, net.batch * seq, d, vocab)
    for _i in range(depth):
        _attention_block(net, seq, d, 8, "gelu", 4)
    layers.linear(net, net.batch, d, d)
    layers.unary(net, (net.batch, d), "tanh", 8)
    layers.linear(net, net.batch, d, 8)
    layers.cross_entropy(net, net.batch, 8)


def _decoder(net: Net, seq: int = 256, d: int = 768, depth: int = 4, vocab: int = 8192, **_: object) -> None:
    net.inputs.append(((net.batch, seq + 1), "long int", net.batch * (seq + 1) * 8))
    layers.embedding(net, net.batch * seq, d, vocab)
    for _i in range(depth):
        _attention_block(net, seq, d, 12, "silu", 3)
    layers.layer_norm(net, net.batch * seq, d)
    layers.linear(net, net.batch * seq, d, vocab, bias=False)
    layers.cross_entropy(net, net.batch * seq, vocab)


def _mlp(net: Net, width: int = 1024, depth: int = 10, features: int = 512, **_: object) -> None:
    net.inputs.append(((net.batch, features), "float", net.batch * features * 4))
    net.inputs.append(((net.batch,), "long int", net.batch * 8))
    k = features
    for _i in range(depth):
        layers.linear(net, net.batch, k, width)
        layers.unary(net, (net.batch, width), "relu")
        k = width
    layers.linear(net, net.batch, k, 100)
    layers.cross_entropy(net, net.batch, 100)


def _resmlp(net: Net, width: int = 768, depth: int = 8, features: int = 256, **_: object) -> None:
    net.inputs.append(((net.batch, features), "float", net.batch * features * 4))
    net.inputs.append(((net.batch, 16), "float", net.batch * 16 * 4))
    layers.linear(net, net.batch, features, width)
    for _i in range(depth):
        layers.layer_norm(net, net.batch, width)
        layers.linear(net, net.batch, width, width)
        layers.unary(net, (net.batch, width), "silu", 4)
        layers.add(net, (net.batch, width))
    layers.linear(net, net.batch, width, 16)
    layers.mse(net, net.batch, 16)


def _dlrm(net: Net, tables: int = 8, d: int = 64, vocab: int = 200000, width: int = 512, **_: object) -> None:
    net.inputs.append(((net.batch, 13), "float", net.batch * 13 * 4))
    net.inputs.append(((net.batch, tables), "long int", net.batch * tables * 8))
    net.inputs.append(((net.batch, 1), "float", net.batch * 4))
    layers.linear(net, net.batch, 13, width)
    layers.unary(net, (net.batch, width), "relu")
    layers.linear(net, net.batch, width, d)
    for _i in range(tables):
        layers.embedding(net, net.batch, d, vocab)
    layers.cat(net, net.batch, d * (tables + 1))
    layers.bmm(net, net.batch, tables + 1, d, tables + 1)
    for k in (d + tables * tables, width, width // 2):
        layers.linear(net, net.batch, k, width if k > width // 2 else 1)
        layers.unary(
            net, (net.batch, width if k > width // 2 else 1), "relu" if k > width // 2 else "sigmoid"
        )
    layers.mse(net, net.batch, 1)


def _twotower(
    net: Net, d: int = 128, vocab: int = 400000, width: int = 768, history: int = 20, **_: object
) -> None:
    net.inputs.append(((net.batch, history), "long int", net.batch * history * 8))
    net.inputs.append(((net.batch, history), "long int", net.batch * history * 8))
    for _tower in range(2):
        layers.embedding(net, net.batch * history, d, vocab)
        layers.mul(net, (net.batch * history, d))
        layers.linear(net, net.batch, d * history, width)
        layers.unary(net, (net.batch, width), "relu")
        layers.linear(net, net.batch, width, d)
    layers.cat(net, net.batch, 2 * d)
    layers.bmm(net, 1, net.batch, d, net.batch)
    layers.cross_entropy(net, net.batch, net.batch)


def _normnet(net: Net, img: int = 96, width: int = 64, depth: int = 6, **_: object) -> None:
    """Group norms, additions and activations on large feature maps between thin convolutions."""
    _image_input(net, img)
    layers.conv2d(net, 3, width, img, 3, 1, first=True)
    for _i in range(depth):
        layers.group_norm(net, width, img)
        layers.unary(net, (net.batch, width, img, img), "relu")
        layers.add(net, (net.batch, width, img, img))
        layers.conv2d(net, width, width, img, 1)
    layers.pool(net, width, img, img)
    layers.linear(net, net.batch, width, 100)
    layers.cross_entropy(net, net.batch, 100)


def _unet(net: Net, img: int = 96, width: int = 48, depth: int = 5, **_: object) -> None:
    """A diffusion-like net: group norm, silu and gates at full resolution around 1x1 convolutions."""
    _image_input(net, img, classes=False)
    net.inputs.append(((net.batch, 1, img, img), "float", net.batch * img * img * 4))
    layers.conv2d(net, 3, width, img, 3, 1, first=True)
    for _i in range(depth):
        layers.group_norm(net, width, img)
        layers.unary(net, (net.batch, width, img, img), "silu", 4)
        layers.conv2d(net, width, width, img, 1)
        layers.mul(net, (net.batch, width, img, img))
        layers.add(net, (net.batch, width, img, img))
    layers.conv2d(net, width, 3, img, 1)
    layers.mse(net, net.batch * 3, img * img)


def _lstm(net: Net, seq: int = 20, hidden: int = 512, depth: int = 2, **_: object) -> None:
    net.inputs.append(((net.batch, seq), "long int", net.batch * seq * 8))
    net.inputs.append(((net.batch,), "long int", net.batch * 8))
    layers.embedding(net, net.batch * seq, hidden, 20000)
    for _i in range(depth):
        layers.rnn(net, seq, hidden, "lstm")
    layers.linear(net, net.batch, hidden, 10)
    layers.cross_entropy(net, net.batch, 10)


def _gru(
    net: Net, seq: int = 24, hidden: int = 640, depth: int = 2, features: int = 640, **_: object
) -> None:
    net.inputs.append(((net.batch, seq, features), "float", net.batch * seq * features * 4))
    net.inputs.append(((net.batch, 8), "float", net.batch * 8 * 4))
    layers.linear(net, net.batch * seq, features, hidden)
    for _i in range(depth):
        layers.rnn(net, seq, hidden, "gru")
    layers.layer_norm(net, net.batch, hidden)
    layers.linear(net, net.batch, hidden, 8)
    layers.mse(net, net.batch, 8)


TEMPLATES: dict[str, Callable[..., None]] = {
    "resnet": _resnet,
    "encoder": _encoder,
    "mlp": _mlp,
    "dlrm": _dlrm,
    "normnet": _normnet,
    "convnext": _convnext,
    "decoder": _decoder,
    "resmlp": _resmlp,
    "twotower": _twotower,
    "unet": _unet,
    "lstm": _lstm,
    "gru": _gru,
}
TRAIN_TEMPLATES = ("resnet", "encoder", "mlp", "dlrm", "normnet", "lstm")
TEST_TEMPLATES = ("convnext", "decoder", "resmlp", "twotower", "unet", "gru")


def build(template: str, batch: int, dtype: str, device: str, sizes: dict[str, object] | None = None) -> Net:
    """The operators of one step of ``template`` at ``batch`` samples in ``dtype`` on ``device``."""
    net = Net(template, batch, dtype, DEVICES[device])
    TEMPLATES[template](net, **(sizes or {}))
    return net


def fixed_bytes(net: Net, optimizer: str) -> int:
    """Device bytes that do not grow with the batch: weights, gradients, optimizer state, workspaces."""
    numel = 0
    for shape in net.params:
        n = 1
        for d in shape:
            n *= d
        numel += n
    es = elem_bytes(net.dtype)
    state = {"AdamW": 8, "SGD": 4}[optimizer]
    return numel * (2 * es + state) + (96 << 20)


def activation_bytes(net: Net) -> int:
    """Device bytes kept from the forward pass for the backward pass, with the batch's own tensors."""
    return sum(op.out_bytes + (op.saved if op.saved != op.out_bytes else 0) for op in net.forward) + sum(
        b for _, _, b in net.inputs
    )
