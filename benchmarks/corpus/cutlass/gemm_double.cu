// archs: sm_80 sm_90a
// FP64 GEMM on the tensor cores (m8n8k4).
#include "cutlass/gemm/device/gemm.h"

using Epilogue = cutlass::epilogue::thread::LinearCombination<double, 1, double, double>;
using Gemm = cutlass::gemm::device::Gemm<
    double, cutlass::layout::RowMajor, double, cutlass::layout::ColumnMajor, double, cutlass::layout::RowMajor, double,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<64, 64, 16>,
    cutlass::gemm::GemmShape<32, 32, 16>, cutlass::gemm::GemmShape<8, 8, 4>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 3>;
template __global__ void cutlass::Kernel<Gemm::GemmKernel>(Gemm::GemmKernel::Params);
