// Standard normal numbers from row numbers: Threefry-2x32 in counter mode and the inverse error function, 8 at a time.

#include <cmath>

#include "common.h"

namespace hamcmc {
namespace {

inline Words rotate(Words x, int r) { return x << r | x >> (32 - r); }

// 20 rounds, as hamcmc.noise.threefry.
inline void threefry(const uint32_t* key, Words& x0, Words& x1) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t schedule[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  x0 += schedule[0];
  x1 += schedule[1];
  for (int block = 0; block < 5; ++block) {
    for (int r : kRotations[block % 2]) {
      x0 += x1;
      x1 = x0 ^ rotate(x1, r);
    }
    x0 += schedule[(block + 1) % 3];
    x1 += schedule[(block + 2) % 3] + block + 1;
  }
}

inline Vector bits_as_float(Words x) { return reinterpret_cast<Vector>(x); }
inline Vector select(Integers where, Vector yes, Vector no) {
  return reinterpret_cast<Vector>((where & reinterpret_cast<Integers>(yes)) |
                                  (~where & reinterpret_cast<Integers>(no)));
}

// Natural logarithm of positive normal numbers: x = 2ⁿ m with m in [√½, √2), then 2 artanh((m−1)/(m+1)) as a series.
inline Vector log_positive(Vector x) {
  const Words bits = reinterpret_cast<Words>(x) - 0x3F3504F3u;  // √½
  const Integers n = reinterpret_cast<Integers>(bits) >> 23;
  const Vector m = bits_as_float((bits & 0x007FFFFFu) + 0x3F3504F3u);
  const Vector s = (m - 1.0f) / (m + 1.0f), z = s * s;
  const Vector series = 2 + z * (2 / 3.0f + z * (2 / 5.0f + z * (2 / 7.0f + z * (2 / 9.0f))));
  return __builtin_convertvector(n, Vector) * 0.693147181f + s * series;
}

// The approximation of M. Giles (Approximating the erfinv function, 2012) that XLA has in single precision.
constexpr float kCentre[] = {2.81022636e-08f, 3.43273939e-07f, -3.5233877e-06f,  -4.39150654e-06f, 0.00021858087f,
                             -0.00125372503f, -0.00417768164f, 0.246640727f,     1.50140941f};
constexpr float kTail[] = {-0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f, 0.00573950773f,
                           -0.0076224613f,   0.00943887047f,  1.00167406f,    2.83297682f};

template <typename T>
inline T polynomial(const float* c, T x) {
  T p = c[0] * x + c[1];
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
  Vector x = uniform * (1.0f - kLowest) + kLowest;                              // (−1, 1)
  x = select(x < kLowest, Vector{} + kLowest, x);
  // XLA rounds x² before it takes it from 1. Changing the sign as an integer keeps the compiler from fusing the two.
  const Vector minus_square = bits_as_float(reinterpret_cast<Words>(x * x) ^ 0x80000000u);
  const Vector w = -log_positive(1.0f + minus_square);
  Vector p = polynomial(kCentre, w - 2.5f);
  if (__builtin_expect(any(w >= 5.0f), 0))
    for (int l = 0; l < kLanes; ++l)
      if (w[l] >= 5.0f) p[l] = polynomial(kTail, std::sqrt(w[l]) - 3.0f);
  return 1.41421356f * (p * x);
}

void fill(const uint32_t* key, const uint32_t* rows, int64_t half, int64_t first, int64_t last, float* out) {
  // Pair f of the output is (row f / half, c = f mod half).
  int64_t row = first / half, c = first % half;
  for (int64_t f = first; f < last; f += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, last - f);
    Words x0{}, x1{};
    if (half % kLanes == 0 && c + kLanes <= half && count == kLanes) {
      constexpr Words kIota = {0, 1, 2, 3, 4, 5, 6, 7};
      x0 += rows[row];
      x1 = kIota + static_cast<uint32_t>(c);
      if ((c += kLanes) == half) c = 0, ++row;
    } else {
      for (int64_t l = 0; l < count; ++l) {
        x0[l] = rows[row];
        x1[l] = static_cast<uint32_t>(c);
        if (++c == half) c = 0, ++row;
      }
    }
    threefry(key, x0, x1);
    const Vector even = normal_from_bits(x0), odd = normal_from_bits(x1);
    float pairs[2 * kLanes];
    for (int l = 0; l < kLanes; ++l) pairs[2 * l] = even[l], pairs[2 * l + 1] = odd[l];
    std::memcpy(out + 2 * f, pairs, 2 * count * sizeof(float));
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
