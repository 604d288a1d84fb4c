// Standard normal numbers from row numbers: Threefry-2x32 in counter mode and the inverse error function, 8 at a time.

#include <cmath>

#include "common.h"

namespace hamcmc {
namespace {

inline Words rotate(Words x, int r) { return x << r | x >> (32 - r); }

// Counters are independent: four vectors of them at once fill the time in which one waits for its last operation.
constexpr int kAtOnce = 4;
constexpr int kPairs = kAtOnce * kLanes;

// 20 rounds, as hamcmc.noise.threefry.
inline void threefry(const uint32_t* key, Words* x0, Words* x1) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t schedule[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  for (int u = 0; u < kAtOnce; ++u) x0[u] += schedule[0], x1[u] += schedule[1];
#pragma GCC unroll 5
  for (int block = 0; block < 5; ++block) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r)
      for (int u = 0; u < kAtOnce; ++u) {
        x0[u] += x1[u];
        x1[u] = x0[u] ^ rotate(x1[u], kRotations[block % 2][r]);
      }
    for (int u = 0; u < kAtOnce; ++u) {
      x0[u] += schedule[(block + 1) % 3];
      x1[u] += schedule[(block + 2) % 3] + block + 1;
    }
  }
}

inline Vector bits_as_float(Words x) { return reinterpret_cast<Vector>(x); }

// −log(x) − 2.5 of positive x: x = 2ⁿ m with m in [√½, √2), log m = 2 artanh((m−1)/(m+1)) as a series.
inline Vector shifted_log(Vector x) {
  constexpr uint32_t kRootHalf = 0x3F3504F3u;
  const Words bits = reinterpret_cast<Words>(x) - kRootHalf;
  const Integers n = reinterpret_cast<Integers>(bits) >> 23;
  const Vector m = bits_as_float((bits & 0x007FFFFFu) + kRootHalf);
  const Vector s = (m - 1.0f) / (m + 1.0f), z = s * s;
  const Vector series = 2 + z * (2 / 3.0f + z * (2 / 5.0f + z * (2 / 7.0f + z * (2 / 9.0f))));
  return (__builtin_convertvector(n, Vector) * -0.693147181f - 2.5f) - s * series;
}

// The approximation of M. Giles (Approximating the erfinv function, 2012) that XLA has in single precision.
constexpr float kCentre[] = {2.81022636e-08f, 3.43273939e-07f, -3.5233877e-06f,  -4.39150654e-06f, 0.00021858087f,
                             -0.00125372503f, -0.00417768164f, 0.246640727f,     1.50140941f};
constexpr float kTail[] = {-0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f, 0.00573950773f,
                           -0.0076224613f,   0.00943887047f,  1.00167406f,    2.83297682f};

inline Vector polynomial(const float* c, Vector x) {
  Vector p = c[0] * x + c[1];
  for (int i = 2; i < 9; ++i) p = p * x + c[i];
  return p;
}

inline bool any(Integers x) {
#ifdef __AVX__
  return __builtin_ia32_movmskps256(reinterpret_cast<Vector>(x));
#else
  int32_t found = 0;
  for (int l = 0; l < kLanes; ++l) found |= x[l];
  return found;
#endif
}

inline Vector normal_from_bits(Words bits) {
  constexpr float kLowest = -0.99999994f;                                       // next after −1
  const Vector uniform = bits_as_float((bits >> 9) | 0x3F800000u) - 1.0f;       // [0, 1)
  const Vector x = uniform * (1.0f - kLowest) + kLowest;                        // (−1, 1)
  // XLA rounds x² before it takes it from 1. Changing the sign as an integer keeps the compiler from fusing the two.
  const Vector minus_square = bits_as_float(reinterpret_cast<Words>(x * x) ^ 0x80000000u);
  const Vector w = shifted_log(1.0f + minus_square);
  Vector p = polynomial(kCentre, w);
  const Integers far = w >= 2.5f;
  if (__builtin_expect(any(far), 0)) {  // one in 37
    Vector root{};
    for (int l = 0; l < kLanes; ++l) root[l] = std::sqrt(w[l] + 2.5f);
    p = far ? polynomial(kTail, root - 3.0f) : p;
  }
  return p * (1.41421356f * x);
}

// Pairs first … last−1 of draws; that of row r and columns 2c, 2c+1 is number r·half + c.
void fill(const uint32_t* words, const uint32_t* rows, int64_t half, int64_t first, int64_t last, float* out) {
  const uint32_t key[2] = {words[0], words[1]};  // a copy, which `out` cannot overwrite
  const int64_t last_row = (last - 1) / half;
  int64_t row = first / half, c = first % half;
  for (int64_t f = first; f < last; f += kPairs) {
    Words x0[kAtOnce], x1[kAtOnce];
    for (int u = 0; u < kAtOnce; ++u) {
      x0[u] = Words{} + rows[std::min(row, last_row)];
      x1[u] = Words{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<uint32_t>(c);
      for (c += kLanes; c >= half; c -= half) {
        const auto over = x1[u] >= static_cast<uint32_t>(half);  // those of the next row
        x0[u] = over ? Words{} + rows[std::min(++row, last_row)] : x0[u];
        x1[u] -= reinterpret_cast<Words>(over) & static_cast<uint32_t>(half);
      }
    }
    threefry(key, x0, x1);
    const int64_t count = std::min<int64_t>(kPairs, last - f);
    float rest[2 * kPairs];
    float* to = count == kPairs ? out + 2 * f : rest;
    for (int u = 0; u < kAtOnce; ++u) interleave(to + 2 * u * kLanes, normal_from_bits(x0[u]), normal_from_bits(x1[u]));
    if (to == rest) std::memcpy(out + 2 * f, rest, 2 * count * sizeof(float));
  }
}

using Unsigned = ffi::Buffer<ffi::U32>;

ffi::Error normal(ffi::ThreadPool pool, Unsigned words, Unsigned rows, ffi::Result<ffi::Buffer<ffi::F32>> out,
                  int64_t threads) {
  constexpr int64_t kPiece = 1 << 14;  // pairs per task
  const Shape shape = out->dimensions();
  const size_t front = shape.size() - 2;
  const int64_t half = shape[front + 1] / 2, pairs = shape[front] * half, pieces = (pairs + kPiece - 1) / kPiece;
  run(pool, threads, product(shape, 0, front) * pieces, [&](int64_t t) {
    const int64_t replica = t / pieces, first = t % pieces * kPiece;
    fill(slice(words.typed_data(), words.dimensions(), 1, shape, replica),
         slice(rows.typed_data(), rows.dimensions(), 1, shape, replica), half, first, std::min(first + kPiece, pairs),
         out->typed_data() + 2 * replica * pairs);
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(hamcmc_normal, normal,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Unsigned>()                  // words
                                  .Arg<Unsigned>()                  // rows
                                  .Ret<ffi::Buffer<ffi::F32>>()     // rows × columns
                                  .Attr<int64_t>("threads"));

}  // namespace hamcmc
