// Linear layer, layer normalisation and leaky ReLU in one pass over the rows, forwards, backwards, and the pullback
// whose gradient the penalty needs: each row is read once and written once. See layers.py for the arguments.

#include "rows.h"

extern "C" {

// output = leaky(norm(x Wᵀ + bias)). The normalised rows and the inverse of their spreads are returned, too.
void dense_forward(const float *x, long R, long A, const float *weight, long D, const float *bias, const float *gamma,
                   const float *beta, float epsilon, float leak, float *normal, float *inverse, float *output) {
  std::vector<float> panels = panels_of_transpose(weight, D, A);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    layer(x + r0 * A, m, A, panels, D, bias, nullptr, normal + r0 * D);
    for (long r = r0; r < r0 + m; r++) {
      float *hat = normal + r * D, *out = output + r * D;
      inverse[r] = normalise(hat, epsilon, D, [=](long d, vec value) {
        store(hat + d, value);
        value = value * load(gamma + d) + load(beta + d);
        store(out + d, leaky(value, value, leak));
      });
    }
  }
}

// Gradients of dense_forward for that of its output, and that of the rows before the normalisation (either may be
// null). to_x, and to_weight with the others, are null if not wanted. Those of bias, gamma and beta are added.
void dense_backward(const float *of_output, const float *of_rows, const float *x, const float *normal,
                    const float *inverse, const float *output, long R, long A, const float *weight, long D,
                    const float *gamma, float leak, float *to_x, float *to_weight, float *to_bias, float *to_gamma,
                    float *to_beta) {
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
          if (to_weight) {
            store(to_beta + d, load(to_beta + d) + slope);
            store(to_gamma + d, load(to_gamma + d) + slope * load(hat + d));
          }
          store(row + d, slope * load(gamma + d));
        }
        project(row, hat, inverse[r], D);
      }
      if (of_rows) add(row, of_rows + r * D, D);
      if (to_bias) add(to_bias, row, D);
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
// weight and, added, to gamma.
void pullback_backward(const float *of_result, const float *slope, const float *normal, const float *inverse,
                       const float *output, const float *pulled, long R, long A, const float *weight, long D,
                       const float *gamma, float leak, float *to_slope, float *to_rows, float *to_weight,
                       float *to_gamma) {
  std::vector<float> panels = panels_of_transpose(weight, D, A), sum(A * D), js(TILE * D), u(D);
  for (long r0 = 0; r0 < R; r0 += TILE) {
    long m = least(TILE, R - r0);
    product<ZERO>(of_result + r0 * A, A, 1, m, panels.data(), PANEL, A * PANEL, A, D, js.data(), D);
    for (long r = r0; r < r0 + m; r++) {
      const float *out = output + r * D;
      for (long d = 0; d < D; d += VL) store(&u[d], leaky(load(slope + r * D + d), load(out + d), leak));
      pull_gradient(&js[(r - r0) * D], u.data(), normal + r * D, pulled + r * D, gamma, inverse[r], D, to_rows + r * D,
                    to_gamma, [=](long d, vec j) {
                      store(to_slope + r * D + d, leaky(j * load(gamma + d), load(out + d), leak));
                    });
    }
    add_outer(of_result + r0 * A, A, pulled + r0 * D, D, m, sum);
  }
  transposed(sum, A, D, to_weight);
}

}  // extern "C"
