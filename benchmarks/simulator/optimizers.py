"""What an optimizer's step launches: a few kernels over all parameters (fused, foreach) or many for each (single)."""

from __future__ import annotations

from math import prod

from benchmarks.simulator.ops import Kernel, Net, Op, elem_bytes, pointwise, type_name

FOREACH = {
    "AdamW": ("_foreach_mul_", "_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_", "_foreach_div", "_foreach_sqrt",
              "_foreach_div_", "_foreach_add_", "_foreach_addcdiv_"),
    "SGD": ("_foreach_mul_", "_foreach_add_", "_foreach_add_"),
}  # fmt: skip
SINGLE = {
    "AdamW": (("mul_", 2), ("lerp_", 3), ("mul_", 2), ("addcmul_", 3), ("sqrt", 2), ("div_", 2), ("add_", 2),
              ("addcdiv_", 3)),
    "SGD": (("mul_", 2), ("add_", 3), ("add_", 3)),
}  # fmt: skip
APPLY = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
)


def step_ops(net: Net, optimizer: str, how: str) -> list[tuple[float, Op]]:
    """The operators of one optimizer step, each with the host time (us) spent in front of it."""
    numels = [prod(shape) for shape in net.params]
    total, es, typ = sum(numels), elem_bytes(net.dtype), type_name(net.dtype)

    def over_all(name: str, kernel: str, chunk: int, flops: float, moved: float, block: int) -> Op:
        chunks = max(1, -(-len(numels) // chunk))
        part = total / chunks
        blocks = max(1, int(part) // block)
        one = Kernel(kernel, flops * part, moved * part * es, blocks=blocks, threads=512)
        return Op((name,), (one,) * chunks, ((),), typ)

    if how == "fused":
        kernel = (
            f"{APPLY}FusedOptimizerTensorListMetadata<4>, "
            f"at::native::(anonymous namespace)::FusedAdamMathFunctor<{net.dtype}, 4>, float, double, double>"
        )
        return [(0.0, over_all("aten::_fused_adamw_", kernel, 36, 12.0, 7.0, 8192))]
    if how == "foreach":
        ops = []
        for name in FOREACH[optimizer]:
            functor = name.strip("_").title().replace("_", "")
            kernel = f"{APPLY}TensorListMetadata<2>, at::native::(anonymous namespace)::{functor}Functor<float, 2, 1, 1>>"
            # Python walks the list of parameters before every call
            ops.append((0.25 * len(numels), over_all(f"aten::{name}", kernel, 110, 2.0, 3.0, 4096)))
        return ops
    return [
        (
            4.0 if i == 0 else 0.0,
            Op(
                (f"aten::{name}",),
                (pointwise(f"{name.strip('_')}_functor", n, net.dtype, inputs),),
                (shape,),
                typ,
            ),
        )
        for n, shape in zip(numels, net.params, strict=True)
        for i, (name, inputs) in enumerate(SINGLE[optimizer])
    ]
