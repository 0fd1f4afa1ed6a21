// archs: sm_90a
// Warp-specialised GEMM: TMA producers, WGMMA consumers (pingpong), FP32 accumulation.
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/device_kernel.h"

using namespace cute;
#ifdef USE_BF16
using Element = cutlass::bfloat16_t;
#else
using Element = cutlass::half_t;
#endif
using TileShape = Shape<_64, _128, _64>;
using Cluster = Shape<_1, _1, _1>;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, Element, Row, 8, Element, Row, 8, cutlass::epilogue::TmaWarpSpecialized>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Row, 8, Element, Column, 8, float, TileShape, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
using Gemm = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
template __global__ void cutlass::device_kernel<Gemm>(CUTLASS_GRID_CONSTANT Gemm::Params const);
