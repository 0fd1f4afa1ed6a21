// The few names of PyTorch that a peer's kernel file uses, so that it compiles in seconds and without torch.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

// the stream that calls run on, and memory that stays with the process (entry.cpp)
cudaStream_t peers_stream();
void* peers_take(size_t bytes);
void peers_give(void* at);

#if CUDART_VERSION >= 13000  // they are written for CUDA 12, where a device is a number
inline cudaMemLocation peers_location(int device) {
  cudaMemLocation where = {};
  where.type = device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  where.id = device < 0 ? 0 : device;
  return where;
}
inline cudaError_t cudaMemPrefetchAsync(const void* at, size_t bytes, int device, cudaStream_t stream = nullptr) {
  return cudaMemPrefetchAsync(at, bytes, peers_location(device), 0, stream ? stream : peers_stream());
}
inline cudaError_t cudaMemAdvise(const void* at, size_t bytes, cudaMemoryAdvise advice, int device) {
  return cudaMemAdvise(at, bytes, advice, peers_location(device));
}
#endif

namespace c10 {
struct Half {
  uint16_t x;
};
enum class ScalarType : int8_t { Half = 5, Float = 6 };
inline std::ostream& operator<<(std::ostream& to, ScalarType kind) { return to << static_cast<int>(kind); }

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
struct Device {
  DeviceType kind = DeviceType::CUDA;
  int8_t number = 0;
  Device() = default;
  Device(DeviceType kind, int8_t number = 0) : kind(kind), number(number) {}
  bool is_cuda() const { return kind == DeviceType::CUDA; }
  int8_t index() const { return number; }
  DeviceType type() const { return kind; }
};
inline bool operator==(Device a, Device b) { return a.kind == b.kind && a.number == b.number; }
inline bool operator!=(Device a, Device b) { return !(a == b); }

class TensorOptions {
 public:
  TensorOptions dtype(ScalarType kind) const { return TensorOptions(kind, device_); }
  TensorOptions device(Device where) const { return TensorOptions(kind_, where); }
  ScalarType dtype() const { return kind_; }
  Device device() const { return device_; }
  TensorOptions() = default;
  TensorOptions(ScalarType kind, Device where = {}) : kind_(kind), device_(where) {}

 private:
  ScalarType kind_ = ScalarType::Float;
  Device device_;
};
inline std::ostream& operator<<(std::ostream& to, const TensorOptions& options) {
  return to << "type " << options.dtype();
}

struct TensorImpl {
  void* at = nullptr;
  void* mutable_data() const { return at; }
  const void* data() const { return at; }
};

namespace cuda {
struct CUDAStream {
  cudaStream_t handle;
  operator cudaStream_t() const { return handle; }
  cudaStream_t stream() const { return handle; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {peers_stream()}; }
}  // namespace cuda
}  // namespace c10

namespace at {
using c10::Device;
using c10::Half;
using c10::ScalarType;
using c10::TensorOptions;
constexpr ScalarType kHalf = ScalarType::Half, kFloat = ScalarType::Float;

// dense, row-major; copies share the memory
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* at, std::vector<int64_t> sizes, TensorOptions options) : sizes_(std::move(sizes)), options_(options) {
    impl_ = std::make_shared<c10::TensorImpl>();
    impl_->at = at;
  }
  Tensor(std::vector<int64_t> sizes, TensorOptions options) : sizes_(std::move(sizes)), options_(options) {
    impl_ = std::shared_ptr<c10::TensorImpl>(new c10::TensorImpl, [](c10::TensorImpl* held) {
      peers_give(held->at);
      delete held;
    });
    impl_->at = peers_take(size_t(numel()) * element_size());
  }
  int64_t dim() const { return int64_t(sizes_.size()); }
  int64_t size(int64_t i) const { return sizes_.at(size_t(i < 0 ? i + dim() : i)); }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  int64_t stride(int64_t i) const {
    int64_t product = 1;
    for (int64_t at = (i < 0 ? i + dim() : i) + 1; at < dim(); ++at) product *= size(at);
    return product;
  }
  int64_t numel() const { return std::accumulate(sizes_.begin(), sizes_.end(), int64_t(1), std::multiplies<>()); }
  int64_t element_size() const { return options_.dtype() == ScalarType::Half ? 2 : 4; }
  int64_t nbytes() const { return numel() * element_size(); }
  bool is_contiguous() const { return true; }
  bool is_cuda() const { return true; }
  bool defined() const { return impl_ != nullptr; }
  int64_t get_device() const { return 0; }
  Device device() const { return options_.device(); }
  TensorOptions options() const { return options_; }
  ScalarType dtype() const { return options_.dtype(); }
  ScalarType scalar_type() const { return options_.dtype(); }
  void* data_ptr() const { return impl_->at; }
  void* mutable_data_ptr() const { return impl_->at; }
  const void* const_data_ptr() const { return impl_->at; }
  template <typename T>
  T* data_ptr() const {
    return static_cast<T*>(impl_->at);
  }
  template <typename T>
  T* mutable_data_ptr() const {
    return static_cast<T*>(impl_->at);
  }
  template <typename T>
  const T* const_data_ptr() const {
    return static_cast<const T*>(impl_->at);
  }
  c10::TensorImpl* unsafeGetTensorImpl() const { return impl_.get(); }

 private:
  std::shared_ptr<c10::TensorImpl> impl_;
  std::vector<int64_t> sizes_;
  TensorOptions options_;
};

inline Tensor empty(std::vector<int64_t> sizes, TensorOptions options) { return Tensor(std::move(sizes), options); }

namespace cuda {
using c10::cuda::CUDAStream;
using c10::cuda::getCurrentCUDAStream;
}  // namespace cuda
}  // namespace at

namespace torch {
using at::Device;
using at::empty;
using at::Half;
using at::kFloat;
using at::kHalf;
using at::ScalarType;
using at::Tensor;
using at::TensorOptions;
constexpr ScalarType kFloat16 = kHalf, kFloat32 = kFloat;
constexpr c10::DeviceType kCUDA = c10::DeviceType::CUDA;
}  // namespace torch

namespace peers {
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream to;
  (void)(to << ... << parts);
  return to.str();
}
}  // namespace peers

#define TORCH_CHECK(condition, ...)                                               \
  do {                                                                            \
    if (!(condition)) throw std::runtime_error(peers::text("not " #condition " ", ##__VA_ARGS__)); \
  } while (0)
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
