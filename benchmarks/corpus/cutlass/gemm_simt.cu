// archs: sm_80 sm_90a
// FP32 GEMM on the FMA units.
#include "cutlass/gemm/device/gemm.h"

using Gemm = cutlass::gemm::device::Gemm<float, cutlass::layout::RowMajor, float, cutlass::layout::ColumnMajor, float,
                                         cutlass::layout::RowMajor>;
template __global__ void cutlass::Kernel<Gemm::GemmKernel>(Gemm::GemmKernel::Params);
