// Products of small matrices and what stands between them, on blocks of rows that stay in the first-level cache.
//
// R rows, A inputs, D outputs (a multiple of PANEL). All arrays are contiguous float32.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__AVX512F__)
enum { VL = 16, ROWS = 12 };
#elif defined(__AVX__)
enum { VL = 8, ROWS = 6 };
#else
enum { VL = 4, ROWS = 8 };
#endif
enum { PANEL = 2 * VL, TILE = 48 };

typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));

static inline vec load(const float *from) { return *(const vec *)from; }
static inline void store(float *to, vec value) { *(vec *)to = value; }
static inline vec all(float value) { return value - vec{}; }  // not vec{} + value: -0 + 0 is 0, so that would be an addition
template <int N>
static inline float total_of(const float *values) {
  if constexpr (N == 4) return (values[0] + values[2]) + (values[1] + values[3]);
  else {
    typedef float half __attribute__((vector_size(2 * N), aligned(4), may_alias));
    half sum = *(const half *)values + *(const half *)(values + N / 2);
    return total_of<N / 2>((const float *)&sum);
  }
}
static inline float total(vec value) { return total_of<VL>((const float *)&value); }
static inline vec leaky(vec value, vec sign, float leak) { return sign > 0 ? value : value * leak; }
static inline long least(long a, long b) { return a < b ? a : b; }

// Initial values of a product's sums: 0, what the result has, or a bias: row i gets that of index[i], or all the same.
enum Start { ZERO, RESULT, BIAS };
struct Bias {
  const float *values = nullptr;
  const long *index = nullptr;
  long width = 0;
};

// Block C (M x PANEL) = A (M x K) B (K x PANEL), from its start. Element (i, k) of A: a[i * row + k * column].
template <int M, Start start>
static inline void block(const float *a, long row, long column, const float *b, long b_row, long K, float *c, long c_row,
                         const float *bias, const long *index, long width) {
  vec sum[M][2];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < 2; j++) {
      if constexpr (start == ZERO) sum[i][j] = all(0);
      else if constexpr (start == RESULT) sum[i][j] = load(c + i * c_row + j * VL);
      else sum[i][j] = load(bias + (index ? index[i] * width : 0) + j * VL);
    }
  for (long k = 0; k < K; k++) {
    vec left = load(b + k * b_row), right = load(b + k * b_row + VL);
#pragma GCC unroll 12
    for (int i = 0; i < M; i++) {
      vec factor = all(a[i * row + k * column]);
      sum[i][0] += factor * left;
      sum[i][1] += factor * right;
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < 2; j++) store(c + i * c_row + j * VL, sum[i][j]);
}

template <int M, Start start, typename... Arguments>
static void rest(long m, Arguments... arguments) {
  if constexpr (M > 0) {
    if (m == M) return block<M, start>(arguments...);
    rest<M - 1, start>(m, arguments...);
  }
}

// C (m x N) = A B. B in panels: column n of row k at b[n / PANEL * panel + k * b_row + n % PANEL].
template <Start start>
static void product(const float *a, long row, long column, long m, const float *b, long b_row, long panel, long K, long N,
                    float *c, long c_row, Bias bias = Bias()) {
  for (long n = 0; n < N; n += PANEL)  // a panel stays in the cache for all rows
    for (long i = 0; i < m; i += ROWS) {
      const float *values = bias.values ? bias.values + n : nullptr;
      rest<ROWS, start>(least(ROWS, m - i), a + i * row, row, column, b + n / PANEL * panel, b_row, K, c + i * c_row + n,
                        c_row, values, bias.index ? bias.index + i : nullptr, bias.width);
    }
}

static inline long padded(long columns) { return (columns + PANEL - 1) / PANEL * PANEL; }

// Panels of the transpose of W (D x A): for rows times Wᵀ.
static inline std::vector<float> panels_of_transpose(const float *weight, long D, long A) {
  std::vector<float> packed(D * A);
  for (long d = 0; d < D; d++)
    for (long k = 0; k < A; k++) packed[(d / PANEL * A + k) * PANEL + d % PANEL] = weight[d * A + k];
  return packed;
}

// rows (m x D) = x (m x A) Wᵀ + bias of index[i], or all the same without.
static inline void layer(const float *x, long m, long A, const std::vector<float> &panels_of_transpose, long D, const float *bias,
                  const long *index, float *rows) {
  product<BIAS>(x, A, 1, m, panels_of_transpose.data(), PANEL, A * PANEL, A, D, rows, D, Bias{bias, index, D});
}

// Panels of W (D x A), with columns of 0 up to a multiple of PANEL: for rows times W.
static inline std::vector<float> panels_of(const float *weight, long D, long A) {
  std::vector<float> packed(D * padded(A));
  for (long k = 0; k < A; k += PANEL)
    for (long d = 0; d < D; d++)
      std::memcpy(&packed[(k / PANEL * D + d) * PANEL], weight + d * A + k, 4 * least(PANEL, A - k));
  return packed;
}

// Rows (m x D) times W into result (m x A).
static inline void times_weight(const float *rows, long m, long D, const std::vector<float> &panels, long A, float *result,
                         std::vector<float> &room) {
  long width = padded(A);
  if (width == A) return product<ZERO>(rows, D, 1, m, panels.data(), PANEL, D * PANEL, D, A, result, A);
  room.resize(m * width);
  product<ZERO>(rows, D, 1, m, panels.data(), PANEL, D * PANEL, D, width, room.data(), width);
  for (long i = 0; i < m; i++) std::memcpy(result + i * A, &room[i * width], 4 * A);
}

// Sum over rows of left (m x A) and right (m x D), as (A x D): the transpose of a weight's gradient.
static inline void add_outer(const float *left, long A, const float *right, long D, long m, std::vector<float> &sum) {
  product<RESULT>(left, 1, A, A, right, D, PANEL, m, D, sum.data(), D);
}

static inline void transposed(const std::vector<float> &from, long A, long D, float *to) {
  for (long d0 = 0; d0 < D; d0 += 16)
    for (long k = 0; k < A; k++)
      for (long d = d0; d < d0 + 16; d++) to[d * A + k] = from[k * D + d];
}

// Each vector, from column d on, of (v - mean(v) - n̂ mean(n̂ v)) * inverse, for a row v; n̂ is the normalised row.
template <typename Each>
static inline void project(const float *v, const float *normal, float inverse, long D, Each each) {
  vec sum = all(0), dot = all(0);
  for (long d = 0; d < D; d += VL) {
    sum += load(v + d);
    dot += load(v + d) * load(normal + d);
  }
  vec mean = all(total(sum) / D), along = all(total(dot) / D);
  for (long d = 0; d < D; d += VL) each(d, (load(v + d) - mean - load(normal + d) * along) * inverse);
}

static inline void project(float *v, const float *normal, float inverse, long D) {
  project(v, normal, inverse, D, [=](long d, vec value) { store(v + d, value); });
}

// Each vector, from column d on, of a normalised row of D: mean 0, spread 1. Returns the inverse of the spread.
template <typename Each>
static inline float normalise(const float *value, float epsilon, long D, Each each) {
  vec sum = all(0), square = all(0);
  for (long d = 0; d < D; d += VL) sum += load(value + d);
  vec mean = all(total(sum) / D);
  for (long d = 0; d < D; d += VL) {
    vec centred = load(value + d) - mean;
    square += centred * centred;
  }
  float variance = total(square) / D;  // one that overflows must not make a row of zeros
  float inverse = std::isfinite(variance) ? 1 / std::sqrt(variance + epsilon) : NAN;
  for (long d = 0; d < D; d += VL) each(d, (load(value + d) - mean) * inverse);
  return inverse;
}

static inline float normalise(float *value, float epsilon, long D) {
  return normalise(value, epsilon, D, [=](long d, vec normal) { store(value + d, normal); });
}

static inline void add(float *to, const float *values, long D) {
  for (long d = 0; d < D; d += VL) store(to + d, load(to + d) + load(values + d));
}

// Gradients of a row pulled = J(gamma u), with J the projection of `project`, for that of pulled, j:
// to the row before the normalisation, and added to that of gamma; each(d, J j). The formulas are those of
// _LayerNormPullback.
template <typename Each>
static inline void pull_gradient(const float *j, const float *u, const float *normal, const float *pulled,
                                 const float *gamma, float inverse, long D, float *to_row, float *to_gamma, Each each) {
  vec dot_pulled = all(0), dot_normal = all(0), dot_u = all(0);
  for (long d = 0; d < D; d += VL) {
    dot_pulled += load(j + d) * load(pulled + d);
    dot_normal += load(j + d) * load(normal + d);
    dot_u += load(u + d) * load(gamma + d) * load(normal + d);
  }
  float scale = -inverse / D;
  vec of_normal = all(total(dot_pulled) * scale), of_pulled = all(total(dot_normal) * scale);
  vec of_j = all(total(dot_u) * scale);
  project(j, normal, inverse, D, [=](long d, vec jj) {
    store(to_row + d, load(normal + d) * of_normal + load(pulled + d) * of_pulled + jj * of_j);
    store(to_gamma + d, load(to_gamma + d) + load(u + d) * jj);
    each(d, jj);
  });
}
