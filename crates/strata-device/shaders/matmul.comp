// Products of many rows of activations with a matrix: 64 rows of each at a time, 32 columns at a time in shared memory.
// A workgroup has 16 times 16 threads, each of which computes 4 times 4 products.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"

const uint TILE = 64, DEPTH = 32, SIDE = 16, EACH = TILE / SIDE;

layout(local_size_x = 16, local_size_y = 16) in;
layout(constant_id = 1) const uint TYPE = 0;

layout(push_constant, std430) uniform Push {
  uint64_t weights, x, bias, result;
  uint row_bytes, rows, cols, stride, tokens, bias_type;
} push;

// Turned, so that threads side by side read numbers side by side.
shared float weights[DEPTH][TILE + 1];
shared float activations[DEPTH][TILE + 1];

// The number at `col` of a row whose columns are no multiple of 8, or zero beyond them.
float number_or_zero(uint64_t row, uint col) {
  return col < push.cols ? plain_number(TYPE, row, col) : 0.0;
}

void main() {
  uint first_row = gl_WorkGroupID.x * TILE, first_token = gl_WorkGroupID.y * TILE;
  uint thread = gl_LocalInvocationIndex;
  float sums[EACH][EACH];
  for (uint i = 0; i < EACH; i++) {
    for (uint j = 0; j < EACH; j++) {
      sums[i][j] = 0.0;
    }
  }
  bool in_units = TYPE > BF16 || push.cols % 8 == 0;
  for (uint first = 0; first < push.cols; first += DEPTH) {
    // 4 units of 8 numbers in each of 64 rows: one for each thread.
    uint r = thread / 4, part = thread % 4, unit = first / 8 + part;
    float v[8] = float[](0, 0, 0, 0, 0, 0, 0, 0);
    if (first_row + r < push.rows) {
      uint64_t row = push.weights + uint64_t(first_row + r) * push.row_bytes;
      if (!in_units) {
        for (uint i = 0; i < 8; i++) {
          v[i] = number_or_zero(row, 8 * unit + i);
        }
      } else if (8 * unit < push.cols) {
        eight_numbers(TYPE, row, 0, unit, v);
      }
    }
    float a[8] = float[](0, 0, 0, 0, 0, 0, 0, 0);
    if (first_token + r < push.tokens) {
      Floats x = Floats(push.x + uint64_t(first_token + r) * push.cols * 4);
      for (uint i = 0; i < 8; i++) {
        a[i] = 8 * unit + i < push.cols ? x.v[8 * unit + i] : 0.0;
      }
    }
    barrier();
    for (uint i = 0; i < 8; i++) {
      weights[8 * part + i][r] = v[i];
      activations[8 * part + i][r] = a[i];
    }
    barrier();
    for (uint k = 0; k < DEPTH; k++) {
      float w[EACH], x[EACH];
      for (uint i = 0; i < EACH; i++) {
        w[i] = weights[k][gl_LocalInvocationID.x + SIDE * i];
        x[i] = activations[k][gl_LocalInvocationID.y + SIDE * i];
      }
      for (uint i = 0; i < EACH; i++) {
        for (uint j = 0; j < EACH; j++) {
          sums[i][j] += w[i] * x[j];
        }
      }
    }
  }
  for (uint i = 0; i < EACH; i++) {
    uint row = first_row + gl_LocalInvocationID.x + SIDE * i;
    if (row >= push.rows) {
      continue;
    }
    float bias = push.bias == 0 ? 0.0 : plain_number(push.bias_type, push.bias, row);
    for (uint j = 0; j < EACH; j++) {
      uint token = first_token + gl_LocalInvocationID.y + SIDE * j;
      if (token < push.tokens) {
        Floats(push.result).v[token * push.stride + row] = sums[i][j] + bias;
      }
    }
  }
}
