// Operations that treat each number by itself, over `columns` of `rows` that are `stride` apart. A factor that is a
// weight has its address in `b` and its type in `stride`.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OPERATION = 0;

const uint ADD = 0, SCALE = 1, SILU = 2, GELU = 3, GELU_TANH = 4, CLAMPED_SWISH = 5,
           SQUARED_RELU = 6, SIGMOID = 7, CAP = 8, SCALE_BY = 9;

layout(push_constant, std430) uniform Push {
  uint64_t a, b;
  uint columns, stride;
  float factor;
  uint rows;
} push;

// Abramowitz and Stegun 7.1.26: within 1.5e-7.
float erf(float x) {
  float z = abs(x), t = 1.0 / (1.0 + 0.3275911 * z);
  float series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return sign(x) * (1.0 - series * exp(-z * z));
}

float sigmoid(float x) { return 1.0 / (1.0 + exp(-x)); }

void main() {
  uint threads = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
  for (uint row = gl_WorkGroupID.y; row < push.rows; row += gl_NumWorkGroups.y) {
    uint64_t start = uint64_t(row) * push.stride * 4;
    Floats a = Floats(push.a + start), b = Floats(push.b + start);
    for (uint column = gl_GlobalInvocationID.x; column < push.columns; column += threads) {
      float x = a.v[column];
      if (OPERATION == SCALE_BY) {
        a.v[column] = x * plain_number(push.stride, push.b, 0);
        continue;
      }
      // An activation without a gate is multiplied by nothing else.
      float other = push.b != 0 ? b.v[column] : 1.0;
      if (OPERATION == ADD) {
        x += other * push.factor;
      } else if (OPERATION == SCALE) {
        x *= push.factor;
      } else if (OPERATION == SILU) {
        x = x * sigmoid(x) * other;
      } else if (OPERATION == GELU) {
        x = 0.5 * x * (1.0 + erf(x * 0.70710678)) * other;
      } else if (OPERATION == CLAMPED_SWISH) {
        // NaN stays NaN, whatever a driver makes of it in comparisons of its own.
        float up = other;
        x = x > 7.0 ? 7.0 : x;
        up = up > 7.0 ? 7.0 : up < -7.0 ? -7.0 : up;
        x = x * sigmoid(1.702 * x) * (up + 1.0);
      } else if (OPERATION == SQUARED_RELU) {
        x = x < 0.0 ? 0.0 : x;
        x = x * x * other;
      } else if (OPERATION == SIGMOID) {
        x = sigmoid(x) * other;
      } else if (OPERATION == CAP) {
        // The continued fraction of tanh for half the argument, then the formula for twice that; beyond 10 it is 1.
        float t = clamp(0.5 * x / push.factor, -5.0, 5.0), s = t * t;
        t *= (135135.0 + s * (17325.0 + s * (378.0 + s))) / (135135.0 + s * (62370.0 + s * (3150.0 + 28.0 * s)));
        x = isnan(x) ? x : push.factor * 2.0 * t / (1.0 + t * t);
      } else {
        x = x * sigmoid(1.5957691 * x * (1.0 + 0.044715 * x * x)) * other;
      }
      a.v[column] = x;
    }
  }
}
