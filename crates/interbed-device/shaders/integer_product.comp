// Products of rows of activations as bytes (`quantise.comp`) with rows of a quantised matrix: a subgroup takes some of
// each, and its threads share out the columns, a block of 32 at a time. Within a block all is exact, in integers.
//
// The order of every sum depends on the number of columns and on the size of a subgroup alone, and not on how many rows
// are taken at a time: so a token's results are the same alone and in a batch, to the bit.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_spirv_intrinsics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "common.glsl"
#include "weights.glsl"
#include "blocks.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = Q8_0;
// Rows of the matrix, and of activations, that a subgroup takes: at most 4 and 16.
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint TOKENS = 1;

layout(push_constant, std430) uniform Push {
  uint64_t weights, x, bias, result;
  uint row_bytes, rows, cols, stride, tokens, patches, bias_type;
} push;

uint64_t row_at(uint number) { return push.weights + uint64_t(min(number, push.rows - 1)) * push.row_bytes; }

// Where the bytes of a token begin, of which 32 take 48 with their scale and sums.
uint64_t token_at(uint token) { return push.x + uint64_t(min(token, push.tokens - 1)) * (push.cols / 32) * 48; }

#include "sums.glsl"

void main() {
  // Groups that take the same rows of the matrix come one after the other.
  uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  uint token_groups = (push.tokens + TOKENS - 1) / TOKENS;
  uint first_row = (group / token_groups * SUBGROUPS + gl_SubgroupID) * ROWS;
  uint first_token = group % token_groups * TOKENS;
  if (first_row >= push.rows) {
    return;
  }
  uint lane = gl_SubgroupInvocationID;
  precise float sums[4][16];
  for (uint r = 0; r < ROWS; r++) {
    for (uint t = 0; t < TOKENS; t++) {
      sums[r][t] = 0.0;
    }
  }
  for (uint number = lane; number < push.cols / 32; number += SUBGROUP) {
    Block w[4];
    for (uint r = 0; r < ROWS; r++) {
      w[r] = block_of(TYPE, row_at(first_row + r), number);
    }
    for (uint t = 0; t < TOKENS; t++) {
      WordFours from = WordFours(token_at(first_token + t) + uint64_t(number) * 48);
      ivec4 low = ivec4(from.v[0]), high = ivec4(from.v[1]);
      uvec4 fields = from.v[2];
      float scale = uintBitsToFloat(fields.x);
      ivec2 of_codes = ivec2(fields.yz);
      for (uint r = 0; r < ROWS; r++) {
        ivec2 dots = ivec2(0);
        [[unroll]] for (uint i = 0; i < 4; i++) {
          dots.x = dot_of_four(w[r].codes[i], low[i], dots.x);
          dots.y = dot_of_four(w[r].codes[4 + i], high[i], dots.y);
        }
        // Integers that a float can count, so nothing is rounded here.
        int whole = has_halves(TYPE) ? w[r].factors.x * dots.x + w[r].factors.y * dots.y : dots.x + dots.y;
        precise float factor = w[r].scale * scale;
        sums[r][t] = fma(float(whole), factor, sums[r][t]);
        if (has_minima(TYPE)) {
          int least = has_halves(TYPE) ? w[r].minima.x * of_codes.x + w[r].minima.y * of_codes.y
                                       : of_codes.x + of_codes.y;
          precise float taken = scale * float(least);
          sums[r][t] = fma(-w[r].minimum, taken, sums[r][t]);
        }
      }
    }
  }
  put_all(sums, first_row, first_token);
}
