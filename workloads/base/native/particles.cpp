// Two hidden layers over the particles of events in one pass, forwards and backwards: one block of rows goes through
// both while it is in the cache, and gradients between them are never written. The first layer's bias is the context
// of the row's event. See particles.py for the arguments; index is int64: the event of each row, not decreasing.

#include "rows.h"

// rows = x W1ᵀ + context[index], for m rows. Backwards they are computed again: that takes less than reading them.
static void with_context(const float *x, long m, long A, const std::vector<float> &panels1, long D, const float *context,
                         const long *index, float *rows) {
  product<false>(x, A, 1, m, panels1.data(), PANEL, A * PANEL, A, D, rows, D);
  for (long i = 0; i < m; i++) add(rows + i * D, context + index[i] * D, D);
}

extern "C" {

// hidden1 = leaky(x W1ᵀ + context[index]), hidden2 = leaky(hidden1 W2ᵀ + bias2), y = hidden2 W3ᵀ + bias3.
// Feature f of row r is written at y[r * y_row + f * y_column]. hidden2 may be null.
void chain_forward(const float *x, long R, long A, const float *weight1, long D, const float *context, const long *index,
                   const float *weight2, const float *bias2, const float *weight3, const float *bias3, long F,
                   float leak, float *hidden2, float *y, long y_row, long y_column) {
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels2 = panels_of_transpose(weight2, D, D);
  std::vector<float> room(2 * TILE * D);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    float *first = room.data(), *second = hidden2 ? hidden2 + r0 * D : &room[TILE * D];
    with_context(x + r0 * A, m, A, panels1, D, context, index + r0, first);
    for (long i = 0; i < m * D; i += VL) store(first + i, leaky(load(first + i), load(first + i), leak));
    product<false>(first, D, 1, m, panels2.data(), PANEL, D * PANEL, D, D, second, D);
    for (long i = 0; i < m; i++) {
      for (long d = 0; d < D; d += VL) {
        vec value = load(second + i * D + d) + load(bias2 + d);
        store(second + i * D + d, leaky(value, value, leak));
      }
      for (long f = 0; f < F; f++) {
        vec sum = all(0);
        for (long d = 0; d < D; d += VL) sum += load(second + i * D + d) * load(weight3 + f * D + d);
        y[(r0 + i) * y_row + f * y_column] = total(sum) + bias3[f];
      }
    }
  }
}

// Gradients of chain_forward for that of y (R x F). Those of context, biases and weight3 are added.
void chain_backward(const float *of_y, const float *x, const float *hidden2, long R, long A, long D,
                    const float *weight1, const float *context, const long *index, const float *weight2, const float *weight3, long F, float leak, float *to_weight1,
                    float *to_context, float *to_weight2, float *to_bias2, float *to_weight3, float *to_bias3) {
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels = panels_of(weight2, D, D), room;
  std::vector<float> sum1(A * D), sum2(D * D), second(TILE * D), first(TILE * D), hidden1(TILE * D);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    for (long r = r0; r < r0 + m; r++) {
      float *row = &second[(r - r0) * D];
      const float *hidden = hidden2 + r * D;
      for (long f = 0; f < F; f++) {
        float slope = of_y[r * F + f];
        to_bias3[f] += slope;
        for (long d = 0; d < D; d += VL) {
          store(row + d, slope * load(weight3 + f * D + d) + (f ? load(row + d) : all(0)));
          store(to_weight3 + f * D + d, load(to_weight3 + f * D + d) + slope * load(hidden + d));
        }
      }
      for (long d = 0; d < D; d += VL) {
        vec value = leaky(load(row + d), load(hidden + d), leak);
        store(row + d, value);
        store(to_bias2 + d, load(to_bias2 + d) + value);
      }
    }
    with_context(x + r0 * A, m, A, panels1, D, context, index + r0, hidden1.data());
    for (long i = 0; i < m * D; i += VL) store(&hidden1[i], leaky(load(&hidden1[i]), load(&hidden1[i]), leak));
    add_outer(hidden1.data(), D, second.data(), D, m, sum2);
    times_weight(second.data(), m, D, panels, D, first.data(), room);
    for (long r = r0; r < r0 + m; r++) {
      float *row = &first[(r - r0) * D];
      for (long d = 0; d < D; d += VL) store(row + d, leaky(load(row + d), load(&hidden1[(r - r0) * D + d]), leak));
      add(to_context + index[r] * D, row, D);
    }
    add_outer(x + r0 * A, A, first.data(), D, m, sum1);
  }
  transposed(sum1, A, D, to_weight1);
  transposed(sum2, D, D, to_weight2);
}

// Two layers with normalisation, then mean and maximum over each event's rows: pooled (E x 2 D), zero at the start.
// normal2: rows as the second normalisation leaves them; inverse2: inverses of their spreads; largest (E x D): row of
// the maximum.
void pooled_forward(const float *x, long R, long A, const float *weight1, long D, const float *context, const long *index,
                    const long *counts, const float *gamma1, const float *beta1, float epsilon1, const float *weight2,
                    const float *bias2, const float *gamma2, const float *beta2, float epsilon2, float leak,
                    float *normal2, float *inverse2, float *pooled, int *largest) {
  typedef int whole __attribute__((vector_size(4 * VL), aligned(4), may_alias));
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels2 = panels_of_transpose(weight2, D, D);
  std::vector<float> hidden(TILE * D);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    with_context(x + r0 * A, m, A, panels1, D, context, index + r0, hidden.data());
    for (long i = 0; i < m; i++) {
      float *row = &hidden[i * D];
      normalise(row, epsilon1, D);
      for (long d = 0; d < D; d += VL) {
        vec value = load(row + d) * load(gamma1 + d) + load(beta1 + d);
        store(row + d, leaky(value, value, leak));
      }
    }
    product<false>(hidden.data(), D, 1, m, panels2.data(), PANEL, D * PANEL, D, D, normal2 + r0 * D, D);
    for (long r = r0; r < r0 + m; r++) {
      float *hat = normal2 + r * D, *mean = pooled + index[r] * 2 * D, *most = mean + D;
      int *place = largest + index[r] * D;
      bool is_first = r == 0 || index[r - 1] != index[r], is_last = r == R - 1 || index[r + 1] != index[r];
      vec share = all(is_last ? 1.0f / counts[index[r]] : 1.0f);
      add(hat, bias2, D);
      inverse2[r] = normalise(hat, epsilon2, D);
      for (long d = 0; d < D; d += VL) {
        vec value = load(hat + d) * load(gamma2 + d) + load(beta2 + d);
        value = leaky(value, value, leak);
        store(mean + d, (load(mean + d) + value) * share);
        whole rank = *(whole *)(place + d), larger = value > load(most + d);
        if (is_first) larger = ~(whole{});
        store(most + d, larger ? value : load(most + d));
        *(whole *)(place + d) = larger ? whole{} + (int)r : rank;
      }
    }
  }
}

// Gradients of pooled_forward for that of `pooled`. to_x, and to_weight1 with all others, are null if not wanted. Those
// of context, bias, gamma and beta are added.
void pooled_backward(const float *of_pooled, const float *x, long R, long A, const float *weight1, long D,
                     const float *context, const long *index, const long *counts, const float *gamma1,
                     const float *beta1, float epsilon1, const float *weight2, const float *gamma2, const float *beta2,
                     float leak, const float *normal2, const float *inverse2, const int *largest, float *to_x,
                     float *to_weight1, float *to_context, float *to_gamma1, float *to_beta1, float *to_weight2,
                     float *to_bias2, float *to_gamma2, float *to_beta2) {
  typedef int whole __attribute__((vector_size(4 * VL), aligned(4), may_alias));
  std::vector<float> panels1 = panels_of_transpose(weight1, D, A), panels = panels_of(weight2, D, D), room;
  std::vector<float> second(TILE * D), first(TILE * D), normal1(TILE * D), hidden(TILE * D);
  float inverse1[TILE];
  std::vector<float> sum1(to_weight1 ? A * D : 0), sum2(to_weight1 ? D * D : 0), weight1T(A * D);
  for (long d = 0; d < D; d++)
    for (long k = 0; k < A; k++) weight1T[k * D + d] = weight1[d * A + k];
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    with_context(x + r0 * A, m, A, panels1, D, context, index + r0, normal1.data());
    for (long i = 0; i < m; i++) inverse1[i] = normalise(&normal1[i * D], epsilon1, D);
    for (long r = r0; r < r0 + m; r++) {
      float *row = &second[(r - r0) * D];
      const float *hat = normal2 + r * D, *of_mean = of_pooled + index[r] * 2 * D, *of_most = of_mean + D;
      const int *place = largest + index[r] * D;
      vec share = all(1.0f / counts[index[r]]);
      for (long d = 0; d < D; d += VL) {
        whole is_largest = *(const whole *)(place + d) == (int)r;
        vec slope = load(of_mean + d) * share + (is_largest ? load(of_most + d) : all(0));
        slope = leaky(slope, load(hat + d) * load(gamma2 + d) + load(beta2 + d), leak);
        if (to_weight1) {
          store(to_beta2 + d, load(to_beta2 + d) + slope);
          store(to_gamma2 + d, load(to_gamma2 + d) + slope * load(hat + d));
        }
        store(row + d, slope * load(gamma2 + d));
      }
      project(row, hat, inverse2[r], D);
      if (to_weight1) {
        add(to_bias2, row, D);
        for (long d = 0; d < D; d += VL) {
          vec value = load(&normal1[(r - r0) * D + d]) * load(gamma1 + d) + load(beta1 + d);
          store(&hidden[(r - r0) * D + d], leaky(value, value, leak));
        }
      }
    }
    if (to_weight1) add_outer(hidden.data(), D, second.data(), D, m, sum2);
    times_weight(second.data(), m, D, panels, D, first.data(), room);
    for (long r = r0; r < r0 + m; r++) {
      float *row = &first[(r - r0) * D];
      const float *hat = &normal1[(r - r0) * D];
      for (long d = 0; d < D; d += VL) {
        vec slope = leaky(load(row + d), load(hat + d) * load(gamma1 + d) + load(beta1 + d), leak);
        if (to_weight1) {
          store(to_beta1 + d, load(to_beta1 + d) + slope);
          store(to_gamma1 + d, load(to_gamma1 + d) + slope * load(hat + d));
        }
        store(row + d, slope * load(gamma1 + d));
      }
      project(row, hat, inverse1[r - r0], D);
      if (to_weight1) add(to_context + index[r] * D, row, D);
      for (long k = 0; to_x && k < A; k++) {
        vec dot = all(0);
        for (long d = 0; d < D; d += VL) dot += load(row + d) * load(&weight1T[k * D + d]);
        to_x[r * A + k] = total(dot);
      }
    }
    if (to_weight1) add_outer(x + r0 * A, A, first.data(), D, m, sum1);
  }
  if (!to_weight1) return;
  transposed(sum1, A, D, to_weight1);
  transposed(sum2, D, D, to_weight2);
}

}  // extern "C"
