// Sparse matrix factorization X ≈ W Hᵀ on the ratings of one part: gradients, errors and predictions in one pass.
//
// Every block has its own rows of W and of H, so blocks (and replicas) run on threads without meeting.

#include <type_traits>

#include "common.h"

namespace hamcmc {
namespace {

enum class Job { kGradient, kError, kPredict };

// One row block of one replica with the column block that the part pairs it with.
struct Block {
  const int32_t* indptr;  // of the part: rows + 1 offsets
  const int32_t* columns;
  const float* values;
  const float* w;
  const float* h;
  float* grad_w;
  float* grad_h;
  float* prediction;
  int64_t rows, width, ratings, rank;
  double error = 0, square = 0;
};

// False when the ratings point outside the block, which would read and write foreign memory.
// kVectors = rank / 8 keeps a row of W and of its gradient in registers; 0 is for any rank.
template <Job job, int kVectors>
bool sweep(Block& block) {
  constexpr int64_t kAhead = 8;  // ratings between asking for a row of H and using it
  const int vectors = kVectors ? kVectors : static_cast<int>(block.rank / kLanes);
  const int64_t rank = kVectors ? kVectors * kLanes : block.rank;
  double error = 0, square = 0;
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t begin = block.indptr[i], end = block.indptr[i + 1];
    if (begin < 0 || begin > end || end > block.ratings) return false;
    const float* w_row = block.w + i * rank;
    float* grad_row = job == Job::kGradient ? block.grad_w + i * rank : nullptr;
    Vector w_kept[kVectors ? kVectors : 1], grad_kept[kVectors ? kVectors : 1];
    for (int v = 0; v < kVectors; ++v) w_kept[v] = load(w_row + v * kLanes), grad_kept[v] = Vector{};
    if (job == Job::kGradient && !kVectors) std::fill_n(grad_row, rank, 0.0f);
    const auto w = [&](int v) { return kVectors ? w_kept[v] : load(w_row + v * kLanes); };

    // One rating, or four that share the work of adding up their products.
    const auto visit = [&](int64_t k, auto number) {
      constexpr int kNumber = number;
      const float* h[kNumber];
      float* grad_h[kNumber];
      Vector dot[kNumber];
      float mean[kNumber];
      for (int r = 0; r < kNumber; ++r) {
        const uint32_t j = block.columns[k + r];
        if (j >= block.width) return false;
        const int64_t later = block.columns[std::min(k + r + kAhead, block.ratings - 1)] * rank;
        for (int64_t x = 0; x < rank; x += 16) {
          __builtin_prefetch(block.h + later + x);
          if (job == Job::kGradient) __builtin_prefetch(block.grad_h + later + x, 1);
        }
        h[r] = block.h + j * rank;
        if (job == Job::kGradient) grad_h[r] = block.grad_h + j * rank;
        dot[r] = w(0) * load(h[r]);
        for (int v = 1; v < vectors; ++v) dot[r] += w(v) * load(h[r] + v * kLanes);
      }
      if constexpr (kNumber == 4)
        four_sums(dot, mean);
      else
        mean[0] = sum(dot[0]);
      for (int r = 0; r < kNumber; ++r) {
        if (job == Job::kPredict) {
          block.prediction[k + r] = mean[r];
          continue;
        }
        const float e = block.values[k + r] - mean[r];
        if (job == Job::kError) error += e;
        square += static_cast<double>(e) * e;
        if (job != Job::kGradient) continue;
        for (int v = 0; v < vectors; ++v) {
          const int x = v * kLanes;
          if (kVectors)
            grad_kept[v] += e * load(h[r] + x);
          else
            store(grad_row + x, load(grad_row + x) + e * load(h[r] + x));
          store(grad_h[r] + x, load(grad_h[r] + x) + e * w(v));
        }
      }
      return true;
    };
    int64_t k = begin;
    if (kVectors > 0 && kVectors <= 4)  // more would not leave enough registers
      for (; k + 4 <= end; k += 4)
        if (!visit(k, std::integral_constant<int, 4>{})) return false;
    for (; k < end; ++k)
      if (!visit(k, std::integral_constant<int, 1>{})) return false;
    if (job == Job::kGradient)
      for (int v = 0; v < kVectors; ++v) store(grad_row + v * kLanes, grad_kept[v]);
  }
  block.error = error;
  block.square = square;
  return true;
}

template <Job job>
bool sweep(Block& block) {
  switch (block.rank / kLanes) {
    case 1: return sweep<job, 1>(block);
    case 2: return sweep<job, 2>(block);
    case 3: return sweep<job, 3>(block);
    case 4: return sweep<job, 4>(block);
    case 5: return sweep<job, 5>(block);
    case 6: return sweep<job, 6>(block);
    case 7: return sweep<job, 7>(block);
    case 8: return sweep<job, 8>(block);
    default: return sweep<job, 0>(block);
  }
}

using Floats = ffi::Buffer<ffi::F32>;
using Indices = ffi::Buffer<ffi::S32>;
using Out = ffi::Result<Floats>;

// Calls finish(block, place) for each block, place = number of the replica × number of row blocks + row block.
template <Job job, typename Prepare, typename Finish>
ffi::Error for_blocks(ffi::ThreadPool& pool, int64_t threads, const Floats& w, const Floats& h, const Indices& indptr,
                      const Indices& columns, const Floats* values, const Indices& part, Shape out, size_t own,
                      const Prepare& prepare, const Finish& finish) {
  const Shape ws = w.dimensions(), hs = h.dimensions(), ps = indptr.dimensions(), cs = columns.dimensions();
  const size_t front = out.size() - own;
  const int64_t blocks = ws[front], rows = ws[front + 1], rank = ws[front + 2], width = hs[front + 1];
  const int64_t parts = ps[front + 1], ratings = cs[front + 1];
  std::atomic<bool> sound{true};
  run(pool, threads, product(out, 0, front) * blocks, [&](int64_t place) {
    const int64_t replica = place / blocks, b = place % blocks;
    const int64_t p = *slice(part.typed_data(), part.dimensions(), 0, out, replica);
    if (p < 0 || p >= parts) {
      sound = false;
      return;
    }
    Block block{};
    block.rows = rows, block.width = width, block.ratings = ratings, block.rank = rank;
    block.w = slice(w.typed_data(), ws, 3, out, replica) + b * rows * rank;
    block.h = slice(h.typed_data(), hs, 3, out, replica) + b * width * rank;
    block.indptr = slice(indptr.typed_data(), ps, 3, out, replica) + (b * parts + p) * (rows + 1);
    block.columns = slice(columns.typed_data(), cs, 2, out, replica) + b * ratings;
    if (values) block.values = slice(values->typed_data(), values->dimensions(), 2, out, replica) + b * ratings;
    prepare(block, place);
    if (!sweep<job>(block)) sound = false;
    finish(block, place);
  });
  if (sound) return ffi::Error::Success();
  return ffi::Error::InvalidArgument("ratings point outside their block, or there is no such part");
}

ffi::Error gradient(ffi::ThreadPool pool, Floats w, Floats h, Indices indptr, Indices columns, Floats values,
                    Indices part, Out grad_w, Out grad_h, Out square, int64_t threads) {
  const auto prepare = [&](Block& block, int64_t place) {
    block.grad_w = grad_w->typed_data() + place * block.rows * block.rank;
    block.grad_h = grad_h->typed_data() + place * block.width * block.rank;
    std::fill_n(block.grad_h, block.width * block.rank, 0.0f);
  };
  const auto finish = [&](const Block& block, int64_t place) {
    square->typed_data()[place] = static_cast<float>(block.square);
  };
  return for_blocks<Job::kGradient>(pool, threads, w, h, indptr, columns, &values, part, square->dimensions(), 1,
                                    prepare, finish);
}

ffi::Error squared_error(ffi::ThreadPool pool, Floats w, Floats h, Indices indptr, Indices columns, Floats values,
                         Indices part, Out error, Out square, int64_t threads) {
  const auto finish = [&](const Block& block, int64_t place) {
    error->typed_data()[place] = static_cast<float>(block.error);
    square->typed_data()[place] = static_cast<float>(block.square);
  };
  return for_blocks<Job::kError>(pool, threads, w, h, indptr, columns, &values, part, square->dimensions(), 1,
                                 [](Block&, int64_t) {}, finish);
}

ffi::Error predict(ffi::ThreadPool pool, Floats w, Floats h, Indices indptr, Indices columns, Indices part,
                   Out prediction, int64_t threads) {
  const auto prepare = [&](Block& block, int64_t place) {
    block.prediction = prediction->typed_data() + place * block.ratings;
    std::fill_n(block.prediction, block.ratings, 0.0f);
  };
  return for_blocks<Job::kPredict>(pool, threads, w, h, indptr, columns, nullptr, part, prediction->dimensions(), 2,
                                   prepare, [](const Block&, int64_t) {});
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(hamcmc_gradient, gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()   // w
                                  .Arg<Floats>()   // h
                                  .Arg<Indices>()  // indptr
                                  .Arg<Indices>()  // columns
                                  .Arg<Floats>()   // values
                                  .Arg<Indices>()  // part
                                  .Ret<Floats>()   // gradient in w
                                  .Ret<Floats>()   // gradient in h
                                  .Ret<Floats>()   // Σ e²
                                  .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(hamcmc_squared_error, squared_error,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()   // w
                                  .Arg<Floats>()   // h
                                  .Arg<Indices>()  // indptr
                                  .Arg<Indices>()  // columns
                                  .Arg<Floats>()   // values
                                  .Arg<Indices>()  // part
                                  .Ret<Floats>()   // Σ e
                                  .Ret<Floats>()   // Σ e²
                                  .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(hamcmc_predict, predict,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()   // w
                                  .Arg<Floats>()   // h
                                  .Arg<Indices>()  // indptr
                                  .Arg<Indices>()  // columns
                                  .Arg<Indices>()  // part
                                  .Ret<Floats>()   // w·h
                                  .Attr<int64_t>("threads"));

}  // namespace hamcmc
