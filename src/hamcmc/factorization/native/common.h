// What the kernels share: vectors of eight, arguments with replicas in front, threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace hamcmc {

namespace ffi = xla::ffi;

// Vector extensions of GCC and Clang: one AVX register, or two of ARM. XLA promises less alignment than they want, so
// memory is read and written as `Unaligned`.
constexpr int kLanes = 8;
typedef float Vector __attribute__((vector_size(32)));
typedef float Unaligned __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef int32_t Integers __attribute__((vector_size(32)));

inline Vector load(const float* x) { return *reinterpret_cast<const Unaligned*>(x); }
inline void store(float* x, Vector v) { *reinterpret_cast<Unaligned*>(x) = v; }

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAMCMC_SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#endif
#endif
#ifndef HAMCMC_SHUFFLE  // GCC before 12
#define HAMCMC_SHUFFLE(x, y, ...) __builtin_shuffle(x, y, Integers{__VA_ARGS__})
#endif

inline Vector add_halves(Vector x) { return x + HAMCMC_SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3); }

inline float sum(Vector x) {
  x += HAMCMC_SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
  x += HAMCMC_SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
  return add_halves(x)[0];
}

// Sums of neighbours: x[0]+x[1], x[2]+x[3], y[0]+y[1], y[2]+y[3], and the same of the upper halves.
inline Vector add_neighbours(Vector x, Vector y) {
  return HAMCMC_SHUFFLE(x, y, 0, 2, 8, 10, 4, 6, 12, 14) + HAMCMC_SHUFFLE(x, y, 1, 3, 9, 11, 5, 7, 13, 15);
}

// sum(x[0]), … sum(x[3]), to the last bit.
inline void four_sums(const Vector* x, float* out) {
  const Vector sums = add_halves(add_neighbours(add_neighbours(x[0], x[1]), add_neighbours(x[2], x[3])));
  std::memcpy(out, &sums, 4 * sizeof(float));
}

// x[0], y[0], x[1], y[1], …
inline void interleave(float* out, Vector x, Vector y) {
  store(out, HAMCMC_SHUFFLE(x, y, 0, 8, 1, 9, 2, 10, 3, 11));
  store(out + kLanes, HAMCMC_SHUFFLE(x, y, 4, 12, 5, 13, 6, 14, 7, 15));
}

using Shape = ffi::Span<const int64_t>;

inline int64_t product(Shape shape, size_t first, size_t last) {
  int64_t size = 1;
  for (size_t d = first; d < last; ++d) size *= shape[d];
  return size;
}

// Under vmap every argument has the same number of axes in front, of length 1 where it is shared by all replicas.
// This finds the slice of an argument whose own axes are the last `own`, for one replica of `replicas`.
template <typename T>
T* slice(T* data, Shape shape, size_t own, Shape replicas, int64_t replica) {
  const size_t front = shape.size() - own;
  int64_t place = 0, stride = product(shape, front, shape.size());
  for (size_t d = front; d-- > 0;) {
    if (shape[d] > 1) place += replica % replicas[d] * stride;
    stride *= shape[d];
    replica /= replicas[d];
  }
  return data + place;
}

// Run tasks 0 … count−1 on at most `threads` threads of XLA's pool, this one among them. It waits only for tasks that
// some thread has begun, so a pool that is busy with other work, or with calls like this one, cannot lock it up.
template <typename Task>
void run(ffi::ThreadPool& pool, int64_t threads, int64_t count, const Task& task) {
  const int64_t helpers = std::min({threads, count, pool.num_threads() + 1}) - 1;
  if (helpers <= 0) {
    for (int64_t t = 0; t < count; ++t) task(t);
    return;
  }
  struct State {
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    std::mutex mutex;
    std::condition_variable all_done;
  };
  auto state = std::make_shared<State>();  // a helper may start after the call has ended, and find nothing to do
  auto work = [state, count, &task] {
    int64_t mine = 0;
    for (int64_t t; (t = state->next++) < count; ++mine) task(t);
    if (mine == 0) return;
    std::lock_guard<std::mutex> lock(state->mutex);
    if ((state->done += mine) == count) state->all_done.notify_one();
  };
  for (int64_t h = 0; h < helpers; ++h) pool.Schedule(std::function<void()>(work));
  work();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->done == count; });
}

}  // namespace hamcmc
