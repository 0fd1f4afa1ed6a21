// Heavy in predicates: sorting networks, bounds on every access, median of nine, and a bracket search.
__device__ __forceinline__ void order(float& a, float& b) {
  float low = fminf(a, b);
  b = fmaxf(a, b);
  a = low;
}

extern "C" __global__ void median9(float* out, const float* in, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float v[9];
#pragma unroll
  for (int k = 0; k < 9; ++k) {
    int xx = x + k % 3 - 1, yy = y + k / 3 - 1;
    v[k] = (xx >= 0 && xx < width && yy >= 0 && yy < height) ? in[yy * width + xx] : 0.f;
  }
#pragma unroll
  for (int i = 0; i < 5; ++i)
#pragma unroll
    for (int j = i + 1; j < 9; ++j) order(v[i], v[j]);
  out[y * width + x] = v[4];
}

extern "C" __global__ void classify(unsigned char* out, const float4* boxes, const float2* points, int n, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float2 p = points[i];
  unsigned char hit = 0;
  for (int k = 0; k < count; ++k) {
    float4 b = boxes[k];
    bool inside = p.x >= b.x && p.x < b.z && p.y >= b.y && p.y < b.w;
    bool corner = (p.x - b.x) * (p.x - b.x) + (p.y - b.y) * (p.y - b.y) < 0.01f;
    if (inside && !corner) hit |= 1;
    if (inside != corner && (k & 1)) hit |= 2;
    if (!inside && !corner && p.x > p.y) hit |= 4;
  }
  out[i] = hit;
}

extern "C" __global__ void lower_bound(int* out, const int* sorted, const int* keys, int n, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int low = 0, high = n, key = keys[i];
  while (low < high) {
    int middle = (low + high) >> 1;
    if (sorted[middle] < key) low = middle + 1; else high = middle;
  }
  out[i] = low;
}
