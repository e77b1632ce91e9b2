// Products of a few rows of activations with a matrix: one subgroup for each row of the matrix, which is decoded once
// for all activations.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "common.glsl"
#include "weights.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 0;
// Rows of activations, at most 8.
layout(constant_id = 2) const uint TOKENS = 1;

layout(push_constant, std430) uniform Push {
  uint64_t weights, x, bias, result;
  uint row_bytes, rows, cols, stride, patches, bias_type;
} push;

void main() {
  uint number = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
  if (number >= push.rows) {
    return;
  }
  uint64_t row = push.weights + uint64_t(number) * push.row_bytes;
  uint lane = gl_SubgroupInvocationID, cols = push.cols;
  float sums[8] = float[](0, 0, 0, 0, 0, 0, 0, 0);
  if (TYPE > BF16 || cols % 8 == 0) {
    for (uint unit = lane; unit < cols / 8; unit += gl_SubgroupSize) {
      float v[8];
      eight_numbers(TYPE, row, push.patches, unit, v);
      for (uint t = 0; t < TOKENS; t++) {
        Fours x = Fours(push.x + uint64_t(t) * cols * 4);
        vec4 a = x.v[2 * unit], b = x.v[2 * unit + 1];
        sums[t] += dot(vec4(v[0], v[1], v[2], v[3]), a) + dot(vec4(v[4], v[5], v[6], v[7]), b);
      }
    }
  } else {
    for (uint col = lane; col < cols; col += gl_SubgroupSize) {
      float v = plain_number(TYPE, row, col);
      for (uint t = 0; t < TOKENS; t++) {
        sums[t] += v * Floats(push.x + uint64_t(t) * cols * 4).v[col];
      }
    }
  }
  if (TYPE == CODED) {
    // What patches change. A patch without a gap, except the first, repeats the one before.
    uint last = 0;
    for (uint first = 0; first < push.patches; first += gl_SubgroupSize) {
      uint i = first + lane;
      bool is_there = i < push.patches;
      uint gap = is_there ? byte_at(row + CODED_TABLE + 2 * i) : 0;
      uint place = min(last + subgroupInclusiveAdd(gap), cols - 1);
      if (is_there && (gap > 0 || i == 0)) {
        uint j, bit = place % 8;
        uint64_t block = coded_unit(row + CODED_TABLE + 2 * push.patches, place / 8, j);
        uint rest = byte_at(block + 24 + j + bit), plane = j / 8;
        uint code = byte_at(block + plane) >> bit & 1 | (byte_at(block + 8 + plane) >> bit & 1) << 1 |
                    (byte_at(block + 16 + plane) >> bit & 1) << 2;
        uint exponent = byte_at(row + CODED_TABLE + 2 * i + 1);
        float change = coded_number(rest, exponent) - coded_number(rest, byte_at(row + code));
        for (uint t = 0; t < TOKENS; t++) {
          sums[t] += change * Floats(push.x + uint64_t(t) * cols * 4).v[place];
        }
      }
      last = subgroupMax(place);
    }
  }
  for (uint t = 0; t < TOKENS; t++) {
    float sum = subgroupAdd(sums[t]);
    if (lane == 0) {
      float bias = push.bias == 0 ? 0.0 : plain_number(push.bias_type, push.bias, number);
      Floats(push.result).v[t * push.stride + number] = sum + bias;
    }
  }
}
