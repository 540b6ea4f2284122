// Energy scores of rows with their gradient: all pairs of a row's generated values, for VL rows at once. See scores.py.

#include "rows.h"

static inline vec root_of(vec square) {
  float values[VL];
  store(values, square);
  for (int l = 0; l < VL; l++) values[l] = std::sqrt(values[l]);
  return load(values);
}

extern "C" {

// score (R) and its gradient to_generated (M x R x S) with respect to `generated` (M x R x S), M at least 2; real is
// R x S. floor is added to each squared distance.
void energy_scores(const float *generated, long M, long R, long S, const float *real, float floor, float *score,
                   float *to_generated) {
  // [set][number][row]: the generated sets, then the real one.
  std::vector<float> values((M + 1) * S * VL), slopes(M * S * VL);
  float one_real = 1.0f / M, one_pair = 1.0f / (M * (M - 1));
  for (long r0 = 0; r0 < R; r0 += VL) {
    long m = least(VL, R - r0);  // rows beyond keep those before: nobody reads their scores
    for (long i = 0; i <= M; i++) {
      const float *from = (i < M ? generated + i * R * S : real) + r0 * S;
      for (long l = 0; l < m; l++)
        for (long s = 0; s < S; s++) values[(i * S + s) * VL + l] = from[l * S + s];
    }
    std::fill(slopes.begin(), slopes.end(), 0.0f);
    vec sum_real = all(0), sum_pairs = all(0);
    for (long i = 0; i < M; i++)
      for (long j = i + 1; j <= M; j++) {
        const float *one = &values[i * S * VL], *other = &values[j * S * VL];
        vec square = all(floor);
        for (long s = 0; s < S; s++) {
          vec apart = load(one + s * VL) - load(other + s * VL);
          square += apart * apart;
        }
        vec distance = root_of(square);
        (j < M ? sum_pairs : sum_real) += distance;
        vec weight = (j < M ? -one_pair : one_real) / distance;
        for (long s = 0; s < S; s++) {
          vec slope = (load(one + s * VL) - load(other + s * VL)) * weight;
          float *to_one = &slopes[(i * S + s) * VL];
          store(to_one, load(to_one) + slope);
          if (j == M) continue;
          float *to_other = &slopes[(j * S + s) * VL];
          store(to_other, load(to_other) - slope);
        }
      }
    vec scores = sum_real * one_real - sum_pairs * one_pair;
    for (long l = 0; l < m; l++) score[r0 + l] = scores[l];
    for (long i = 0; i < M; i++)
      for (long l = 0; l < m; l++)
        for (long s = 0; s < S; s++) to_generated[(i * R + r0 + l) * S + s] = slopes[(i * S + s) * VL + l];
  }
}

}  // extern "C"
