// Products of rows of activations with rows of a matrix: a subgroup takes some of each, and its threads share out the
// columns, eight at a time.
//
// The order of every sum depends on the number of columns and on the size of a subgroup alone, and not on how many rows
// are taken at a time: so a token's results are the same alone and in a batch, to the bit. The host has the same order
// (`interbed-kernels/src/subgroups.rs`), so that either may compute.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "common.glsl"
#include "weights.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 0;
// Rows of the matrix, and of activations, that a subgroup takes: at most 4 and 16.
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint TOKENS = 1;
layout(push_constant, std430) uniform Push {
  uint64_t weights, x, bias, result;
  uint row_bytes, rows, cols, stride, tokens, patches, bias_type;
} push;

uint64_t row_at(uint number) { return push.weights + uint64_t(min(number, push.rows - 1)) * push.row_bytes; }
uint64_t token_at(uint token) { return push.x + uint64_t(min(token, push.tokens - 1)) * push.cols * 4; }

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
  uint lane = gl_SubgroupInvocationID, cols = push.cols;
  precise float sums[4][16];
  for (uint r = 0; r < ROWS; r++) {
    for (uint t = 0; t < TOKENS; t++) {
      sums[r][t] = 0.0;
    }
  }
  if (!ends_anywhere(TYPE) || cols % 8 == 0) {
    for (uint unit = lane; unit < cols / 8; unit += SUBGROUP) {
      float v[4][8];
      for (uint r = 0; r < ROWS; r++) {
        eight_numbers(TYPE, row_at(first_row + r), push.patches, unit, v[r]);
      }
      for (uint t = 0; t < TOKENS; t++) {
        Fours x = Fours(token_at(first_token + t));
        vec4 a = x.v[2 * unit], b = x.v[2 * unit + 1];
        for (uint r = 0; r < ROWS; r++) {
          for (uint i = 0; i < 4; i++) {
            sums[r][t] = fma(v[r][i], a[i], sums[r][t]);
          }
          for (uint i = 0; i < 4; i++) {
            sums[r][t] = fma(v[r][4 + i], b[i], sums[r][t]);
          }
        }
      }
    }
  } else {
    for (uint col = lane; col < cols; col += SUBGROUP) {
      for (uint r = 0; r < ROWS; r++) {
        float v = single_number(TYPE, row_at(first_row + r), push.patches, col);
        for (uint t = 0; t < TOKENS; t++) {
          sums[r][t] = fma(v, Floats(token_at(first_token + t)).v[col], sums[r][t]);
        }
      }
    }
  }
  if (TYPE == CODED) {
    // What patches change. A patch without a gap, except the first, repeats the one before.
    for (uint r = 0; r < ROWS; r++) {
      uint64_t row = row_at(first_row + r);
      uint last = 0;
      for (uint first = 0; first < push.patches; first += SUBGROUP) {
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
            sums[r][t] = fma(change, Floats(token_at(first_token + t)).v[place], sums[r][t]);
          }
        }
        last = subgroupMax(place);
      }
    }
  }
  put_all(sums, first_row, first_token);
}
