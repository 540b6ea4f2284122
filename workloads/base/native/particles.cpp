// Two hidden layers over the particles of events in one pass, forwards and backwards: one block of rows goes through
// both while it is in the cache, and gradients between them are never written. The first layer's bias is the context
// of the row's event. See layers.py for the arguments; index is int64: the event of each row, not decreasing.

#include "rows.h"

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

// Row k of the transpose of W (D x A) is contiguous.
static std::vector<float> transpose_of(const float *weight, long D, long A) {
  std::vector<float> rows(A * D);
  for (long d = 0; d < D; d++)
    for (long k = 0; k < A; k++) rows[k * D + d] = weight[d * A + k];
  return rows;
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
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels = panels_of(weight2, D, D), room;
  std::vector<float> second(TILE * D), first(TILE * D), normal1(TILE * D), hidden(TILE * D);
  float inverse1[TILE];
  std::vector<float> sum1(to_weight1 ? A * D : 0), sum2(to_weight1 ? D * D : 0);
  std::vector<float> weight1T = transpose_of(weight1, D, A);
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
    times_weight(second.data(), m, D, panels, D, first.data(), room);
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
  transposed(sum1, A, D, to_weight1);
  transposed(sum2, D, D, to_weight2);
}

// Gradient to x (R x A) for that of `pooled`, of_pooled, through both layers. middle (R x D): gradient to the rows after
// the first layer.
void slope_forward(const float *of_pooled, const float *x, long R, long A, const float *weight1, long D,
                   const float *context, const long *index, const long *counts, const float *gamma1, const float *beta1,
                   float epsilon1, const float *weight2, const float *gamma2, const float *beta2, float leak,
                   const float *normal2, const float *inverse2, const int *largest, float *middle, float *to_x) {
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels = panels_of(weight2, D, D), room;
  std::vector<float> weight1T = transpose_of(weight1, D, A), normal1(TILE * D), pulled(TILE * D), back(D);
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
    times_weight(pulled.data(), m, D, panels, D, middle + r0 * D, room);
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
  std::vector<float> weight1T = transpose_of(weight1, D, A), sum1(A * D), sum2(D * D), normal1(TILE * D);
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
    product<ZERO>(of_middle.data(), D, 1, m, panels2.data(), PANEL, D * PANEL, D, D, js.data(), D);
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
  transposed(sum1, A, D, to_weight1);
  transposed(sum2, D, D, to_weight2);
}

}  // extern "C"
