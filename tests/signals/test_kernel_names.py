"""Families, number formats and gradients of kernel names as the libraries write them."""

from __future__ import annotations

import pytest

from tracelens.signals.kernel_names import family, gradient, number_format, precision

FAMILIES = [
    # cuBLAS, CUTLASS, nvjet
    ("volta_sgemm_128x64_nn", "gemm", "fp32"),
    ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "gemm", "fp16"),
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "gemm", "fp16"),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "gemm", "bf16"),
    ("ampere_sgemm_128x64_nt", "gemm", "fp32"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_32x3_nt_align1>(Params)", "gemm", "tf32"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(Params)", "gemm", "fp32"),
    ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(P)", "gemm", "bf16"),
    ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", "gemm", "fp64"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_segment_k_off_kernel__5x_cublas", "gemm", "bf16"),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_execute_kernel", "gemm", "fp8"),
    ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "gemm", "bf16"),
    ("nvjet_hsh_128x128_64x6_2x1_v_bz_NNT", "gemm", "fp16"),
    ("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT", "gemm", "fp8"),
    ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false>(p)", "gemv", "fp32"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(p)", "gemm", "bf16"),
    # cuDNN
    ("volta_scudnn_128x64_relu_xregs_large_nn_v1", "convolution", "fp32"),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_g1_tensor16x8x8", "convolution", "tf32"),
    ("sm80_xmma_dgrad_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_g1_ffma_t1r3s3", "convolution", "fp32"),
    ("void cutlass_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x64_16x4_nhwc>(P)", "convolution", "tf32"),
    ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", "convolution", "fp32"),
    ("void implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3, 5, 1, false, true, true>(int)", "convolution", "fp32"),
    # attention
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t>>(p)", "attention", "bf16"),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>)", "attention", "fp16"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0", "attention", "fp16"),
    # ROCm
    ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x128x64_MI16x16x1_SN", "gemm", "bf16"),
    ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1", "gemm", "fp16"),
    ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_1LDSB0", "gemm", "fp32"),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8", "convolution", "bf16"),
    ("_ZN2ck16tensor_operation6device37kernel_grouped_conv_fwd_xdl_cshuffleINS_34Gridwise", "convolution", None),
    # Triton and Inductor
    ("triton_tem_fused_mm_relu_3", "gemm", None),
]  # fmt: skip

OTHER = [
    ("triton_poi_fused_add_relu_0", "pointwise"),
    ("triton_red_fused_native_layer_norm_2", "normalisation"),
    ("triton_per_fused_sum_1", "reduction"),
    ("triton__0d1d2d3d", "fused"),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(p)", "normalisation"),
    ("MIOpenBatchNormFwdTrainSpatial", "normalisation"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "normalisation"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)", "softmax"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(x)>", "pointwise"),
    ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<direct_copy_kernel_cuda>>", "pointwise"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>", "reduction"),
    ("void at::native::reduce_kernel<128, 4, ReduceOp<float, sum_functor::operator(){lambda(float)#1}>>", "reduction"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer"),
    ("void at::native::index_elementwise_kernel<128, 4, index_kernel_impl>(x)", "embedding"),
    ("void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float>(x)", "embedding"),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "pointwise"),
    ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 2>(p)", "layout"),
    ("batched_transpose_32x32_half", "layout"),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(p)", "layout"),
    ("void cudnn::winograd_nonfused::winogradWgradDelta4x4<float, float>(p)", "layout"),
    ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)", "pooling"),
    ("void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(p)", "loss"),
    ("void cub::DeviceRadixSortOnesweepKernel<long>(p)", "sort"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
    ("my_own_kernel_v3", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected", "number"), FAMILIES)
def test_matrix_kernels(name: str, expected: str, number: str | None) -> None:
    assert family(name) == expected
    assert number_format(name) == number


@pytest.mark.parametrize(("name", "expected"), OTHER)
def test_other_kernels(name: str, expected: str | None) -> None:
    assert family(name) == expected


def test_dtype_completes_the_name() -> None:
    assert number_format("some_matmul_kernel", "bf16") == "bf16"
    assert number_format("kernel_tensorop_gemm", "fp32") == "tf32"
    assert number_format("cutlass_tensorop_gemm_128", "fp16") == "fp16"
    # plain single precision stays that, whatever the operator's inputs are
    assert number_format("volta_sgemm_128x64_nn", "fp16") == "fp32"
    assert number_format("my_own_kernel_v3") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_nn", "fp32"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "tensor_core"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "tensor_core"),
        ("triton_poi_fused_add_relu_0", None),
        ("some_matmul_kernel", None),
    ],
)
def test_precision(name: str, expected: str | None) -> None:
    assert precision(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", 0),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", 1),
        ("igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32", 1),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)", 2),
        ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64", 2),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47Gridwise", 2),
        ("volta_sgemm_64x64_nt", 0),
    ],
)
def test_gradients(name: str, expected: int) -> None:
    assert gradient(name) == expected
