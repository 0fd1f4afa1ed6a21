// Kernels whose warps diverge, vote, shuffle and reduce: what candidates are drawn from on a GPU.
//
// Each stands alone between markers and is compiled by itself. All take the same arguments: `out` of 4 * n words,
// poisoned; `in` of n words; n. 128 threads a block. Atomics commute, so that every launch leaves the same words.

//--- active_loop: lanes leave a loop one by one; the mask of those left is counted
extern "C" __global__ void active_loop(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int v = in[i] & 63, c = 0, s = 0;
  while (v > 0) {
    unsigned m = __activemask();
    c += __popc(m);
    s += v * 3 + (c >> 1);
    if (v & 1 && s > 40) { out[n + i] = c * 5 + s; break; }
    v -= 3;
  }
  out[i] = c;
  out[2 * n + i] = s;
}

//--- ballot_break: a vote each round, and a divergent way out
extern "C" __global__ void ballot_break(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = in[i % n], sum = 0;
  for (int k = 0; k < 24; ++k) {
    unsigned m = __ballot_sync(0xffffffffu, (v >> (k & 15)) & 1);
    sum = sum * 5 + __popc(m) + (m >> (k & 7));
    v = v * 1664525u + 1013904223u + sum;
  }
  unsigned tail = 0;
  for (int k = 0; k < 40; ++k) {
    tail += (v >> k % 13) & 7;
    if (tail > 60) break;
    v ^= v << 5;
  }
  if (i < n) { out[i] = sum; out[n + i] = tail + v; }
}

//--- any_all: a loop that a warp leaves together, with lanes that finish early
extern "C" __global__ void any_all(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = in[i % n] | 1, steps = 0, rounds = 0;
  while (__any_sync(0xffffffffu, v > 1)) {
    ++rounds;
    if (v > 1) {
      v = v & 1 ? v / 3 : v / 2;
      steps += v & 3;
      if (__popc(v) == 9) v >>= 2;
    }
    if (__all_sync(0xffffffffu, steps > 30)) break;
  }
  if (i < n) { out[i] = steps; out[n + i] = rounds; out[2 * n + i] = v; }
}

//--- match_groups: lanes with equal keys add up
extern "C" __global__ void match_groups(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = in[i % n], lane = threadIdx.x & 31, acc = 0;
  for (int k = 0; k < 6; ++k) {
    unsigned key = (v >> k) & 7, m = __match_any_sync(0xffffffffu, key);
    unsigned rank = __popc(m & ((1u << lane) - 1));
    if (rank == 0) acc += __popc(m) * (key + 1);
    else if (rank & 1) acc ^= rank << k;
    v += acc;
  }
  if (i < n) { out[i] = acc; out[n + i] = v; }
}

//--- float_reduce: a warp's sum of what a divergent branch computes
extern "C" __global__ void float_reduce(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  float x = (float)(in[i % n] & 0xffff) * 0.001f, y = 0.f;
  for (int k = 0; k < 8; ++k) {
    if (x > 20.f) y += sqrtf(x) * 0.5f;
    else if (x > 5.f) y += __expf(-x) + 1.f;
    else y -= x;
    float s = y;
    for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);
    x = x * 0.9f + s * 0.001f;
    if (s > 4000.f) break;
  }
  if (i < n) { out[i] = __float_as_uint(x); out[n + i] = __float_as_uint(y); }
}

//--- block_scan: an inclusive sum over a block
extern "C" __global__ void block_scan(unsigned* out, const unsigned* in, int n) {
  __shared__ unsigned part[4];
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  unsigned v = i < n ? in[i] & 1023 : 0, s = v;
  for (int d = 1; d < 32; d <<= 1) {
    unsigned o = __shfl_up_sync(0xffffffffu, s, d);
    if (lane >= d) s += o;
  }
  if (lane == 31) part[warp] = s;
  __syncthreads();
  if (warp == 0) {
    unsigned p = lane < 4 ? part[lane] : 0;
    for (int d = 1; d < 4; d <<= 1) {
      unsigned o = __shfl_up_sync(0xffffffffu, p, d);
      if (lane >= d) p += o;
    }
    if (lane < 4) part[lane] = p;
  }
  __syncthreads();
  if (warp) s += part[warp - 1];
  if (i < n) { out[i] = s; if (v & 1) out[n + i] = s - v; }
}

//--- collatz_votes: long divergent loops between votes
extern "C" __global__ void collatz_votes(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = (in[i % n] & 1023) + 1, count = 0, seen = 0;
  for (int round = 0; round < 3; ++round) {
    int limit = 60;
    while (v != 1 && limit-- > 0) {
      if (v & 1) v = 3 * v + 1; else v >>= 1;
      ++count;
      if ((v & 31) == 17) break;
    }
    unsigned m = __ballot_sync(0xffffffffu, v == 1);
    seen += __popc(m) * (round + 1);
    v += round + (m & 3);
  }
  if (i < n) { out[i] = count; out[n + i] = seen; out[2 * n + i] = v; }
}

//--- binary_search: lanes end at different depths
extern "C" __global__ void binary_search(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  unsigned key = in[i] & 4095, low = 0, high = 4096, steps = 0;
  while (low < high) {
    unsigned mid = (low + high) >> 1, probe = mid * 7 % 4096 > 2048 ? mid : mid + 1;
    if (probe == key) { out[2 * n + i] = mid; break; }
    if (probe < key) low = mid + 1; else high = mid;
    steps += __popc(__activemask());
  }
  out[i] = low;
  out[n + i] = steps;
}

//--- warp_sort: a bitonic network over a warp's lanes
extern "C" __global__ void warp_sort(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31;
  unsigned v = in[i % n];
  for (int k = 2; k <= 32; k <<= 1)
    for (int j = k >> 1; j; j >>= 1) {
      unsigned o = __shfl_xor_sync(0xffffffffu, v, j);
      bool up = (lane & k) == 0, lower = (lane & j) == 0;
      if ((up == lower) == (v > o)) v = o;
    }
  if (i < n) { out[i] = v; if (v & 4) out[n + i] = v * 3; }
}

//--- counted_bins: shared counters, added to under a guard
extern "C" __global__ void counted_bins(unsigned* out, const unsigned* in, int n) {
  __shared__ unsigned bins[32];
  int i = blockIdx.x * 128 + threadIdx.x;
  if (threadIdx.x < 32) bins[threadIdx.x] = 0;
  __syncthreads();
  unsigned v = in[i % n];
  for (int k = 0; k < 5; ++k) {
    unsigned b = (v >> (3 * k)) & 31;
    if (b != 7) atomicAdd(&bins[b], 1u);
    if (v & (1u << k)) { v += 17; continue; }
    if (b == 30) break;
  }
  __syncthreads();
  if (i < n) { out[i] = bins[threadIdx.x & 31]; out[n + i] = v; }
}

//--- segments: a scan that begins anew at heads found by a vote
extern "C" __global__ void segments(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31;
  unsigned v = in[i % n] & 255;
  unsigned heads = __ballot_sync(0xffffffffu, (v & 7) == 0 || lane == 0);
  unsigned below = heads & (0xffffffffu >> (31 - lane));
  int first = 31 - __clz(below);
  unsigned s = v;
  for (int d = 1; d < 32; d <<= 1) {
    unsigned o = __shfl_up_sync(0xffffffffu, s, d);
    if (lane - d >= first) s += o;
  }
  if (lane == first) s ^= 0x80000000u;
  if (i < n) { out[i] = s; out[n + i] = first; }
}

//--- guarded_mma: FP16 products that some warps make, in a loop with a way out
extern "C" __global__ void guarded_mma(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned mask = 0x3c003c00u, a0 = in[i % n] & mask, a1 = in[(i + 1) % n] & mask, a2 = in[(i + 2) % n] & mask;
  unsigned a3 = in[(i + 3) % n] & mask, b0 = in[(i + 4) % n] & mask, b1 = in[(i + 5) % n] & mask;
  float c0 = 0, c1 = 1, c2 = 2, c3 = 3;
  for (int k = 0; k < 6; ++k) {
    if (__any_sync(0xffffffffu, ((a0 >> 10) + k) & 1)) {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    if (c0 > 60.f) c1 += c0 * 0.5f;
    if (__all_sync(0xffffffffu, c2 > 900.f)) break;
    a0 ^= __float_as_uint(c1) & 0x04000400u;
  }
  if (i < n) { out[i] = __float_as_uint(c0); out[n + i] = __float_as_uint(c1); out[2 * n + i] = __float_as_uint(c2 + c3); }
}

//--- guarded_imma: integer products under a vote
extern "C" __global__ void guarded_imma(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned a = in[i % n], b = in[(i + 7) % n];
  int c0 = 0, c1 = 1, c2 = 2, c3 = 3;
  for (int k = 0; k < 5; ++k) {
    if (__ballot_sync(0xffffffffu, (a >> k) & 1) & 0x0f0f0f0fu)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                   : "+r"(c0), "+r"(c1), "+r"(c2), "+r"(c3) : "r"(a), "r"(b), "r"(a ^ b));
    else c0 += k;
    if (c1 & 1) b += c0;
    a ^= c2;
  }
  if (i < n) { out[i] = c0; out[n + i] = c1; out[2 * n + i] = c2 ^ c3; }
}

//--- redux: a warp's sums and maxima by one instruction
extern "C" __global__ void redux(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = in[i % n], acc = 0;
  for (int k = 0; k < 10; ++k) {
    unsigned s = __reduce_add_sync(0xffffffffu, v & 255), m = __reduce_max_sync(0xffffffffu, v >> 8);
    acc += s;
    if (m == v >> 8) { acc ^= m; v = v * 3 + 1; }
    else v += s >> (k & 3);
    if (__reduce_or_sync(0xffffffffu, acc & 1) == 0) break;
  }
  if (i < n) { out[i] = acc; out[n + i] = v; }
}

//--- lane_queue: lanes that have work are served in turn
extern "C" __global__ void lane_queue(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31;
  unsigned v = in[i % n] & 0xffff, acc = lane;
  unsigned work = __ballot_sync(0xffffffffu, v & 5);
  while (work) {
    int who = __ffs(work) - 1;
    unsigned got = __shfl_sync(0xffffffffu, v, who);
    if (got > v) acc += got - v;
    else if (lane == who) acc = acc * 3 + 1;
    else acc ^= got >> 3;
    work &= work - 1;
    if (__popc(work) < 2 && (got & 64)) break;
  }
  if (i < n) { out[i] = acc; out[n + i] = work; }
}

//--- leaders: one lane of those that are there takes a number for all
extern "C" __global__ void leaders(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31;
  if (i >= n) return;
  unsigned v = in[i], total = 0;
  for (int k = 0; k < 8; ++k) {
    if ((v >> k) & 1) {
      unsigned m = __activemask();
      int first = __ffs(m) - 1;
      unsigned base = __shfl_sync(m, v, first);
      total += (base & 63) + __popc(m & ((1u << lane) - 1));
      if (lane == first) out[2 * n + i] = total + k;
    } else total += k;
    if (total > 200) break;
  }
  out[i] = total;
}

//--- ragged_rows: every lane's own number of products, then a sum over the warp
extern "C" __global__ void ragged_rows(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  float sum = 0.f, most = -1.f;
  int length = i < n ? in[i] & 15 : 0;
  for (int k = 0; k < length; ++k) {
    float x = (float)(in[(i + k * 3) % n] & 255) * 0.01f;
    sum = fmaf(x, 0.5f + k, sum);
    if (x > most) most = x;
    if (sum > 60.f) break;
  }
  for (int d = 16; d; d >>= 1) {
    most = fmaxf(most, __shfl_down_sync(0xffffffffu, most, d));
  }
  if (i < n) { out[i] = __float_as_uint(sum); out[n + i] = __float_as_uint(most); }
}

//--- early_exit: lanes that are done return ahead of the others' votes
extern "C" __global__ void early_exit(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  unsigned v = in[i], c = 0;
  if ((v & 7) == 3) { out[i] = v ^ 0x55; return; }
  c = __popc(__activemask());
  v = v * 9 + c;
  if ((v & 3) == 1) { out[i] = v + c; out[n + i] = c; return; }
  c = c * 33 + __popc(__activemask());
  out[i] = c + (v >> 3);
  out[n + i] = c;
}

//--- fixed_mandelbrot: an iteration that lanes leave at different times
extern "C" __global__ void fixed_mandelbrot(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int cx = (int)(in[i] & 0x3fff) - 0x2000, cy = (int)(in[i] >> 16 & 0x3fff) - 0x2000, x = 0, y = 0, k = 0;
  for (; k < 48; ++k) {
    int xx = x * x >> 12, yy = y * y >> 12;
    if (xx + yy > 16384) break;
    y = (x * y >> 11) + cy;
    x = xx - yy + cx;
  }
  out[i] = k;
  out[n + i] = x;
  if (k > 20) out[2 * n + i] = y;
}

//--- machine_of_states: a switch in a loop
extern "C" __global__ void machine_of_states(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = in[i % n], state = v & 3, acc = 0;
  for (int k = 0; k < 20; ++k) {
    unsigned bits = (v >> (k & 15)) & 3;
    if (state == 0) { acc += bits; state = bits; }
    else if (state == 1) { acc = acc * 3 + 1; state = bits ? 2 : 0; }
    else if (state == 2) { acc ^= v >> 4; state = (acc & 1) ? 3 : 1; }
    else { acc += __popc(acc); if (bits == 3) break; state = 0; }
  }
  unsigned m = __ballot_sync(0xffffffffu, acc & 1);
  if (i < n) { out[i] = acc; out[n + i] = m; }
}

//--- gcd_exchange: Euclid's loop, then neighbours swap
extern "C" __global__ void gcd_exchange(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned a = (in[i % n] & 0xfff) + 1, total = 0;
  for (int round = 0; round < 3; ++round) {
    unsigned b = __shfl_xor_sync(0xffffffffu, a, 1 << round) + round, x = a, y = b;
    while (y) { unsigned r = x - y * (x / y); x = y; y = r; ++total; if (x == 1) break; }
    a += x;
  }
  if (i < n) { out[i] = a; out[n + i] = total; }
}

//--- two_level_max: a block's maximum, found by warps and then by one of them
extern "C" __global__ void two_level_max(unsigned* out, const unsigned* in, int n) {
  __shared__ unsigned best[4];
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31;
  unsigned v = i < n ? in[i] & 0xffffff : 0, own = v;
  for (int d = 16; d; d >>= 1) v = max(v, __shfl_xor_sync(0xffffffffu, v, d));
  if (lane == 0) best[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    unsigned w = lane < 4 ? best[lane] : 0;
    for (int d = 2; d; d >>= 1) w = max(w, __shfl_xor_sync(0xffffffffu, w, d));
    if (lane == 0) best[0] = w;
  }
  __syncthreads();
  if (i < n) { out[i] = best[0] - own; if (own == v) out[n + i] = i; }
}

//--- walks: pseudo-random steps until an edge, with a vote on who is left
extern "C" __global__ void walks(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned seed = in[i % n] | 1, left = 0;
  int at = 0, steps = 0;
  for (; steps < 64; ++steps) {
    seed = seed * 1664525u + 1013904223u;
    at += seed >> 31 ? 1 : -1;
    if (at > 5 || at < -5) break;
    left += __popc(__activemask()) & 1;
  }
  unsigned far = __ballot_sync(0xffffffffu, at > 0);
  if (i < n) { out[i] = steps; out[n + i] = left; out[2 * n + i] = far + at; }
}

//--- wide_modulus: 64-bit arithmetic in a divergent loop
extern "C" __global__ void wide_modulus(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  unsigned long long v = in[i] | 0x100000001ull, m = 1000003, acc = 1;
  unsigned e = in[i] & 0x3ff;
  while (e) {
    if (e & 1) acc = (acc * v) ^ (acc >> 17);
    v = v * v + m;
    if (v >> 60) v &= 0xffffffffffull;
    e >>= 1;
    if ((acc & 0xff) == 0x55) break;
  }
  out[i] = (unsigned)acc;
  out[n + i] = (unsigned)(acc >> 32);
}

//--- edge_stencil: neighbours by shuffle, the edges from memory
extern "C" __global__ void edge_stencil(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31;
  unsigned v = in[i % n];
  for (int k = 0; k < 4; ++k) {
    unsigned left = __shfl_up_sync(0xffffffffu, v, 1), right = __shfl_down_sync(0xffffffffu, v, 1);
    if (lane == 0) left = in[(i + n - 1) % n] + k;
    if (lane == 31) right = in[(i + 1) % n] ^ k;
    if (left > right) v = v * 2 + left - right;
    else if (left == right) v += 7;
    else v = v / 2 + (right & 0xff);
  }
  if (i < n) { out[i] = v; if (v & 8) out[n + i] = lane; }
}

//--- predicate_mix: many predicates alive at once, saved and restored
extern "C" __global__ void predicate_mix(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = in[i % n], w = in[(i + 9) % n], r = 0;
  for (int k = 0; k < 9; ++k) {
    bool a = v > w, b = (v ^ w) & 1, c = v < 0x1000, d = w & 16, e = (v + w) & 2, f = v & 0x20, g = w < 77;
    if (a) r += 3;
    if (b && !c) r ^= v;
    if (d || (e && f)) r = r * 5 + 1;
    if (__any_sync(0xffffffffu, g && a)) w += k;
    if (f && c) break;
    v = (v >> 1) | (r << 31);
    w += r & 0xff;
  }
  if (i < n) { out[i] = r; out[n + i] = v; out[2 * n + i] = w; }
}

//--- mask_kept: the mask itself goes into what lanes compute, and into what they leave with
extern "C" __global__ void mask_kept(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int v = in[i] & 31;
  unsigned acc = v, m = 0;
  while (true) {
    m = __activemask();
    if (v <= 0) break;
    acc = acc * 3 ^ v;
    v -= 3;
  }
  out[i] = acc;
  out[n + i] = m;
}

//--- mask_on_exit: the mask is needed only by those who leave
extern "C" __global__ void mask_on_exit(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  unsigned v = in[i] & 255, k = 0, acc = 0;
  for (; k < 20; ++k) {
    unsigned m = __activemask();
    acc += v >> (k & 7);
    if (acc > 300) { out[2 * n + i] = m + k; out[i] = acc; return; }
    v += acc & 7;
  }
  out[i] = acc;
  out[n + i] = v;
}

//--- piecewise: polynomials by branch, a vote behind them
extern "C" __global__ void piecewise(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  float x = (float)(in[i % n] & 0xfff) * 0.01f, y = x * 0.5f + 1.f, z = x * x;
  if (x > 30.f) { y = y * z - 3.f; z = z + y * 0.25f; if (y > 9000.f) { if (i < n) out[i] = __float_as_uint(z); return; } }
  float w = y * 1.5f + z;
  if (x < 2.f) { w = w - z * y; if (w < -1.f) { if (i < n) out[n + i] = __float_as_uint(w + y); return; } }
  unsigned m = __popc(__activemask());
  if (i < n) { out[2 * n + i] = __float_as_uint(w + m); out[3 * n + i] = __float_as_uint(z - y); }
}

//--- horner_exit: a polynomial that lanes give up at different degrees
extern "C" __global__ void horner_exit(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  unsigned x = in[i] & 0x3ff, y = 1, bits = in[(i + 5) % n], late = 0;
  for (int k = 0; k < 30; ++k) {
    unsigned step = y * x + (bits >> k & 1), twist = step ^ (y >> 3);
    if ((step & 0x3f) == 0x2a) { out[n + i] = twist; break; }
    late += twist & 15;
    y = step + late;
  }
  out[i] = y;
  out[2 * n + i] = late;
}

//--- shared_votes: votes through shared memory between barriers
extern "C" __global__ void shared_votes(unsigned* out, const unsigned* in, int n) {
  __shared__ unsigned votes[4];
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  unsigned v = in[i % n], acc = 0;
  for (int k = 0; k < 4; ++k) {
    unsigned m = __ballot_sync(0xffffffffu, (v >> k) & 1);
    if (lane == 0) votes[warp] = m;
    __syncthreads();
    unsigned other = votes[(warp + 1) & 3];
    if (other & (1u << lane)) acc += k * 7 + __popc(other);
    else acc ^= v >> 2;
    __syncthreads();
    if (acc & 1) v += acc;
  }
  if (i < n) { out[i] = acc; out[n + i] = v; }
}

//--- counting_while: an inner loop of each lane's own length within an outer one of the warp
extern "C" __global__ void counting_while(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = in[i % n], acc = 0, turns = 0;
  for (int k = 0; k < 5; ++k) {
    unsigned left = (v >> (3 * k)) & 7, base = acc + k;
    while (left) {
      acc += left * base;
      if (acc % 11 == 3) { acc += 1; break; }
      --left;
      ++turns;
    }
    acc += __popc(__ballot_sync(0xffffffffu, left == 0));
  }
  if (i < n) { out[i] = acc; out[n + i] = turns; }
}

//--- mask_after_exit: who is left is asked behind each of several ways out
extern "C" __global__ void mask_after_exit(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  unsigned v = in[i], acc = v & 15;
#pragma unroll
  for (int k = 0; k < 6; ++k) {
    if ((v >> 2 * k & 3) == 3) { out[n + i] = acc + k; break; }
    unsigned m = __activemask();
    acc = acc * 3 + (m & 0xffff) + (m >> 16);
  }
  out[i] = acc;
}

//--- mask_in_loop: who is there is asked ahead of a way out of a loop, and needed behind it
extern "C" __global__ void mask_in_loop(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned v = in[i % n] & 255, acc = 0;
#pragma unroll 1
  for (unsigned k = 0; k < 20; ++k) {
    unsigned m = __activemask(), q = acc * 7 + v;
    if (q % 13 > 10) break;
    acc += __popc(m & v) + q;
    v += m >> (acc & 7);
  }
  if (i < n) out[i] = acc + v;
}

//--- mask_once: who is left behind one way out, kept
extern "C" __global__ void mask_once(unsigned* out, const unsigned* in, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  unsigned v = in[i], acc = v & 15;
  if (v & 1) {
    acc = acc * 3 + 1;
    if ((v >> 3 & 3) == 2) {
      for (unsigned k = 0; k < (v >> 5 & 7); ++k) acc = acc * 5 ^ in[(i + k) % n];
      out[n + i] = acc;
      return;
    }
    unsigned m = __activemask();
    out[2 * n + i] = (m ^ v) + acc;
    acc += m >> (v & 31);
  }
  out[i] = acc;
}
