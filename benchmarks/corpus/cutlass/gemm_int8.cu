// archs: sm_80 sm_89 sm_90a
// INT8 GEMM with mma.sync m16n8k32 and saturating conversion.
#include "cutlass/gemm/device/gemm.h"

using Epilogue = cutlass::epilogue::thread::LinearCombinationClamp<int8_t, 16, int32_t, float>;
using Gemm = cutlass::gemm::device::Gemm<
    int8_t, cutlass::layout::RowMajor, int8_t, cutlass::layout::ColumnMajor, int8_t, cutlass::layout::RowMajor, int32_t,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<128, 128, 64>,
    cutlass::gemm::GemmShape<64, 64, 64>, cutlass::gemm::GemmShape<16, 8, 32>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 3>;
template __global__ void cutlass::Kernel<Gemm::GemmKernel>(Gemm::GemmKernel::Params);
