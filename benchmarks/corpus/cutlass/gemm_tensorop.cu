// archs: sm_80 sm_86 sm_90a
// FP16 or BF16 GEMM with mma.sync m16n8k16, cp.async stages, FP32 accumulation.
#include "cutlass/gemm/device/gemm.h"

#ifdef USE_BF16
using Element = cutlass::bfloat16_t;
#else
using Element = cutlass::half_t;
#endif
using Epilogue = cutlass::epilogue::thread::LinearCombination<Element, 8, float, float>;
template <int M, int N, int WM, int WN, int Stages>
using Gemm = cutlass::gemm::device::Gemm<
    Element, cutlass::layout::RowMajor, Element, cutlass::layout::ColumnMajor, Element, cutlass::layout::RowMajor, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<M, N, 32>,
    cutlass::gemm::GemmShape<WM, WN, 32>, cutlass::gemm::GemmShape<16, 8, 16>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, Stages>;
using Large = Gemm<128, 128, 64, 64, 4>::GemmKernel;
using Small = Gemm<64, 64, 32, 32, 3>::GemmKernel;
template __global__ void cutlass::Kernel<Large>(Large::Params);
template __global__ void cutlass::Kernel<Small>(Small::Params);
