// Linear layer, layer normalisation and leaky ReLU in one pass over the rows, forwards, backwards, and the pullback
// whose gradient the penalty needs. A block of rows stays in the first-level cache from the product to the activation:
// each row is read once and written once. See layers.py for the mathematics, dense.py for the arguments.
//
// R rows, A inputs, D outputs (a multiple of 2 VL). All arrays are contiguous float32, index is int64.

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
static inline vec all(float value) { return vec{} + value; }
static inline float total(vec value) {
  for (int half = VL / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) value[i] += value[i + half];
  return value[0];
}
static inline vec leaky(vec value, vec sign, float leak) { return sign > 0 ? value : value * leak; }
static inline long least(long a, long b) { return a < b ? a : b; }

// Block C (M x PANEL) = A (M x K) B (K x PANEL), added to C if `add`. Element (i, k) of A: a[i * row + k * column].
template <int M, bool add>
static inline void block(const float *a, long row, long column, const float *b, long b_row, long K, float *c, long c_row) {
  vec sum[M][2];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < 2; j++) sum[i][j] = add ? load(c + i * c_row + j * VL) : all(0);
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

template <int M, bool add>
static void rest(long m, const float *a, long row, long column, const float *b, long b_row, long K, float *c, long c_row) {
  if constexpr (M > 0) {
    if (m == M) return block<M, add>(a, row, column, b, b_row, K, c, c_row);
    rest<M - 1, add>(m, a, row, column, b, b_row, K, c, c_row);
  }
}

// C (m x N) = A B, or C += A B. B in panels: column n of row k at b[n / PANEL * panel + k * b_row + n % PANEL].
template <bool add>
static void product(const float *a, long row, long column, long m, const float *b, long b_row, long panel, long K, long N,
                    float *c, long c_row) {
  for (long i = 0; i < m; i += ROWS) {
    long now = least(ROWS, m - i);
    for (long n = 0; n < N; n += PANEL)
      rest<ROWS, add>(now, a + i * row, row, column, b + n / PANEL * panel, b_row, K, c + i * c_row + n, c_row);
  }
}

static long padded(long columns) { return (columns + PANEL - 1) / PANEL * PANEL; }

// Panels of the transpose of W (D x A): for rows times Wᵀ.
static std::vector<float> panels_of_transpose(const float *weight, long D, long A) {
  std::vector<float> packed(D * A);
  for (long d = 0; d < D; d++)
    for (long k = 0; k < A; k++) packed[(d / PANEL * A + k) * PANEL + d % PANEL] = weight[d * A + k];
  return packed;
}

// Panels of W (D x A), with columns of 0 up to a multiple of PANEL: for rows times W.
static std::vector<float> panels_of(const float *weight, long D, long A) {
  std::vector<float> packed(D * padded(A));
  for (long k = 0; k < A; k += PANEL)
    for (long d = 0; d < D; d++)
      std::memcpy(&packed[(k / PANEL * D + d) * PANEL], weight + d * A + k, 4 * least(PANEL, A - k));
  return packed;
}

// Rows (m x D) times W into result (m x A).
static void times_weight(const float *rows, long m, long D, const std::vector<float> &panels, long A, float *result,
                         std::vector<float> &room) {
  long width = padded(A);
  if (width == A) return product<false>(rows, D, 1, m, panels.data(), PANEL, D * PANEL, D, A, result, A);
  room.resize(m * width);
  product<false>(rows, D, 1, m, panels.data(), PANEL, D * PANEL, D, width, room.data(), width);
  for (long i = 0; i < m; i++) std::memcpy(result + i * A, &room[i * width], 4 * A);
}

// Sum over rows of left (m x A) and right (m x D), as (A x D): the transpose of a weight's gradient.
static void add_outer(const float *left, long A, const float *right, long D, long m, std::vector<float> &sum) {
  product<true>(left, 1, A, A, right, D, PANEL, m, D, sum.data(), D);
}

static void transposed(const std::vector<float> &from, long A, long D, float *to) {
  for (long d0 = 0; d0 < D; d0 += 16)
    for (long k = 0; k < A; k++)
      for (long d = d0; d < d0 + 16; d++) to[d * A + k] = from[k * D + d];
}

// (v - mean(v) - n̂ mean(n̂ v)) * inverse, in place, for a row; n̂ is the normalised row.
static inline void project(float *v, const float *normal, float inverse, long D) {
  vec sum = all(0), dot = all(0);
  for (long d = 0; d < D; d += VL) {
    sum += load(v + d);
    dot += load(v + d) * load(normal + d);
  }
  vec mean = all(total(sum) / D), along = all(total(dot) / D);
  for (long d = 0; d < D; d += VL)
    store(v + d, (load(v + d) - mean - load(normal + d) * along) * inverse);
}

extern "C" {

// output = leaky(norm(x Wᵀ + bias)). With index, row r has bias[index[r]]. Without gamma there is no normalisation;
// with it, the normalised rows and the inverse of their spreads are returned, too.
void dense_forward(const float *x, long R, long A, const float *weight, long D, const float *bias, const long *index,
                   const float *gamma, const float *beta, float epsilon, float leak, float *normal, float *inverse,
                   float *output) {
  std::vector<float> panels = panels_of_transpose(weight, D, A);
  for (long r0 = 0; r0 < R; r0 += ROWS) {
    long m = least(ROWS, R - r0);
    product<false>(x + r0 * A, A, 1, m, panels.data(), PANEL, A * PANEL, A, D, output + r0 * D, D);
    for (long r = r0; r < r0 + m; r++) {
      const float *of_row = bias + (index ? index[r] * D : 0);
      float *out = output + r * D;
      if (!gamma) {
        for (long d = 0; d < D; d += VL) {
          vec value = load(out + d) + load(of_row + d);
          store(out + d, leaky(value, value, leak));
        }
        continue;
      }
      float *hat = normal + r * D;
      vec sum = all(0), square = all(0);
      for (long d = 0; d < D; d += VL) {
        vec value = load(out + d) + load(of_row + d);
        store(hat + d, value);
        sum += value;
      }
      float mean = total(sum) / D;
      for (long d = 0; d < D; d += VL) {
        vec value = load(hat + d) - mean;
        store(hat + d, value);
        square += value * value;
      }
      inverse[r] = 1 / std::sqrt(total(square) / D + epsilon);
      for (long d = 0; d < D; d += VL) {
        vec value = load(hat + d) * inverse[r];
        store(hat + d, value);
        value = value * load(gamma + d) + load(beta + d);
        store(out + d, leaky(value, value, leak));
      }
    }
  }
}

// Gradients of dense_forward for that of its output, and that of the rows before the normalisation (either may be
// null). to_x, and to_weight with the others, are null if not wanted. Those of bias, gamma and beta are added.
void dense_backward(const float *of_output, const float *of_rows, const float *x, const float *normal,
                    const float *inverse, const float *output, long R, long A, const float *weight, long D,
                    const long *index, const float *gamma, float leak, float *to_x, float *to_weight, float *to_bias,
                    float *to_gamma, float *to_beta) {
  std::vector<float> panels = to_x ? panels_of(weight, D, A) : std::vector<float>(), room;
  std::vector<float> rows(TILE * D), sum(to_weight ? A * D : 0);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    for (long r = r0; r < r0 + m; r++) {
      float *row = &rows[(r - r0) * D];
      const float *hat = normal + r * D;
      if (!of_output) {
        std::memset(row, 0, 4 * D);
      } else {
        for (long d = 0; d < D; d += VL) {
          vec slope = leaky(load(of_output + r * D + d), load(output + r * D + d), leak);
          if (gamma) {
            if (to_weight) {
              store(to_beta + d, load(to_beta + d) + slope);
              store(to_gamma + d, load(to_gamma + d) + slope * load(hat + d));
            }
            slope *= load(gamma + d);
          }
          store(row + d, slope);
        }
        if (gamma) project(row, hat, inverse[r], D);
      }
      if (of_rows)
        for (long d = 0; d < D; d += VL) store(row + d, load(row + d) + load(of_rows + r * D + d));
      if (to_bias) {
        float *into = to_bias + (index ? index[r] * D : 0);
        for (long d = 0; d < D; d += VL) store(into + d, load(into + d) + load(row + d));
      }
    }
    if (to_x) times_weight(rows.data(), m, D, panels, A, to_x + r0 * A, room);
    if (to_weight) add_outer(x + r0 * A, A, rows.data(), D, m, sum);
  }
  if (to_weight) transposed(sum, A, D, to_weight);
}

// result = pulled W, with pulled the gradient `slope` of a layer's output taken back through activation and
// normalisation. Both are returned.
void pullback_forward(const float *slope, const float *normal, const float *inverse, const float *output, long R, long A,
                      const float *weight, long D, const float *gamma, float leak, float *pulled, float *result) {
  std::vector<float> panels = panels_of(weight, D, A), room;
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    for (long r = r0; r < r0 + m; r++) {
      float *row = pulled + r * D;
      for (long d = 0; d < D; d += VL)
        store(row + d, leaky(load(slope + r * D + d), load(output + r * D + d), leak) * load(gamma + d));
      project(row, normal + r * D, inverse[r], D);
    }
    times_weight(pulled + r0 * D, m, D, panels, A, result + r0 * A, room);
  }
}

// Gradients of pullback_forward for that of its result: to the slope, to the rows before the normalisation, to the
// weight and, added, to gamma. The formulas are those of _LayerNormPullback.
void pullback_backward(const float *of_result, const float *slope, const float *normal, const float *inverse,
                       const float *output, const float *pulled, long R, long A, const float *weight, long D,
                       const float *gamma, float leak, float *to_slope, float *to_rows, float *to_weight,
                       float *to_gamma) {
  std::vector<float> panels = panels_of_transpose(weight, D, A), sum(A * D), js(TILE * D);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    product<false>(of_result + r0 * A, A, 1, m, panels.data(), PANEL, A * PANEL, A, D, js.data(), D);
    for (long r = r0; r < r0 + m; r++) {
      float *j = &js[(r - r0) * D];
      const float *hat = normal + r * D, *back = pulled + r * D, *out = output + r * D;
      vec dot_pulled = all(0), dot_hat = all(0), dot_slope = all(0);
      for (long d = 0; d < D; d += VL) {
        vec u = leaky(load(slope + r * D + d), load(out + d), leak);
        dot_pulled += load(j + d) * load(back + d);
        dot_hat += load(j + d) * load(hat + d);
        dot_slope += u * load(gamma + d) * load(hat + d);
      }
      float scale = -inverse[r] / D;
      float of_hat = total(dot_pulled) * scale, of_pulled = total(dot_hat) * scale, of_j = total(dot_slope) * scale;
      project(j, hat, inverse[r], D);
      for (long d = 0; d < D; d += VL) {
        vec value = load(j + d), sign = load(out + d);
        store(to_rows + r * D + d, load(hat + d) * of_hat + load(back + d) * of_pulled + value * of_j);
        store(to_gamma + d, load(to_gamma + d) + leaky(load(slope + r * D + d), sign, leak) * value);
        store(to_slope + r * D + d, leaky(value * load(gamma + d), sign, leak));
      }
    }
    add_outer(of_result + r0 * A, A, pulled + r0 * D, D, m, sum);
  }
  transposed(sum, A, D, to_weight);
}

}  // extern "C"
