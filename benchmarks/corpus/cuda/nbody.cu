// All-pairs gravity with tiles of bodies in shared memory: FMA and rsqrt bound.
extern "C" __global__ void nbody(float4* acceleration, const float4* bodies, int n, float softening) {
  extern __shared__ float4 tile[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 me = bodies[min(i, n - 1)];
  float ax = 0.f, ay = 0.f, az = 0.f;
  for (int start = 0; start < n; start += blockDim.x) {
    tile[threadIdx.x] = start + threadIdx.x < n ? bodies[start + threadIdx.x] : make_float4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 8
    for (int j = 0; j < blockDim.x; ++j) {
      float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
      float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
      float scale = tile[j].w * inverse * inverse * inverse;
      ax = fmaf(dx, scale, ax);
      ay = fmaf(dy, scale, ay);
      az = fmaf(dz, scale, az);
    }
    __syncthreads();
  }
  if (i < n) acceleration[i] = make_float4(ax, ay, az, 0.f);
}
