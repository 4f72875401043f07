# ruff: noqa: E501  (kernel names are as long as they are)
"""Layers in terms of operators: each function appends one layer's forward and backward to a net."""

from __future__ import annotations

from benchmarks.simulator.ops import Kernel, Net, Op, conv, cxx, elem_bytes, gemm, pointwise, type_name


def _t(net: Net) -> str:
    return type_name(net.dtype)


def _reduce(net: Net, n: int, out: int) -> Kernel:
    f = cxx(net.dtype)
    op = f"at::native::ReduceOp<{f}, at::native::func_wrapper_t<{f}, at::native::sum_functor<{f}, float, {f}>::operator()(at::TensorIterator&)::{{lambda(float, float)#1}}>, unsigned int, {f}, 4>"
    return Kernel(
        f"void at::native::reduce_kernel<128, 4, {op} >({op})",
        float(n),
        float((n + out) * elem_bytes(net.dtype)),
        blocks=max(1, n // 4096),
        threads=512,
        eff=0.3,
    )


def conv2d(net: Net, cin: int, cout: int, h: int, r: int, stride: int = 1, first: bool = False) -> int:
    """Convolution without bias; returns the output size. The first layer needs no input gradient."""
    b, dt, dev = net.batch, net.dtype, net.device
    ho = -(-h // stride)
    es = elem_bytes(dt)
    fwd = [conv(dev, dt, b, cin, cout, ho, ho, r, "fprop")]
    if dt in ("fp16", "bf16") and first:
        n = b * cin * h * h
        t = "__half" if dt == "fp16" else "__nv_bfloat16"
        fwd.insert(
            0,
            Kernel(
                f"void cudnn::ops::nchwToNhwcKernel<{t}, {t}, float, false, true, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>, {t} const*, {t}*)",
                float(n),
                2.0 * n * es,
                blocks=max(1, n // 1024),
                regs=32,
                smem=2112,
            ),
        )
    back = [conv(dev, dt, b, cin, cout, ho, ho, r, "wgrad")]
    if not first:
        back.insert(0, conv(dev, dt, b, cin, cout, ho, ho, r, "dgrad"))
    out = b * cout * ho * ho * es
    shape = ((b, cin, h, h), (cout, cin, r, r))
    gshape = ((b, cout, ho, ho), (b, cin, h, h), (cout, cin, r, r))
    net.params.append((cout, cin, r, r))
    net.forward.append(
        Op(
            ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution"),
            tuple(fwd),
            shape,
            _t(net),
            out,
            "ConvolutionBackward0",
            (Op(("aten::convolution_backward",), tuple(back), gshape, _t(net)),),
            ((cout, cin, r, r),),
            saved=out,
        )
    )
    return ho


def batch_norm(net: Net, c: int, h: int) -> None:
    """Training batch norm: one fused kernel forward, one backward, and the counter's increment."""
    n = net.batch * c * h * h
    es = elem_bytes(net.dtype)
    t = "__half" if net.dtype == "fp16" else "__nv_bfloat16" if net.dtype == "bf16" else "float"
    blocks = max(c, min(4 * net.device.sms, n // 8192))
    fwd = Kernel(
        f"void cudnn::bn_fw_tr_1C11_kernel_NCHW<{t}, float, int, 512, true, 1, true>(cudnnTensorStruct, {t} const*, cudnnTensorStruct, {t}*, float const*, float const*, float, float, float*, float*, float const*, float const*, float)",
        8.0 * n,
        3.0 * n * es,
        blocks=blocks,
        threads=512,
        regs=64,
        smem=144,
        eff=0.3,
    )
    bwd = Kernel(
        f"void cudnn::bn_bw_1C11_kernel_new<{t}, float, float2, 512, true, 1>({t}, {t}, {t}, {t}, cudnnTensorStruct, {t} const*, cudnnTensorStruct, {t} const*, cudnnTensorStruct, {t}*, float const*, float*, float*, float const*, float const*, float)",
        12.0 * n,
        5.0 * n * es,
        blocks=blocks,
        threads=512,
        regs=72,
        smem=192,
        eff=0.3,
    )
    add = Kernel(
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<long>, std::array<char*, 2ul> >(int, at::native::CUDAFunctorOnSelf_add<long>, std::array<char*, 2ul>)",
        1.0,
        16.0,
        blocks=1,
        threads=128,
        regs=24,
    )
    shape = ((net.batch, c, h, h), (c,), (c,), (c,), (c,))
    net.params += [(c,), (c,)]
    net.forward.append(Op(("aten::add_",), (add,), ((), (), ()), "long int"))
    net.forward.append(
        Op(
            ("aten::batch_norm", "aten::_batch_norm_impl_index", "aten::cudnn_batch_norm"),
            (fwd,),
            shape,
            _t(net),
            n * es,
            "CudnnBatchNormBackward0",
            (Op(("aten::cudnn_batch_norm_backward",), (bwd,), shape, _t(net)),),
            ((c,), (c,)),
            saved=n * es,
        )
    )


def unary(net: Net, shape: tuple[int, ...], kind: str, flops: float = 1.0, inplace: bool = False) -> None:
    """An elementwise activation: relu, gelu, silu, tanh, sigmoid."""
    n = 1
    for d in shape:
        n *= d
    functor = {
        "relu": "launch_clamp_scalar_functor",
        "gelu": "GeluCUDAKernelImpl_functor",
        "silu": "silu_functor",
        "tanh": "tanh_functor",
        "sigmoid": "sigmoid_functor",
    }[kind]
    back = {
        "relu": ("ReluBackward0", "aten::threshold_backward"),
        "gelu": ("GeluBackward0", "aten::gelu_backward"),
        "silu": ("SiluBackward0", "aten::silu_backward"),
        "tanh": ("TanhBackward0", "aten::tanh_backward"),
        "sigmoid": ("SigmoidBackward0", "aten::sigmoid_backward"),
    }[kind]
    es = elem_bytes(net.dtype)
    name = f"aten::{kind}_" if inplace else f"aten::{kind}"
    chain = (name, "aten::clamp_min_") if kind == "relu" and inplace else (name,)
    net.forward.append(
        Op(
            chain,
            (pointwise(functor, n, net.dtype, 1, flops),),
            (shape,),
            _t(net),
            0 if inplace else n * es,
            back[0],
            (
                Op(
                    (back[1],),
                    (pointwise(f"{kind}_backward_functor", n, net.dtype, 2, flops),),
                    (shape, shape),
                    _t(net),
                ),
            ),
            saved=0 if inplace else n * es,
        )
    )


def add(net: Net, shape: tuple[int, ...]) -> None:
    """A residual addition; its gradient is passed on without a kernel and summed where paths join."""
    n = 1
    for d in shape:
        n *= d
    net.forward.append(
        Op(
            ("aten::add",),
            (pointwise("CUDAFunctor_add", n, net.dtype, 2),),
            (shape, shape, ()),
            _t(net),
            n * elem_bytes(net.dtype),
            "AddBackward0",
            (
                Op(
                    ("aten::add_",),
                    (pointwise("CUDAFunctor_add", n, net.dtype, 2),),
                    (shape, shape, ()),
                    _t(net),
                ),
            ),
        )
    )


def mul(net: Net, shape: tuple[int, ...]) -> None:
    """An elementwise product of two activations."""
    n = 1
    for d in shape:
        n *= d
    k = pointwise("BinaryFunctor_MulFunctor", n, net.dtype, 2)
    net.forward.append(
        Op(
            ("aten::mul",),
            (k,),
            (shape, shape),
            _t(net),
            n * elem_bytes(net.dtype),
            "MulBackward0",
            (
                Op(("aten::mul",), (k,), (shape, shape), _t(net)),
                Op(("aten::mul",), (k,), (shape, shape), _t(net)),
            ),
            saved=n * elem_bytes(net.dtype),
        )
    )


def linear(net: Net, m: int, k: int, n: int, bias: bool = True) -> None:
    """A dense layer on ``m`` rows: one GEMM forward, two backward, a reduction for the bias."""
    dev, dt = net.device, net.dtype
    back = [
        Op(("aten::mm",), (gemm(dev, dt, m, k, n, "nn"),), ((m, n), (n, k)), _t(net), views=("aten::t",)),
        Op(("aten::mm",), (gemm(dev, dt, n, k, m, "nt"),), ((n, m), (m, k)), _t(net), views=("aten::t",)),
    ]
    params: tuple[tuple[int, ...], ...] = ((n, k),)
    if bias:
        back.append(Op(("aten::sum",), (_reduce(net, m * n, n),), ((m, n),), _t(net)))
        params = ((n, k), (n,))
    net.params += list(params)
    out = m * n * elem_bytes(dt)
    inner = "aten::addmm" if bias else "aten::mm"
    net.forward.append(
        Op(
            ("aten::linear", inner),
            (gemm(dev, dt, m, n, k, "tn"),),
            ((n,), (m, k), (k, n)) if bias else ((m, k), (k, n)),
            _t(net),
            out,
            "AddmmBackward0" if bias else "MmBackward0",
            tuple(back),
            params,
            views=("aten::t",),
            saved=out,
        )
    )


def bmm(net: Net, batch: int, m: int, k: int, n: int) -> None:
    """A batched matrix product of two activations."""
    dev, dt = net.device, net.dtype
    out = batch * m * n * elem_bytes(dt)
    net.forward.append(
        Op(
            ("aten::matmul", "aten::bmm"),
            (gemm(dev, dt, m, n, k, "nn", batch),),
            ((batch, m, k), (batch, k, n)),
            _t(net),
            out,
            "BmmBackward0",
            (
                Op(
                    ("aten::bmm",),
                    (gemm(dev, dt, m, k, n, "nt", batch),),
                    ((batch, m, n), (batch, n, k)),
                    _t(net),
                ),
                Op(
                    ("aten::bmm",),
                    (gemm(dev, dt, k, n, m, "tn", batch),),
                    ((batch, k, m), (batch, m, n)),
                    _t(net),
                ),
            ),
            saved=out,
        )
    )


def layer_norm(net: Net, rows: int, d: int) -> None:
    """Layer norm over ``d``: one kernel forward; input and weight gradients backward."""
    n = rows * d
    es = elem_bytes(net.dtype)
    t = cxx(net.dtype)
    fwd = Kernel(
        f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{t}, float>(int, float, {t} const*, {t} const*, {t} const*, float*, float*, {t}*)",
        8.0 * n,
        2.0 * n * es,
        blocks=rows,
        threads=128,
        regs=40,
        eff=0.3,
    )
    b1 = Kernel(
        f"void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<{t}, float>({t} const*, {t} const*, float const*, float const*, {t} const*, {t}*, int)",
        10.0 * n,
        3.0 * n * es,
        blocks=rows,
        threads=128,
        regs=48,
        eff=0.3,
    )
    b2 = Kernel(
        f"void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<{t}, float>(long, long, {t} const*, {t} const*, float const*, float const*, {t}*, {t}*)",
        4.0 * n,
        2.0 * n * es,
        blocks=max(1, d // 32 * 8),
        threads=512,
        regs=40,
        smem=8448,
        eff=0.3,
    )
    net.params += [(d,), (d,)]
    net.forward.append(
        Op(
            ("aten::layer_norm", "aten::native_layer_norm"),
            (fwd,),
            ((rows, d), (), (d,), (d,)),
            _t(net),
            n * es,
            "NativeLayerNormBackward0",
            (Op(("aten::native_layer_norm_backward",), (b1, b2), ((rows, d), (rows, d)), _t(net)),),
            ((d,), (d,)),
            saved=n * es,
        )
    )


def group_norm(net: Net, c: int, h: int) -> None:
    """Group norm as torch runs it: moments, affine coefficients, elementwise; three kernels backward."""
    n = net.batch * c * h * h
    es = elem_bytes(net.dtype)
    t = cxx(net.dtype)
    moments = Kernel(
        f"void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<{t}>(long, {t}, {t} const*, {t}*, {t}*)",
        4.0 * n,
        1.0 * n * es,
        blocks=net.batch * 32,
        threads=512,
        eff=0.3,
    )
    affine = pointwise("GroupNormKernelImplInternal_functor", n, net.dtype, 2, 2.0)
    g1 = Kernel(
        f"void at::native::(anonymous namespace)::ComputeInternalGradientsCUDAKernel<{t}>(long, {t} const*, {t} const*, float*, float*)",
        4.0 * n,
        2.0 * n * es,
        blocks=net.batch * c,
        threads=256,
        eff=0.3,
    )
    g2 = pointwise("GroupNormBackwardKernelImplInternal_functor", n, net.dtype, 2, 3.0)
    net.params += [(c,), (c,)]
    shape = ((net.batch, c, h, h), (c,), (c,))
    net.forward.append(
        Op(
            ("aten::group_norm", "aten::native_group_norm"),
            (moments, affine),
            shape,
            _t(net),
            n * es,
            "NativeGroupNormBackward0",
            (Op(("aten::native_group_norm_backward",), (g1, g2), shape, _t(net)),),
            ((c,), (c,)),
            saved=n * es,
        )
    )


def pool(net: Net, c: int, h: int, factor: int) -> int:
    """Max pooling by ``factor``, or global average pooling where the output is one pixel."""
    ho = max(1, h // factor)
    n, o = net.batch * c * h * h, net.batch * c * ho * ho
    es = elem_bytes(net.dtype)
    t = cxx(net.dtype)
    if ho == 1:
        chain, grad, back = ("aten::adaptive_avg_pool2d", "aten::mean"), "MeanBackward1", "aten::div"
        fwd = _reduce(net, n, o)
        bwd = pointwise("BinaryFunctor_DivFunctor", n, net.dtype, 1)
    else:
        chain, grad, back = (
            ("aten::max_pool2d", "aten::max_pool2d_with_indices"),
            "MaxPool2DWithIndicesBackward0",
            "aten::max_pool2d_with_indices_backward",
        )
        fwd = Kernel(
            f"void at::native::(anonymous namespace)::max_pool_forward_nchw<{t}, {t}>(int, {t} const*, int, int, int, int, int, int, int, int, int, int, int, int, int, {t}*, long*)",
            9.0 * o,
            float(n * es + o * (es + 8)),
            blocks=max(1, o // 256),
            threads=256,
            eff=0.3,
        )
        bwd = Kernel(
            f"void at::native::(anonymous namespace)::max_pool_backward_nchw<{t}, float>({t} const*, long const*, int, int, int, int, int, int, int, int, int, int, int, int, int, int, {t}*)",
            9.0 * n,
            float(n * es + o * (es + 8)),
            blocks=max(1, n // 256),
            threads=256,
            eff=0.3,
        )
    shape = ((net.batch, c, h, h),)
    net.forward.append(
        Op(chain, (fwd,), shape, _t(net), o * es, grad, (Op((back,), (bwd,), shape, _t(net)),), saved=o * 8)
    )
    return ho


def sdpa(net: Net, heads: int, seq: int, d: int) -> None:
    """Fused attention over ``seq`` tokens (flash where there are tensor cores, else memory-efficient)."""
    b, dt, dev = net.batch, net.dtype, net.device
    es = elem_bytes(dt)
    flops = 4.0 * b * heads * seq * seq * d
    moved = 4.0 * b * heads * seq * d * es
    t = "cutlass::half_t" if dt == "fp16" else "cutlass::bfloat16_t"
    flash = dt in ("fp16", "bf16") and dev.cc >= (8, 0)
    blocks = b * heads * -(-seq // 64)
    if flash:
        fn, bn = (
            f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{d}, 128, 128, 4, false, false, {t}>, false, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)",
            f"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<{d}, 64, 128, 8, 2, 4, 4, false, false, {t}>, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)",
        )
        chain = (
            "aten::scaled_dot_product_attention",
            "aten::_scaled_dot_product_flash_attention",
            "aten::_flash_attention_forward",
        )
        grad, back = (
            "ScaledDotProductFlashAttentionBackward0",
            "aten::_scaled_dot_product_flash_attention_backward",
        )
    else:
        fn, bn = (
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)",
            "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm80, float, true, false, false, 64, 64, 64, false>::Params)",
        )
        chain = (
            "aten::scaled_dot_product_attention",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_efficient_attention_forward",
        )
        grad, back = (
            "ScaledDotProductEfficientAttentionBackward0",
            "aten::_scaled_dot_product_efficient_attention_backward",
        )
    shape = ((b, heads, seq, d),) * 3
    # the kernels' own operators take tokens before heads; backward ones the gradient first, and output and log-sums last
    inner = ((b, seq, heads, d),) * 3
    bias = () if flash else ((),)
    given = (*((b, heads, seq, d),) * 4, *bias, (b, heads, seq, d), (b, heads, seq))
    fwd = Kernel(fn, flops, moved, tensor=True, blocks=blocks, threads=128, regs=255, smem=65536, eff=0.45)
    bwd = Kernel(
        bn, 2.5 * flops, 2.5 * moved, tensor=True, blocks=blocks, threads=256, regs=255, smem=98304, eff=0.35
    )
    out = b * heads * seq * d * es
    net.forward.append(
        Op(
            chain,
            (fwd,),
            shape,
            _t(net),
            out,
            grad,
            (Op((back,), (bwd,), given, _t(net)),),
            views=("aten::transpose",),
            saved=2 * out,
            inner=inner,
        )
    )


def embedding(net: Net, rows: int, d: int, vocab: int) -> None:
    """A table lookup of ``rows`` rows, with a dense gradient: zeroed table, then scattered rows."""
    es = elem_bytes(net.dtype)
    t = cxx(net.dtype)
    gather = Kernel(
        f"void at::native::(anonymous namespace)::indexSelectLargeIndex<{t}, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<{t}, unsigned int>, at::cuda::detail::TensorInfo<{t} const, unsigned int>, at::cuda::detail::TensorInfo<long const, unsigned int>, int, int, unsigned int, unsigned int, long)",
        float(rows * d),
        2.0 * rows * d * es * 1.5,
        blocks=max(1, rows * d // 128),
        threads=128,
    )
    zero = Kernel("Memset (Device)", 0.0, float(vocab * d * es), blocks=4096, memset=True)
    scatter = Kernel(
        f"void at::native::(anonymous namespace)::embedding_backward_feature_kernel<{t}, float, long>(long const*, {t} const*, {t}*, int, long, int)",
        float(rows * d),
        4.0 * rows * d * es,
        blocks=max(1, rows // 4),
        threads=256,
        eff=0.3,
    )
    net.params.append((vocab, d))
    net.forward.append(
        Op(
            ("aten::embedding", "aten::index_select"),
            (gather,),
            ((vocab, d), (rows,)),
            _t(net),
            rows * d * es,
            "EmbeddingBackward0",
            (
                Op(
                    ("aten::embedding_backward", "aten::embedding_dense_backward"),
                    (zero, scatter),
                    ((rows, d), (rows,)),
                    _t(net),
                ),
            ),
            ((vocab, d),),
            saved=rows * 8,
        )
    )


def cat(net: Net, rows: int, d: int) -> None:
    """A concatenation that copies ``rows x d`` elements."""
    es = elem_bytes(net.dtype)
    k = Kernel(
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int, 2, 128, 1>(at::native::(anonymous namespace)::OpaqueType<4u>*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int, 128, 1>, at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
        0.0,
        2.0 * rows * d * es,
        blocks=max(1, rows * d // 512),
        threads=128,
    )
    net.forward.append(
        Op(("aten::cat",), (k,), ((rows, d),), _t(net), rows * d * es, "CatBackward0", (), saved=0)
    )


def cross_entropy(net: Net, rows: int, classes: int) -> None:
    """Log-softmax and negative log-likelihood over ``classes``."""
    n = rows * classes
    es = elem_bytes(net.dtype)
    t = cxx(net.dtype)
    soft = Kernel(
        f"void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, {t}, float, {t}, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>({t}*, {t} const*, int)",
        5.0 * n,
        2.0 * n * es,
        blocks=rows,
        threads=1024 if classes > 2048 else 256,
        eff=0.3,
    )
    sback = Kernel(
        f"void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, {t}, float, {t}, at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue>({t}*, {t} const*, {t} const*, long)",
        5.0 * n,
        3.0 * n * es,
        blocks=rows,
        threads=1024 if classes > 2048 else 256,
        eff=0.3,
    )
    nll = Kernel(
        f"void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<{t}, float, long>({t}*, {t}*, {t} const*, long const*, {t} const*, bool, long, long, long, long)",
        float(rows),
        float(rows * (es + 8)),
        blocks=1,
        threads=32,
    )
    zero = Kernel("Memset (Device)", 0.0, float(n * es), blocks=max(1, n // 1024), memset=True)
    nback = Kernel(
        f"void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<{t}, long>({t}*, {t} const*, long const*, {t} const*, {t} const*, bool, int, int, long, long)",
        float(rows),
        float(rows * 16),
        blocks=1,
        threads=32,
    )
    net.forward.append(
        Op(
            ("aten::log_softmax", "aten::_log_softmax"),
            (soft,),
            ((rows, classes),),
            _t(net),
            n * es,
            "LogSoftmaxBackward0",
            (
                Op(
                    ("aten::_log_softmax_backward_data",),
                    (sback,),
                    ((rows, classes), (rows, classes)),
                    _t(net),
                ),
            ),
            saved=n * es,
        )
    )
    net.forward.append(
        Op(
            ("aten::nll_loss_nd", "aten::nll_loss", "aten::nll_loss_forward"),
            (nll,),
            ((rows, classes), (rows,)),
            _t(net),
            4,
            "NllLossBackward0",
            (Op(("aten::nll_loss_backward",), (zero, nback), ((), (rows, classes), (rows,)), _t(net)),),
            module=False,
        )
    )


def mse(net: Net, rows: int, d: int) -> None:
    """Mean squared error."""
    n = rows * d
    net.forward.append(
        Op(
            ("aten::mse_loss",),
            (pointwise("mse_functor", n, net.dtype, 2), _reduce(net, n, 1)),
            ((rows, d), (rows, d)),
            _t(net),
            4,
            "MseLossBackward0",
            (
                Op(
                    ("aten::mse_loss_backward",),
                    (pointwise("mse_backward_functor", n, net.dtype, 2),),
                    ((), (rows, d), (rows, d)),
                    _t(net),
                ),
            ),
            module=False,
        )
    )


def rnn(net: Net, seq: int, hidden: int, kind: str) -> None:
    """A recurrent layer through cuDNN: one call that launches a small GEMM and a cell for every time step."""
    b, dt, dev = net.batch, net.dtype, net.device
    gates = {"lstm": 4, "gru": 3}[kind]
    es = elem_bytes(dt)
    t = "float" if dt in ("fp32", "tf32") else "__half"
    cell = Kernel(
        f"void {kind.upper()}_elementWise_fp<{t}, {t}, float, (cudnnRNNBiasMode_t)2>(int, int, int, int, {t} const*, {t} const*, {t} const*, {t} const*, {t} const*, {t}*, {t}*, {t}*, {t}*, bool, int, cudnnRNNClipMode_t, cudnnNanPropagation_t, float, float)",
        30.0 * b * hidden,
        float((gates + 3) * b * hidden * es),
        blocks=max(1, b * hidden // 256),
        eff=0.3,
    )
    cell_back = Kernel(
        cell.name.replace("_fp<", "_bp1<"),
        45.0 * b * hidden,
        float((2 * gates + 4) * b * hidden * es),
        blocks=max(1, b * hidden // 256),
        eff=0.3,
    )
    forward = [k for _ in range(seq) for k in (gemm(dev, dt, b, gates * hidden, hidden, "tn"), cell)]
    back = [k for _ in range(seq) for k in (cell_back, gemm(dev, dt, b, hidden, gates * hidden, "nn"))]
    back.append(gemm(dev, dt, gates * hidden, hidden, b * seq, "nt"))
    params = ((gates * hidden, hidden), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
    net.params += list(params)
    shape = ((seq, b, hidden), (gates * hidden, hidden), (gates * hidden, hidden))
    out = seq * b * hidden * es
    net.forward.append(
        Op(
            (f"aten::{kind}", "aten::_cudnn_rnn"),
            tuple(forward),
            shape,
            _t(net),
            out,
            "CudnnRnnBackward0",
            (Op(("aten::_cudnn_rnn_backward",), tuple(back), shape, _t(net)),),
            params,
            saved=out * (gates + 1),
        )
    )
