// Constant memory, indexed uniformly and by lane; CRC and colour conversion; byte permutes and dp4a.
__constant__ unsigned crc_table[256];
__constant__ float colour[9] = {0.299f, 0.587f, 0.114f, -0.169f, -0.331f, 0.5f, 0.5f, -0.419f, -0.081f};

extern "C" __global__ void crc32(unsigned* out, const unsigned char* data, int length, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned crc = 0xffffffffu;
  for (int k = 0; k < length; ++k) crc = crc_table[(crc ^ data[i * length + k]) & 255u] ^ (crc >> 8);
  out[i] = ~crc;
}

extern "C" __global__ void rgb_to_yuv(float* out, const uchar4* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uchar4 p = in[i];
  for (int r = 0; r < 3; ++r) out[i + r * n] = colour[3 * r] * p.x + colour[3 * r + 1] * p.y + colour[3 * r + 2] * p.z;
}

extern "C" __global__ void dot_bytes(int* out, const int* a, const int* b, int words, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int sum = 0;
  for (int k = 0; k < words; ++k) sum = __dp4a(a[i * words + k], (int)__byte_perm(b[k], sum, 0x1032), sum);
  out[i] = sum;
}
