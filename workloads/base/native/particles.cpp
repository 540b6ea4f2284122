// Two hidden layers over the particles of events in one pass, forwards and backwards: one block of rows goes through
// both while it is in the cache, and gradients between them are never written. The first layer's bias is the context
// of the row's event. See layers.py for the arguments; index is int64: the event of each row, not decreasing.

// First products of small matrices and what stands between them, on blocks of rows that stay in the first-level cache.
// R rows, A inputs, D outputs (a multiple of PANEL). All arrays are contiguous float32.

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

// Initial values of a product's sums: 0, what the result has, or a bias: row i gets row index[i] of it, or all the same.
enum Start { ZERO, RESULT, BIAS };

// Block C (M x PANEL) = A (M x K) B (K x PANEL), from its start. Element (i, k) of A: a[i * row + k * column].
template <int M, Start start>
static inline void block(const float *a, long row, long column, const float *b, long b_row, long K, float *c, long c_row,
                         const float *bias, const long *index) {
  vec sum[M][2];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < 2; j++) {
      if constexpr (start == ZERO) sum[i][j] = all(0);
      else if constexpr (start == RESULT) sum[i][j] = load(c + i * c_row + j * VL);
      else sum[i][j] = load(bias + (index ? index[i] * c_row : 0) + j * VL);
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
                    float *c, long c_row, const float *bias = nullptr, const long *index = nullptr) {
  for (long n = 0; n < N; n += PANEL)  // a panel stays in the cache for all rows
    for (long i = 0; i < m; i += ROWS)
      rest<ROWS, start>(least(ROWS, m - i), a + i * row, row, column, b + n / PANEL * panel, b_row, K, c + i * c_row + n,
                        c_row, bias ? bias + n : nullptr, index ? index + i : nullptr);
}

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
  product<BIAS>(x, A, 1, m, panels_of_transpose.data(), PANEL, A * PANEL, A, D, rows, D, bias, index);
}

// Panels of W (D x D): for rows times W.
static inline std::vector<float> panels_of(const float *weight, long D) {
  std::vector<float> packed(D * D);
  for (long k = 0; k < D; k += PANEL)
    for (long d = 0; d < D; d++) std::memcpy(&packed[(k / PANEL * D + d) * PANEL], weight + d * D + k, 4 * PANEL);
  return packed;
}

// Rows (m x D) times the matrix of the panels (D x D) into result (m x D).
static inline void times_panels(const float *rows, long m, long D, const std::vector<float> &panels, float *result) {
  product<ZERO>(rows, D, 1, m, panels.data(), PANEL, D * PANEL, D, D, result, D);
}

// Sum over rows of left (m x A) and right (m x D), as (A x D): the transpose of a weight's gradient.
static inline void add_outer(const float *left, long A, const float *right, long D, long m, std::vector<float> &sum) {
  product<RESULT>(left, 1, A, A, right, D, PANEL, m, D, sum.data(), D);
}

// Transpose (D x A) of a matrix (A x D).
static inline void transposed(const float *from, long A, long D, float *to) {
  for (long d0 = 0; d0 < D; d0 += 16)
    for (long k = 0; k < A; k++)
      for (long d = d0; d < least(d0 + 16, D); d++) to[d * A + k] = from[k * D + d];
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

// Gradients of a row pulled = J(gamma u), with J the projection of `project`, for that of pulled, j:
// to the row before the normalisation, -((j·pulled) n̂ + (n̂·j) pulled + (n̂·γu) J j) / (σ D), and added to that of gamma;
// each(d, J j).
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

typedef int whole __attribute__((vector_size(4 * VL), aligned(4), may_alias));

// Number before the activation.
static inline vec affine(const float *normal, const float *gamma, const float *beta, long d) {
  return load(normal + d) * load(gamma + d) + load(beta + d);
}

// Gradient to columns d, ... of a row for that of its event's mean and maximum.
static inline vec unpooled(const float *of_pooled, long D, long d, vec share, const int *place, int row) {
  whole is_largest = *(const whole *)(place + d) == row;
  return load(of_pooled + d) * share + (is_largest ? load(of_pooled + D + d) : all(0));
}

// result = row W, for few columns.
static inline void times_few(const float *row, const std::vector<float> &weightT, long A, long D, float *result) {
  for (long k = 0; k < A; k++) {
    vec dot = all(0);
    for (long d = 0; d < D; d += VL) dot += load(row + d) * load(&weightT[k * D + d]);
    result[k] = total(dot);
  }
}

extern "C" {

// Two layers with normalisation, then mean and maximum over each event's rows: pooled (E x 2 D), zero at the start.
// normal2: rows as the second normalisation leaves them; inverse2: inverses of their spreads; largest (E x D): row of
// the maximum.
void pooled_forward(const float *x, long R, long A, const float *weight1, long D, const float *context, const long *index,
                    const long *counts, const float *gamma1, const float *beta1, float epsilon1, const float *weight2,
                    const float *bias2, const float *gamma2, const float *beta2, float epsilon2, float leak,
                    float *normal2, float *inverse2, float *pooled, int *largest) {
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels2 = panels_of_transpose(weight2, D, D);
  std::vector<float> hidden(TILE * D);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    layer(x + r0 * A, m, A, panels1, D, context, index + r0, hidden.data());
    for (long i = 0; i < m; i++) {
      float *row = &hidden[i * D];
      normalise(row, epsilon1, D, [=](long d, vec normal) {
        vec value = normal * load(gamma1 + d) + load(beta1 + d);
        store(row + d, leaky(value, value, leak));
      });
    }
    layer(hidden.data(), m, D, panels2, D, bias2, nullptr, normal2 + r0 * D);
    for (long r = r0; r < r0 + m; r++) {
      float *hat = normal2 + r * D, *mean = pooled + index[r] * 2 * D, *most = mean + D;
      int *place = largest + index[r] * D;
      bool is_first = r == 0 || index[r - 1] != index[r], is_last = r == R - 1 || index[r + 1] != index[r];
      vec share = all(is_last ? 1.0f / counts[index[r]] : 1.0f);
      inverse2[r] = normalise(hat, epsilon2, D, [=](long d, vec value) {
        store(hat + d, value);
        value = value * load(gamma2 + d) + load(beta2 + d);
        value = leaky(value, value, leak);
        store(mean + d, (load(mean + d) + value) * share);
        whole rank = *(whole *)(place + d), larger = value > load(most + d);
        if (is_first) larger = ~(whole{});
        store(most + d, larger ? value : load(most + d));
        *(whole *)(place + d) = larger ? whole{} + (int)r : rank;
      });
    }
  }
}

// Gradients of pooled_forward for that of `pooled`, and those of the rows before each normalisation (of_rows1, of_rows2,
// both or neither). to_x, and to_weight1 with all others, are null if not wanted. Those of context, bias, gamma and beta
// are added.
void pooled_backward(const float *of_pooled, const float *of_rows1, const float *of_rows2, const float *x, long R, long A,
                     const float *weight1, long D, const float *context, const long *index, const long *counts,
                     const float *gamma1, const float *beta1, float epsilon1, const float *weight2, const float *gamma2,
                     const float *beta2, float leak, const float *normal2, const float *inverse2, const int *largest,
                     float *to_x, float *to_weight1, float *to_context, float *to_gamma1, float *to_beta1,
                     float *to_weight2, float *to_bias2, float *to_gamma2, float *to_beta2) {
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels = panels_of(weight2, D), weight1T(A * D);
  transposed(weight1, D, A, weight1T.data());
  std::vector<float> second(TILE * D), first(TILE * D), normal1(TILE * D), hidden(TILE * D);
  float inverse1[TILE];
  std::vector<float> sum1(to_weight1 ? A * D : 0), sum2(to_weight1 ? D * D : 0);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    layer(x + r0 * A, m, A, panels1, D, context, index + r0, normal1.data());
    for (long i = 0; i < m; i++) {
      float *hat = &normal1[i * D], *row = &hidden[i * D];
      inverse1[i] = normalise(hat, epsilon1, D, [=](long d, vec value) {
        store(hat + d, value);
        value = value * load(gamma1 + d) + load(beta1 + d);
        store(row + d, leaky(value, value, leak));
      });
    }
    for (long r = r0; r < r0 + m; r++) {
      float *row = &second[(r - r0) * D];
      const float *hat = normal2 + r * D, *of_event = of_pooled + index[r] * 2 * D;
      const int *place = largest + index[r] * D;
      vec share = all(1.0f / counts[index[r]]);
      for (long d = 0; d < D; d += VL) {
        vec slope = leaky(unpooled(of_event, D, d, share, place, (int)r), affine(hat, gamma2, beta2, d), leak);
        if (to_weight1) {
          store(to_beta2 + d, load(to_beta2 + d) + slope);
          store(to_gamma2 + d, load(to_gamma2 + d) + slope * load(hat + d));
        }
        store(row + d, slope * load(gamma2 + d));
      }
      project(row, hat, inverse2[r], D, [=](long d, vec value) {
        if (of_rows2) value += load(of_rows2 + r * D + d);
        store(row + d, value);
        if (to_weight1) store(to_bias2 + d, load(to_bias2 + d) + value);
      });
    }
    if (to_weight1) add_outer(hidden.data(), D, second.data(), D, m, sum2);
    times_panels(second.data(), m, D, panels, first.data());
    for (long r = r0; r < r0 + m; r++) {
      float *row = &first[(r - r0) * D];
      const float *hat = &normal1[(r - r0) * D];
      for (long d = 0; d < D; d += VL) {
        vec slope = leaky(load(row + d), load(&hidden[(r - r0) * D + d]), leak);
        if (to_weight1) {
          store(to_beta1 + d, load(to_beta1 + d) + slope);
          store(to_gamma1 + d, load(to_gamma1 + d) + slope * load(hat + d));
        }
        store(row + d, slope * load(gamma1 + d));
      }
      float *to_event = to_weight1 ? to_context + index[r] * D : nullptr;
      project(row, hat, inverse1[r - r0], D, [=](long d, vec value) {
        if (of_rows1) value += load(of_rows1 + r * D + d);
        store(row + d, value);
        if (to_event) store(to_event + d, load(to_event + d) + value);
      });
      if (to_x) times_few(row, weight1T, A, D, to_x + r * A);
    }
    if (to_weight1) add_outer(x + r0 * A, A, first.data(), D, m, sum1);
  }
  if (!to_weight1) return;
  transposed(sum1.data(), A, D, to_weight1);
  transposed(sum2.data(), D, D, to_weight2);
}

// Gradient to x (R x A) for that of `pooled`, of_pooled, through both layers. middle (R x D): gradient to the rows after
// the first layer.
void slope_forward(const float *of_pooled, const float *x, long R, long A, const float *weight1, long D,
                   const float *context, const long *index, const long *counts, const float *gamma1, const float *beta1,
                   float epsilon1, const float *weight2, const float *gamma2, const float *beta2, float leak,
                   const float *normal2, const float *inverse2, const int *largest, float *middle, float *to_x) {
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels = panels_of(weight2, D), weight1T(A * D);
  transposed(weight1, D, A, weight1T.data());
  std::vector<float> normal1(TILE * D), pulled(TILE * D), back(D);
  float inverse1[TILE];
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    for (long r = r0; r < r0 + m; r++) {
      float *row = &pulled[(r - r0) * D];
      const float *hat = normal2 + r * D, *of_event = of_pooled + index[r] * 2 * D;
      const int *place = largest + index[r] * D;
      vec share = all(1.0f / counts[index[r]]);
      for (long d = 0; d < D; d += VL) {
        vec slope = leaky(unpooled(of_event, D, d, share, place, (int)r), affine(hat, gamma2, beta2, d), leak);
        store(row + d, slope * load(gamma2 + d));
      }
      project(row, hat, inverse2[r], D);
    }
    times_panels(pulled.data(), m, D, panels, middle + r0 * D);
    layer(x + r0 * A, m, A, panels1, D, context, index + r0, normal1.data());
    for (long i = 0; i < m; i++) inverse1[i] = normalise(&normal1[i * D], epsilon1, D);
    for (long r = r0; r < r0 + m; r++) {
      const float *hat = &normal1[(r - r0) * D];
      for (long d = 0; d < D; d += VL)
        store(&back[d], leaky(load(middle + r * D + d), affine(hat, gamma1, beta1, d), leak) * load(gamma1 + d));
      project(back.data(), hat, inverse1[r - r0], D);
      times_few(back.data(), weight1T, A, D, to_x + r * A);
    }
  }
}

// Gradients of slope_forward for that of its result, of_x: to of_pooled, to the rows before each normalisation and to
// the weights. Those of of_pooled and of each gamma are added.
void slope_backward(const float *of_x, const float *of_pooled, const float *x, long R, long A, const float *weight1,
                    long D, const float *context, const long *index, const long *counts, const float *gamma1,
                    const float *beta1, float epsilon1, const float *weight2, const float *gamma2, const float *beta2,
                    float leak, const float *normal2, const float *inverse2, const int *largest, const float *middle,
                    float *to_pooled, float *to_rows1, float *to_rows2, float *to_weight1, float *to_gamma1,
                    float *to_weight2, float *to_gamma2) {
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels2 = panels_of_transpose(weight2, D, D);
  std::vector<float> weight1T(A * D), sum1(A * D), sum2(D * D), normal1(TILE * D);
  transposed(weight1, D, A, weight1T.data());
  std::vector<float> of_middle(TILE * D), pulled2(TILE * D), js(TILE * D), u(D), pulled1(D), j1(D);
  float inverse1[TILE];
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    layer(x + r0 * A, m, A, panels1, D, context, index + r0, normal1.data());
    for (long i = 0; i < m; i++) inverse1[i] = normalise(&normal1[i * D], epsilon1, D);
    for (long r = r0; r < r0 + m; r++) {
      const float *hat = &normal1[(r - r0) * D];
      for (long d = 0; d < D; d += VL) {
        vec value = leaky(load(middle + r * D + d), affine(hat, gamma1, beta1, d), leak), j = all(0);
        store(&u[d], value);
        store(&pulled1[d], value * load(gamma1 + d));
        for (long k = 0; k < A; k++) j += of_x[r * A + k] * load(&weight1T[k * D + d]);
        store(&j1[d], j);
      }
      project(pulled1.data(), hat, inverse1[r - r0], D);
      for (long k = 0; k < A; k++)
        for (long d = 0; d < D; d += VL)
          store(&sum1[k * D + d], load(&sum1[k * D + d]) + of_x[r * A + k] * load(&pulled1[d]));
      float *to_middle = &of_middle[(r - r0) * D];
      pull_gradient(j1.data(), u.data(), hat, pulled1.data(), gamma1, inverse1[r - r0], D, to_rows1 + r * D, to_gamma1,
                    [=](long d, vec j) {
                      store(to_middle + d, leaky(j * load(gamma1 + d), affine(hat, gamma1, beta1, d), leak));
                    });
    }
    times_panels(of_middle.data(), m, D, panels2, js.data());
    for (long r = r0; r < r0 + m; r++) {
      float *pulled = &pulled2[(r - r0) * D], *to_event = to_pooled + index[r] * 2 * D;
      const float *hat = normal2 + r * D, *of_event = of_pooled + index[r] * 2 * D;
      const int *place = largest + index[r] * D;
      vec share = all(1.0f / counts[index[r]]);
      for (long d = 0; d < D; d += VL) {
        vec value = leaky(unpooled(of_event, D, d, share, place, (int)r), affine(hat, gamma2, beta2, d), leak);
        store(&u[d], value);
        store(pulled + d, value * load(gamma2 + d));
      }
      project(pulled, hat, inverse2[r], D);
      pull_gradient(&js[(r - r0) * D], u.data(), hat, pulled, gamma2, inverse2[r], D, to_rows2 + r * D, to_gamma2,
                    [=](long d, vec j) {
                      vec value = leaky(j * load(gamma2 + d), affine(hat, gamma2, beta2, d), leak);
                      whole is_largest = *(const whole *)(place + d) == (int)r;
                      store(to_event + d, load(to_event + d) + value * share);
                      store(to_event + D + d, load(to_event + D + d) + (is_largest ? value : all(0)));
                    });
    }
    add_outer(of_middle.data(), D, pulled2.data(), D, m, sum2);
  }
  transposed(sum1.data(), A, D, to_weight1);
  transposed(sum2.data(), D, D, to_weight2);
}

}  // extern "C"
